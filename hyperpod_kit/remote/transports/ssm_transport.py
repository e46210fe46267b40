"""Reports by SSM sessions: the way in that every HyperPod node has, three sessions a second for a whole account."""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.errors import HyperpodKitError, NoCredentials, RunTimeout
from hyperpod_kit.remote.connect.fan_out import query_all
from hyperpod_kit.remote.connect.ssm_sessions import RATE, SsmSessions
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import COMMAND, LONGEST_REPORT, NodeResponse, Progress


class SsmTransport:
    """`timeout`: seconds for one session."""

    description = f"by SSM sessions ({RATE:g} a second)"

    def __init__(self, sessions: SsmSessions, timeout: float, *, command: Sequence[str] = COMMAND) -> None:
        self._sessions, self._timeout, self._command = sessions, timeout, command

    def query_mount_reports(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        """Query the nodes, one session each (see Transport).

        Raises NoCredentials: what AWS refuses to one it refuses to all.
        """
        try:
            # A terminal has two ends, and the call before it a connection.
            return query_all(targets, self._query_node, lambda response: progress(1), descriptors=3)
        except BaseException:
            self._sessions.stop()
            raise

    def _query_node(self, target: NodeTarget) -> NodeResponse:
        try:
            done = self._sessions.run(target, self._command, timeout=self._timeout, limit=2 * LONGEST_REPORT)
        except NoCredentials:
            raise
        except RunTimeout:
            return NodeResponse(error=f"its session gave no answer within {self._timeout:g} s", hint="--timeout")
        except HyperpodKitError as err:
            return NodeResponse(error=err.message, hint=err.hint or "", reached=False)
        return NodeResponse(done.stdout, done.returncode)
