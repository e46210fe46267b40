"""One command on a node by an SSM session, with the pace and the patience that AWS's sessions need."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Optional, Sequence

from hyperpod_kit.errors import RunError, RunTimeout, Unreachable
from hyperpod_kit.remote.deadlines import Deadlines
from hyperpod_kit.remote.ssm_shell import Start, run_in_shell
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Completed
from hyperpod_kit.system.token_bucket import TokenBucket

RATE = 3.0
"""StartSession's quota: calls a second, of the whole account."""

TRIES = 3
"""A session may end with "Cannot perform start session: EOF" for no reason."""

OUTPUT_LIMIT = 8 << 20
"""Bytes of a session, which has its answer in base64, that are too many."""


class SsmSession(NamedTuple):
    """A session that was begun. `end`: ends it on AWS's side when nobody has used it up."""

    start: Start
    end: Callable[[], None]


class SsmSessions:
    """`begin`: StartSession for a node; raises AwsError or Unreachable."""

    def __init__(self, begin: Callable[[NodeTarget], SsmSession], bucket: Optional[TokenBucket] = None) -> None:
        self._begin = begin
        self._bucket = bucket or TokenBucket(RATE)
        self._deadlines = Deadlines()
        self._stopped = False

    def stop(self) -> None:
        """End all sessions, after Ctrl-C."""
        self._stopped = True
        self._deadlines.expire_present_and_later()

    def run(self, target: NodeTarget, argv: Sequence[str], *, timeout: float, limit: int = OUTPUT_LIMIT) -> Completed:
        """Return the standard output and exit code; standard error is left there.

        Raises AwsError, Unreachable when no session leads to an answer, RunTimeout after `timeout` seconds of one.
        """
        last = Unreachable("not tried")
        for _ in range(TRIES):
            self._bucket.wait_for_one_token_and_charge()
            if self._stopped:
                break
            session = self._begin(target)
            try:
                return run_in_shell(
                    session.start,
                    argv,
                    deadlines=self._deadlines,
                    timeout=timeout,
                    limit=limit,
                    target=target.instance_id,
                )
            except RunTimeout:
                session.end()
                raise
            except Unreachable as err:
                session.end()
                last = err
        raise last


class SsmRunner:
    """A Runner on one node, a session for each command."""

    def __init__(self, node: NodeTarget, sessions: SsmSessions) -> None:
        self.target = node.instance_id
        self._node, self._sessions = node, sessions

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        """Run a command (see Runner); a session takes neither input nor environment.

        Raises AwsError and Unreachable too.
        """
        if input is not None or env:
            raise ValueError("a session takes neither input nor environment")
        done = self._sessions.run(self._node, argv, timeout=timeout)
        if check and done.returncode != 0:
            raise RunError(argv, done.returncode, done.stdout, done.stderr, target=self.target)
        return done
