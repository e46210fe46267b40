"""Mount reports as a table for people and as one object for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Sequence

from hyperpod_kit.model.states import STATES, MountState
from hyperpod_kit.remote.reports.node_report import NodeReport

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STYLES: dict[str, str] = {MountState.OK: "green", MountState.SLOW: "yellow"}
NO_MOUNTS = "none"
WIDE: Sequence[str] = ("node", "group", "mount", "path", "state", "used", "mounted", "checked")
NARROW_COLUMNS: Sequence[str] = ("node", "mount", "path", "state", "checked")
NARROW = 132
"""Columns that the wide form needs before it begins to fold ids."""

NARROWEST = 72
"""Columns below which ids are folded: cut ones would be none."""

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


def mount_counts_table(cluster: str, reports: Sequence[NodeReport]) -> Table:
    """Return a table with a row for each mount of each instance group and a column for each state that occurs:
    the numbers of nodes."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

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
    grid = Table(title=f"mounts of cluster {cluster}", title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("group", "mount", "path"):
        grid.add_column(column, overflow="fold")
    for column in ["nodes", *columns, *(["nearly full"] if filling else []), *(["no answer"] if quiet else [])]:
        grid.add_column(column, justify="right", no_wrap=True)
    for (group, name, path), states in sorted(tally.items()):
        cells = [Text(str(states.get(state, "")), STYLES.get(state, "bold red")) for state in columns]
        if filling:
            cells.append(Text(str(filling.get((group, name, path), "")), "bold yellow"))
        silent_cells = [Text(str(silent[group] or ""), "bold red")] if quiet else []
        total = sum(states.values()) + silent[group]
        grid.add_row(Text(group), Text(name), Text(path), str(total), *cells, *silent_cells)
    return grid


def mount_rows_table(cluster: str, reports: Sequence[NodeReport], now: float, width: int) -> Table:
    """Return a table with a row for each mount of each node, and one for each node that did not answer.

    `now`: Unix seconds; `width`: columns of the screen. Below NARROW a row has two lines, group under node
    and source under path.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    narrow = width < NARROW
    shape, columns = box.HEAVY_HEAD, WIDE
    if narrow:
        shape, columns = box.SIMPLE_HEAD, NARROW_COLUMNS
    grid = Table(title=f"mounts of cluster {cluster}", title_justify="left", box=shape)
    for column in columns:
        grid.add_column(column, overflow="fold", no_wrap=width >= NARROWEST and column in ("node", "state", "checked"))
    for report in reports:
        node, group = report.target.instance_id, report.target.group
        for name, path, state, full, source, checked in _mount_rows_of_node(report, now):
            if narrow:
                below = Text(f"\n{source}", "dim")
                if full.plain:
                    state = state.append("\n").append_text(full)
                grid.add_row(
                    Text(node).append(f"\n{group}", "dim"), Text(name), Text(path).append(below), state, checked
                )
            else:
                grid.add_row(node, group, Text(name), Text(path), state, full, Text(source), checked)
        grid.add_section()
    return grid


def _mount_rows_of_node(report: NodeReport, now: float) -> Iterator[tuple[str, str, Text, Text, str, str]]:
    """Yield (mount, path, state, how full it is, what is mounted or why nothing is, age) of every row of one
    node."""
    from rich.text import Text

    if report.error:
        yield "-", "-", Text("no answer", "bold red"), Text(), report.error, "-"
    elif not report.mounts:
        yield "-", "-", Text(NO_MOUNTS), Text(), "this role carries no mounts", "-"
    for mount in report.mounts:
        style = STYLES.get(mount.state, "bold red" if mount.required else "yellow")
        label: str = mount.state
        if not mount.required:
            label = f"{mount.state} (optional)"
        state = Text(label, style)
        checked = "-"
        if mount.checked_at:
            checked = format_age(now - mount.checked_at)
        full = Text(mount.fullness_text.replace(" full", ""), "bold yellow" if mount.nearly_full else "dim")
        yield mount.name, mount.path, state, full, mount.source or mount.detail or "-", checked


def format_age(seconds: float) -> str:
    """Format an age like `3 s ago`; clocks that differ a little do not make it negative."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"
