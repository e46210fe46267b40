"""Reports by SSM sessions: the way in that every HyperPod node has, three sessions a second for a whole account."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional, Sequence

from hyperpod_kit.errors import HyperpodKitError, NoCredentials, RunTimeout, Unreachable
from hyperpod_kit.remote.deadlines import Deadlines
from hyperpod_kit.remote.fan_out import ask_all
from hyperpod_kit.remote.ssm_shell import Start, run_in_shell
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transport import COMMAND, LONGEST_REPORT, NodeResponse, Progress
from hyperpod_kit.system.token_bucket import TokenBucket

RATE = 3.0
"""StartSession's quota: calls a second, of the whole account."""

TRIES = 3
"""A session may end with "Cannot perform start session: EOF" for no reason."""


class SsmSession(NamedTuple):
    """A session that was begun. `end`: ends it on AWS's side when nobody has used it up."""

    start: Start
    end: Callable[[], None]


class SsmTransport:
    """`begin`: StartSession for a node; raises AwsError or Unreachable. `timeout`: seconds for one session."""

    def __init__(
        self,
        begin: Callable[[NodeTarget], SsmSession],
        timeout: float,
        *,
        bucket: Optional[TokenBucket] = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.words = f"by SSM sessions ({RATE:g} a second)"
        self._begin, self._timeout, self._command = begin, timeout, command
        self._bucket = bucket or TokenBucket(RATE)
        self._deadlines = Deadlines()
        self._stopped = False

    def query(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        """As Transport. Raises NoCredentials: what AWS refuses to one it refuses to all."""
        try:
            # A terminal has two ends, and the call before it a connection.
            return ask_all(targets, self._ask, lambda response: progress(1), descriptors=3)
        except BaseException:
            self._stopped = True
            self._deadlines.end_all()
            raise

    def _ask(self, target: NodeTarget) -> NodeResponse:
        last = NodeResponse(error="not tried")
        for _ in range(TRIES):
            self._bucket.take()
            if self._stopped:
                return last
            try:
                session = self._begin(target)
            except NoCredentials:
                raise
            except HyperpodKitError as err:
                return NodeResponse(error=err.message, hint=err.hint or "")
            try:
                done = run_in_shell(
                    session.start,
                    self._command,
                    deadlines=self._deadlines,
                    timeout=self._timeout,
                    limit=2 * LONGEST_REPORT,
                    target=target.instance_id,
                )
            except RunTimeout:
                session.end()
                return NodeResponse(error=f"its session gave no answer within {self._timeout:g} s", hint="--timeout")
            except Unreachable as err:
                session.end()
                last = NodeResponse(error=err.message)
                continue
            return NodeResponse(done.stdout, done.returncode)
        return last
