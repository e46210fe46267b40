"""What is wrong with many nodes, said once for all that it is wrong with. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Iterator, Sequence

from hyperpod_kit.cluster.nodes import slurm_node_name
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.slurm.hostlist import compress
from hyperpod_kit.untrusted.text import counted

MOST_KINDS = 30
"""Kinds of trouble that are said one by one; a thousand different ones help nobody."""

NAMES_SHOWN = 160
"""Characters for the names of the nodes of one kind."""


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong with some nodes of one instance group.

    what: the words of the first of them; optional: whether those nodes count as healthy nevertheless.
    """

    group: str
    what: str
    hint: str
    nodes: tuple[NodeTarget, ...]
    optional: bool = False

    def sentence(self) -> str:
        """A line for a person: of one node with its id and address, of many with their names in Slurm."""
        end = ""
        if self.hint:
            end = f"; {self.hint}"
        if len(self.nodes) == 1:
            node = self.nodes[0]
            return f"{describe_node(node)}: {self.what}{end}"
        what = _with_node_names_replaced_by_it(self.what, self.nodes[0])
        return f"{len(self.nodes)} nodes of {self.group}: {what}{end}: {self.node_hostlist()}"

    def node_hostlist(self) -> str:
        """The nodes as a host list that scontrol takes, as far as it can be shown."""
        return format_shortened_hostlist([slurm_node_name(node.address) or node.instance_id for node in self.nodes])


def group_similar_problems(reports: Sequence[NodeReport]) -> list[Trouble]:
    """Group everything that is wrong, what most nodes have first."""
    members_by_key: dict[tuple[str, str, bool], list[tuple[NodeTarget, str, str]]] = {}
    for report in reports:
        for what, hint, optional in problems_with_hint_and_optional(report):
            key = (
                report.target.group,
                re.sub(r"\d+(\.\d+)?", "#", _with_node_names_replaced_by_it(what, report.target)),
                optional,
            )
            members_by_key.setdefault(key, []).append((report.target, what, hint))
    made = [
        Trouble(group, members[0][1], members[0][2], tuple(target for target, _, _ in members), optional)
        for (group, _, optional), members in members_by_key.items()
    ]
    return sorted(made, key=lambda trouble: (trouble.optional, -len(trouble.nodes)))


def problems_with_hint_and_optional(report: NodeReport) -> Iterator[tuple[str, str, bool]]:
    """Yield (what, hint, whether it is optional) of everything that is wrong with one node."""
    if report.error:
        yield report.error, report.hint, False
    for mount in report.mounts:
        if not mount.healthy:
            detail = ""
            if mount.detail:
                detail = f": {mount.detail}"
            optional = ""
            if not mount.required:
                optional = " (optional)"
            yield f"{mount.name} at {mount.path} is {mount.state}{optional}{detail}", "", not mount.required
        if mount.nearly_full:
            hint = f"what fills it: hyperpod-kit storage usage {mount.path}"
            yield f"warning: {mount.name} at {mount.path} is {mount.fullness_text or 'nearly full'}", hint, True
    for finding in report.slurm:
        prefix = "warning: "
        if finding.fault:
            prefix = ""
        yield f"{prefix}Slurm: {finding.detail}", finding.remedy, not finding.fault
    for warning in report.warnings:
        yield f"warning: {warning}", "", True


def describe_problems(reports: Sequence[NodeReport]) -> list[str]:
    """Describe each kind of trouble in one line, with what to do where that is known, and differing bundles in
    one more."""
    all_troubles = group_similar_problems(reports)
    lines = [trouble.sentence() for trouble in all_troubles[:MOST_KINDS]]
    if len(all_troubles) > MOST_KINDS:
        lines.append(
            f"and {counted(len(all_troubles) - MOST_KINDS, 'more kind of problem', 'more kinds of problems')}; "
            "--json lists all"
        )
    bundles: dict[str, int] = {}
    for report in reports:
        if report.bundle_id:
            bundles[report.bundle_id] = bundles.get(report.bundle_id, 0) + 1
    if len(bundles) > 1:
        most_used = sorted(bundles.items(), key=lambda item: (-item[1], item[0]))[:MOST_KINDS]
        named = ", ".join(f"{bundle} on {count}" for bundle, count in most_used)
        lines.append(f"nodes run different bundles: {named}; replace the nodes with the old bundle")
    return lines


def summarize_mount_health(reports: Sequence[NodeReport]) -> str:
    """Summarize the reports: `9 mounts on 3 nodes: 2 not healthy; 1 of 3 nodes are healthy`."""
    mounts = [mount for report in reports for mount in report.mounts]
    silent = sum(1 for report in reports if report.error)
    sick = sum(1 for mount in mounts if not mount.healthy)
    faulty = sum(1 for report in reports if any(finding.fault for finding in report.slurm))
    if sick:
        parts = [f"{sick} not healthy"]
    else:
        parts = []
    if faulty:
        parts += [f"Slurm faults on {counted(faulty, 'node')}"]
    if silent:
        parts += [f"{counted(silent, 'node')} without an answer"]
    well = sum(report.healthy for report in reports)
    healthy_part = ""
    if parts:
        healthy_part = f"; {well} of {len(reports)} nodes are healthy"
    count = f"{counted(len(mounts), 'mount')} on {counted(len(reports), 'node')}"
    return f"{count}: {', '.join(parts) or 'all healthy'}{healthy_part}"


def describe_node(node: NodeTarget) -> str:
    """A node with everything that it is known by."""
    address = ""
    if node.address:
        address = f" ({node.address})"
    return f"{node.group} {node.instance_id}" + address


def format_shortened_hostlist(names: Iterable[str]) -> str:
    """Return a host list of these names, the first ones where all are too many."""
    listed = sorted(set(names))
    text = compress(listed)
    if len(text) <= NAMES_SHOWN:
        return text
    shown = len(listed)
    while shown > 1 and len(text) > NAMES_SHOWN:
        shown = shown * 2 // 3
        text = compress(listed[:shown])
    return f"{text} and {len(listed) - shown} more"


def _with_node_names_replaced_by_it(text: str, node: NodeTarget) -> str:
    """Return the text with the name, address and id of this node replaced by "it"."""
    # Looked for first: the pattern takes its time with long words, and a node may say what it likes.
    if node.address and node.address in text:
        text = re.sub(rf"(\S+@)?(?<![\d.]){re.escape(node.address)}(?![\d.])(:\d+)?", "it", text)
    return text.replace(slurm_node_name(node.address) or node.instance_id, "it").replace(node.instance_id, "it")
