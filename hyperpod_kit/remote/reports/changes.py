"""What became of a fleet between two looks, grouped as troubles are. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, Sequence

from hyperpod_kit.cluster.nodes import slurm_node_name
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.remote.reports.groups import (
    MOST_KINDS,
    describe_node,
    format_shortened_hostlist,
    group_similar_problems,
)
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.untrusted.text import counted

NO_ANSWER = "no answer"


def describe_changes(before: Sequence[NodeReport], after: Sequence[NodeReport]) -> list[str]:
    """Describe what changed, one line a kind: new trouble, nodes that are well again, nodes that came and went."""
    old = {report.target.instance_id: report for report in before}
    new = {report.target.instance_id: report for report in after}
    fresh = [_without_earlier_problems(report, _node_problems(old.get(report.target.instance_id))) for report in after]
    lines = [f"new: {trouble.sentence()}" for trouble in group_similar_problems(fresh)]
    lines += _describe_nodes("healthy again", [report.target for report in after if _has_recovered(old, report)])
    lines += _describe_nodes("joined", [report.target for key, report in new.items() if key not in old])
    lines += _describe_nodes("left", [report.target for key, report in old.items() if key not in new])
    if len(lines) <= MOST_KINDS:
        return lines
    return [*lines[:MOST_KINDS], f"and {counted(len(lines) - MOST_KINDS, 'more change')}"]


def _node_problems(report: NodeReport | None) -> set[str]:
    """Collect what is wrong with a node, without what differs from report to report."""
    if report is None:
        return set()
    states = {_mount_problem(mount) for mount in report.mounts if not mount.healthy}
    states |= {f"Slurm {finding.code}" for finding in report.slurm}
    if report.error:
        silent = {NO_ANSWER}
    else:
        silent = set()
    return states | set(report.warnings) | (silent)


def _mount_problem(mount: MountStatus) -> str:
    return f"{mount.name} {mount.state}"


def _without_earlier_problems(report: NodeReport, earlier: set[str]) -> NodeReport:
    """Return the report without the problems that were known before."""
    mounts = tuple(mount for mount in report.mounts if _mount_problem(mount) not in earlier)
    warnings = tuple(warning for warning in report.warnings if warning not in earlier)
    slurm = tuple(finding for finding in report.slurm if f"Slurm {finding.code}" not in earlier)
    error = report.error
    if NO_ANSWER in earlier:
        error = ""
    return replace(report, mounts=mounts, warnings=warnings, slurm=slurm, error=error)


def _has_recovered(old: dict[str, NodeReport], report: NodeReport) -> bool:
    earlier = old.get(report.target.instance_id)
    return earlier is not None and bool(_node_problems(earlier)) and not _node_problems(report)


def _describe_nodes(what: str, nodes: Sequence[NodeTarget]) -> Iterator[str]:
    groups: dict[str, list[NodeTarget]] = {}
    for node in nodes:
        groups.setdefault(node.group, []).append(node)
    for group, members in sorted(groups.items()):
        if len(members) == 1:
            yield f"{what}: {describe_node(members[0])}"
        else:
            names = format_shortened_hostlist(slurm_node_name(node.address) or node.instance_id for node in members)
            yield f"{what}: {len(members)} nodes of {group}: {names}"
