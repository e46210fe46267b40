"""Mount reports as a table for people and as one object for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Sequence

from hyperpod_kit.remote.validate_mounts import NodeReport

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STYLES = {"ok": "green", "slow": "yellow"}
WIDE = ("node", "group", "mount", "path", "state", "mounted", "checked")
NARROW = 132
"""Columns that the wide form needs before it begins to fold ids."""


def to_json(cluster: str, reports: Sequence[NodeReport], checked_at: float) -> dict[str, Any]:
    """The whole answer. `checked_at`: Unix seconds."""
    return {
        "cluster": cluster,
        "checked_at": checked_at,
        "healthy": all(report.healthy for report in reports),
        "nodes": [report.to_dict() for report in reports],
    }


def table(cluster: str, reports: Sequence[NodeReport], now: float, width: int) -> Table:
    """A row for each mount of each node, one for each node that did not answer.

    `now`: Unix seconds; `width`: columns of the screen. Below NARROW a row has two lines, group under node and source
    under path.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    narrow = width < NARROW
    shape = box.SIMPLE_HEAD if narrow else box.HEAVY_HEAD
    grid = Table(title=f"mounts of cluster {cluster}", title_justify="left", box=shape)
    columns = ("node", "mount", "path", "state", "checked") if narrow else WIDE
    for column in columns:
        grid.add_column(column, overflow="fold", no_wrap=column in ("node", "state", "checked"))
    for report in reports:
        node, group = report.target.instance_id, report.target.group
        for name, path, state, source, checked in _cells(report, now):
            if narrow:
                below = Text(f"\n{source}", "dim")
                grid.add_row(
                    Text(node).append(f"\n{group}", "dim"), Text(name), Text(path).append(below), state, checked
                )
            else:
                grid.add_row(node, group, Text(name), Text(path), state, Text(source), checked)
        grid.add_section()
    return grid


def _cells(report: NodeReport, now: float) -> Iterator[tuple[str, str, Text, str, str]]:
    """(mount, path, state, what is mounted or why nothing is, age) of every row of one node."""
    from rich.text import Text

    if report.error:
        yield "-", "-", Text("no answer", "bold red"), report.error, "-"
    elif not report.mounts:
        yield "-", "-", Text("none"), "this role carries no mounts", "-"
    for mount in report.mounts:
        style = STYLES.get(mount.state, "bold red" if mount.required else "yellow")
        state = Text(mount.state if mount.required else f"{mount.state} (optional)", style)
        checked = age(now - mount.checked_at) if mount.checked_at else "-"
        yield mount.name, mount.path, state, mount.source or mount.detail or "-", checked


def problems(reports: Sequence[NodeReport]) -> list[str]:
    """One line for everything that is wrong, with what to do where that is known."""
    lines = []
    for report in reports:
        where = f"{report.target.group} {report.target.instance_id}" + (
            f" ({report.target.address})" if report.target.address else ""
        )
        if report.error:
            lines.append(f"{where}: {report.error}" + (f"; {report.hint}" if report.hint else ""))
        for mount in report.mounts:
            if not mount.healthy:
                lines.append(
                    f"{where}: {mount.name} at {mount.path} is {mount.state}"
                    + (f": {mount.detail}" if mount.detail else "")
                )
    bundles = sorted({report.bundle_id for report in reports if report.bundle_id})
    if len(bundles) > 1:
        lines.append(f"nodes run different bundles: {', '.join(bundles)}; replace those with the old one")
    return lines


def summary(reports: Sequence[NodeReport]) -> str:
    """`9 mounts on 3 nodes: all healthy`."""
    mounts = [mount for report in reports for mount in report.mounts]
    silent = sum(1 for report in reports if report.error)
    sick = sum(1 for mount in mounts if not mount.healthy)
    parts = [f"{sick} not healthy"] if sick else []
    parts += [f"{silent} node{'s' * (silent != 1)} without an answer"] if silent else []
    return (
        f"{len(mounts)} mounts on {len(reports)} node{'s' * (len(reports) != 1)}: {', '.join(parts) or 'all healthy'}"
    )


def age(seconds: float) -> str:
    """`3 s ago`; clocks that differ a little do not make it negative."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"
