"""Mount reports as a table for people and as one object for programs."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

from hyperpod_kit.command_line.tables import Cell, Column, TextTable
from hyperpod_kit.model.states import STATES, MountState
from hyperpod_kit.remote.reports.node_report import NodeReport

STYLES: dict[str, str] = {MountState.OK: "green", MountState.SLOW: "yellow"}
NO_MOUNTS = "none"
FEW = 12
"""Nodes that have a row for each of their mounts; of more, a row says how many nodes are in which state."""


def to_json(cluster: str, reports: Sequence[NodeReport], checked_at: float) -> dict[str, Any]:
    """Return the reports of a cluster as one JSON object. `checked_at`: Unix seconds."""
    return {
        "cluster": cluster,
        "checked_at": checked_at,
        "healthy": all(report.healthy for report in reports),
        "nodes": [report.to_dict() for report in reports],
    }


def mount_counts_table(cluster: str, reports: Sequence[NodeReport]) -> TextTable:
    """Return a table with a row for each mount of each instance group and a column for each state that occurs:
    the numbers of nodes."""
    tally: dict[tuple[str, str, str], dict[str, int]] = {}
    silent: dict[str, int] = {}
    filling: dict[tuple[str, str, str], int] = {}
    for report in reports:
        group = report.target.group
        silent[group] = silent.get(group, 0) + bool(report.error)
        for mount in report.mounts:
            states = tally.setdefault((group, mount.name, mount.path), {})
            states[mount.state] = states.get(mount.state, 0) + 1
            if mount.nearly_full:
                key = (group, mount.name, mount.path)
                filling[key] = filling.get(key, 0) + 1
        if not report.error and not report.mounts:
            states = tally.setdefault((group, "-", "-"), {})
            states[NO_MOUNTS] = states.get(NO_MOUNTS, 0) + 1
    for group in silent:
        if not any(counted_group == group for counted_group, _, _ in tally):
            tally[group, "-", "-"] = {}
    present_states = {state for states in tally.values() for state in states}
    columns = [state for state in (*STATES, NO_MOUNTS) if state in present_states]
    quiet = any(silent.values())
    heads = ["nodes", *columns, *(["nearly full"] if filling else []), *(["no answer"] if quiet else [])]
    numbers = [Column(head.upper(), is_number=True) for head in heads]
    grid = TextTable(("MOUNT", "GROUP", "PATH", *numbers), f"mounts of cluster {cluster}")
    for (group, name, path), states in sorted(tally.items()):
        cells = [Cell(str(states.get(state, "")), STYLES.get(state, "bold red")) for state in columns]
        if filling:
            cells.append(Cell(str(filling.get((group, name, path), "")), "bold yellow"))
        silent_cells = [Cell(str(silent[group] or ""), "bold red")] if quiet else []
        total = sum(states.values()) + silent[group]
        grid.add_row(name, group, path, str(total), *cells, *silent_cells)
    return grid


def mount_rows_table(cluster: str, reports: Sequence[NodeReport], now: float) -> TextTable:
    """Return a table with a row for each mount of each node, and one for each node that did not answer.

    `now`: Unix seconds.
    """
    columns = (
        "NODE",
        "MOUNT",
        "PATH",
        "STATE",
        "CHECKED",
        Column("GROUP", may_miss=True),
        Column("USED", may_miss=True),
        Column("MOUNTED", folds=True),
    )
    grid = TextTable(columns, f"mounts of cluster {cluster}")
    for report in reports:
        for name, path, state, full, source, checked in _mount_rows_of_node(report, now):
            grid.add_row(report.target.instance_id, name, path, state, checked, report.target.group, full, source)
    return grid


def _mount_rows_of_node(report: NodeReport, now: float) -> Iterator[tuple[str, str, Cell, Cell, str, str]]:
    """Yield (mount, path, state, how full it is, what is mounted or why nothing is, age) of every row of one
    node."""
    if report.error:
        yield "-", "-", Cell("no answer", "bold red"), Cell(""), report.error, "-"
    elif not report.mounts:
        yield "-", "-", Cell(NO_MOUNTS), Cell(""), "this role has no mounts", "-"
    for mount in report.mounts:
        style = STYLES.get(mount.state, "bold red" if mount.required else "yellow")
        label: str = mount.state
        if not mount.required:
            label = f"{mount.state} (optional)"
        state = Cell(label, style)
        checked = "-"
        if mount.checked_at:
            checked = format_age(now - mount.checked_at)
        full = Cell(mount.fullness_text.replace(" full", ""), "bold yellow" if mount.nearly_full else "dim")
        yield mount.name, mount.path, state, full, mount.source or mount.detail or "-", checked


def format_age(seconds: float) -> str:
    """Format an age like `3 s ago`; clocks that differ a little do not make it negative."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"
