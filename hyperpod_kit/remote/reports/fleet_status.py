"""One look at all mounts of a cluster, and looking again and again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, ContextManager, Iterator, Sequence, Union

from hyperpod_kit.errors import AwsError, ClusterError, Unreachable
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.reports.validate_mounts import validate_mounts
from hyperpod_kit.remote.transports.transport import Progress, Transport

FleetError = Union[AwsError, ClusterError, Unreachable]


@dataclass(frozen=True)
class FleetStatus:
    """What one look found. `at`: Unix seconds at its end; `seconds`: how long it took."""

    reports: Sequence[NodeReport]
    at: float
    seconds: float

    @property
    def healthy(self) -> bool:
        return all(report.healthy for report in self.reports)


def query_fleet_mount_reports(
    cluster: LiveCluster, transport: Transport, max_age: float, bar: Callable[[int], ContextManager[Progress]]
) -> FleetStatus:
    """Query AWS for the nodes, and the nodes for their mounts. `bar`: shows how many of so many nodes are done.

    Raises ClusterError, AwsError, Unreachable, UsageError.
    """
    started_at = time.monotonic()
    targets = cluster.require_targets()
    with bar(len(targets)) as advance:
        reports = validate_mounts(
            targets, transport, expected=cluster.expected_mounts_by_group(), max_age=max_age, progress=advance
        )
    return FleetStatus(reports, time.time(), time.monotonic() - started_at)


def poll_fleet(query: Callable[[], FleetStatus], interval_seconds: float) -> Iterator[Union[FleetStatus, FleetError]]:
    """Yield the result of `query` every `seconds` seconds, without an end.

    Raises the error of the first query; that of a later one is yielded.
    """
    first = True
    while True:
        due = time.monotonic() + interval_seconds
        try:
            yield query()
            first = False
        except (AwsError, ClusterError, Unreachable) as err:
            if first:
                raise
            yield err
        time.sleep(max(0.0, due - time.monotonic()))
