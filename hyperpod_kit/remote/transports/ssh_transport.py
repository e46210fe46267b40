"""Reports over ssh: one connection to each node, many at once."""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.errors import HyperpodKitError, RunTimeout
from hyperpod_kit.remote.connect.fan_out import query_all
from hyperpod_kit.remote.connect.ssh import SshRunner, TooMuchOutput
from hyperpod_kit.remote.connect.ssh_access import SshAccess
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import COMMAND, LONGEST_REPORT, NodeResponse, Progress


class SshTransport:
    """Logs in to every node."""

    description = "over ssh"

    def __init__(self, access: SshAccess) -> None:
        self._access = access

    def query_mount_reports(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        # A proxy has two ends of a socket and a file for its words.
        descriptors = 1
        if self._access.settings.proxy:
            descriptors = 3
        return query_all(targets, self._query_node, lambda response: progress(1), descriptors=descriptors)

    def _query_node(self, target: NodeTarget) -> NodeResponse:
        if not target.address:
            return NodeResponse(error="AWS reports no address for the node", reached=False)
        runner = SshRunner(target.address, self._access, limit=LONGEST_REPORT)
        seconds = self._access.settings.command_timeout
        try:
            done = runner.run(COMMAND, timeout=seconds, check=False)
        except RunTimeout:
            return NodeResponse(
                error=f"its check did not end within {seconds:g} s", hint="hyperpod-kit diagnose; --timeout"
            )
        except TooMuchOutput as err:
            return NodeResponse(error=f"its answer is not a report: {err.stderr}")
        except HyperpodKitError as err:
            return NodeResponse(error=err.message, hint=err.hint or "", reached=False)
        return NodeResponse(done.stdout, done.returncode, done.stderr)
