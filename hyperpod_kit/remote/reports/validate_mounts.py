"""Judge what the nodes of a cluster say of their mounts.

A node that does not answer, whose report is old, or that does not report a mount that the configuration gives it, is a
failure: silence is never health. Nor is a node's own word for what it must have: that is the configuration's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.cluster.nodes import slurm_node_name
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.connect.fan_out import reason_if_not_running
from hyperpod_kit.remote.report_parser import NoReport, SentReport, last_line_or_nothing_word, parse_mount_report
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import NodeResponse, Progress, Transport
from hyperpod_kit.untrusted.text import clean_one_line

CLOCK = 900.0
"""Seconds that a node's clock may differ from ours: beyond, AWS and munge refuse one of the two, and an old report that
somebody answers with looks the same."""
LOG = "on it: see /var/log/provision/provisioning.log"


def validate_mounts(
    targets: Sequence[NodeTarget],
    transport: Transport,
    *,
    expected: Mapping[str, Sequence[Mount]],
    max_age: float = 60.0,
    progress: Progress = lambda count: None,
    clock: Callable[[], float] = time.time,
) -> list[NodeReport]:
    """Query the targets and judge one report each, in their order.

    `expected`: instance group -> mounts that a node of it must report, empty when no configuration is known;
    `max_age`: seconds after which a report that a node sent by itself is too old. Raises what the transport raises.
    """
    silent = {target.instance_id: reason_if_not_running(target) for target in targets}
    running = [target for target in targets if silent[target.instance_id] is None]
    progress(len(targets) - len(running))
    responses = dict(zip((target.instance_id for target in running), transport.query_mount_reports(running, progress)))
    reports = []
    for target in targets:
        skipped = silent[target.instance_id]
        if skipped is not None:
            reports.append(NodeReport(target, error=skipped.error, hint=skipped.hint))
        else:
            group_mounts = expected.get(target.group, ())
            response = responses[target.instance_id]
            reports.append(replace(judge_report(target, response, group_mounts, max_age, clock()), via=response.via))
    return reports


def judge_report(
    target: NodeTarget, response: NodeResponse, expected: Sequence[Mount], max_age: float, now: float
) -> NodeReport:
    """Judge the report of one node. Pure; `now` in Unix seconds."""
    if response.error:
        return NodeReport(target, error=clean_one_line(response.error), hint=response.hint)
    if response.returncode not in (0, 1, None):
        return NodeReport(target, error=_describe_failed_check(response.returncode, response.stderr), hint=LOG)
    try:
        sent = parse_mount_report(response.text)
    except NoReport as err:
        if not response.text.strip():
            message = f"its answer is not a report: {last_line_or_nothing_word(response.stderr)}"
        else:
            message = str(err)
        return NodeReport(target, error=message, hint=LOG)
    # Of a report that was sent the older time counts: what is delivered late is old, whenever it came.
    if response.at is None:
        said_at = now
    else:
        said_at = min(response.at, sent.checked_at or response.at)
    wrong = _rejection_reason(target, response, sent, now, now - said_at, max_age)
    if wrong is not None:
        return NodeReport(target, error=wrong, bundle_id=sent.bundle_id, said_at=said_at)
    warnings = sent.warnings
    if response.doubt:
        warnings = (*warnings, response.doubt)
    return NodeReport(
        target,
        tuple(_statuses_corrected_by_configuration(sent.mounts, expected, now)),
        bundle_id=sent.bundle_id,
        said_at=said_at,
        warnings=warnings,
        slurm=sent.slurm,
    )


def _rejection_reason(
    target: NodeTarget, response: NodeResponse, sent: SentReport, now: float, age: float, max_age: float
) -> Optional[str]:
    """Return why the report is not taken for the node's present state; None when it is."""
    # By its address a node is known too: resource_config.json may lag behind a replacement and still have the old id.
    names = ((sent.instance_id, target.instance_id), (sent.node, slurm_node_name(target.address)))
    if not any(reported and reported == expected for reported, expected in names):
        return (
            f"another node answers at this address: {sent.instance_id or 'without an instance id'} ({sent.node or '-'})"
        )
    off = sent.checked_at - now
    if response.at is None and sent.checked_at and abs(off) > CLOCK:
        way = "behind"
        if off > 0:
            way = "ahead of"
        return f"its report of this moment is {format_duration(abs(off))} {way} this machine's clock"
    if age > max_age:
        return f"its last report is {age:.0f} s old, expected one every {max_age:.0f} s at least"
    if response.returncode == 1 and all(mount.healthy for mount in sent.mounts):
        return "its check ended with exit code 1, but its report lists no unhealthy mount"
    return None


def _statuses_corrected_by_configuration(
    statuses: Sequence[MountStatus], expected: Sequence[Mount], now: float
) -> Iterator[MountStatus]:
    """Yield the reported mounts as the configuration has them, and those that were not reported as absent."""
    mounts_by_name = {mount.name: mount for mount in expected}
    for status in statuses:
        mount = mounts_by_name.get(status.name)
        if mount is None:
            yield status
        elif (status.kind, status.path) != (mount.kind, mount.path):
            detail = f"the configuration has {mount.kind} at this path, the node has {status.kind} at {status.path}"
            yield _absent_mount(mount, detail, now)
        else:
            yield replace(status, required=mount.required)
    reported = {status.name for status in statuses}
    for mount in expected:
        if mount.name not in reported:
            yield _absent_mount(mount, "it is in the configuration, but not in the node's bundle", now)


def _absent_mount(mount: Mount, detail: str, now: float) -> MountStatus:
    return MountStatus(
        mount.name, mount.kind, mount.path, MountState.ABSENT, required=mount.required, checked_at=now, detail=detail
    )


def format_duration(seconds: float) -> str:
    """Format a duration like `20 min`, `3 h`, `56 years`."""
    for unit, length in (("years", 365.25 * 86400), ("days", 86400.0), ("h", 3600.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 60:.0f} min"


def _describe_failed_check(returncode: Optional[int], stderr: str) -> str:
    if returncode in (126, 127):
        return "hyperpod-kit is not installed on it: its lifecycle script did not complete"
    message = "no message"
    if stderr.strip():
        message = last_line_or_nothing_word(stderr)
    return f"the check on the node exited {returncode}: {message}"
