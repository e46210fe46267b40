"""Reports that the nodes send by themselves, read from CloudWatch: no login, no open port, busy nodes too.

The health timer of each node writes a line to provisioning.log (node/health/check_cycle.py), the file that HyperPod's
own agent ships to /aws/sagemaker/Clusters/<name>/<id>, stream LifecycleConfig/<group>/<instance id>. The role needs
nothing more than HyperPod's own policy gives it.
"""

from __future__ import annotations

import time
from typing import Callable, Sequence

from hyperpod_kit.aws.logs import LogLine, Logs, creation_log_stream, log_group
from hyperpod_kit.remote.report_parser import NoReport, parse_mount_report
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import NodeResponse, Progress

STREAMS = "LifecycleConfig/"
PATTERN = '{ $.step = "mounts" }'


class CloudWatchTransport:
    """The newest report of each node. `max_age`: how far back to look, in seconds."""

    description = "by their reports in CloudWatch"

    def __init__(
        self, logs: Logs, cluster: str, arn: str, max_age: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._logs, self._max_age, self._clock = logs, max_age, clock
        self.group = log_group(cluster, arn)

    def query_mount_reports(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        """Query CloudWatch once for all nodes (see Transport). Raises AwsError, Unreachable."""
        streams = [creation_log_stream(target.group, target.instance_id) for target in targets]
        expected = set(streams)
        newest: dict[str, LogLine] = {}
        # Twice the age: a node that fell silent is told with how long ago from one that never said a word.
        oldest_at = self._clock() - 2 * self._max_age
        for line in self._logs.search(self.group, prefix=STREAMS, pattern=PATTERN, after=oldest_at):
            if line.stream not in expected or not _is_mounts_line(line.message):
                continue
            if line.stream not in newest:
                progress(1)
            if line.stream not in newest or line.at >= newest[line.stream].at:
                newest[line.stream] = line
        progress(len(expected) - len(newest))
        return [self._response(stream, newest.get(stream)) for stream in streams]

    def _response(self, stream: str, line: LogLine | None) -> NodeResponse:
        if line is None:
            return NodeResponse(
                error=f"it has sent no report for {2 * self._max_age:.0f} s",
                hint=f"aws logs tail {self.group} --log-stream-names {stream}; or --via ssh",
                reached=False,
            )
        return NodeResponse(line.message, at=line.at)


def _is_mounts_line(message: str) -> bool:
    """Whether a log line is a report of mounts; the others are of the node's creation."""
    try:
        return bool(parse_mount_report(message))
    except NoReport:
        return '"step": "mounts"' in message
