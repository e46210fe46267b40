"""Mount reports as a table for people and as one object for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from hyperpod_kit.remote.validate_mounts import NodeReport

if TYPE_CHECKING:
    from rich.table import Table

STYLES = {"ok": "green", "slow": "yellow"}


def to_json(cluster: str, reports: Sequence[NodeReport], checked_at: float) -> dict[str, Any]:
    """The whole answer. `checked_at`: Unix seconds."""
    return {
        "cluster": cluster,
        "checked_at": checked_at,
        "healthy": all(report.healthy for report in reports),
        "nodes": [report.to_dict() for report in reports],
    }


def table(cluster: str, reports: Sequence[NodeReport], now: float) -> Table:
    """A row for each mount of each node, one for each node that did not answer."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=f"mounts of cluster {cluster}", title_justify="left")
    for column in ("node", "group", "mount", "path", "state", "mounted", "checked"):
        grid.add_column(column, overflow="fold", no_wrap=column in ("node", "state", "checked"))
    for report in reports:
        first = (report.target.instance_id, report.target.group)
        if report.error:
            grid.add_row(*first, "-", "-", Text("no answer", "bold red"), Text(report.error), "-")
        elif not report.mounts:
            grid.add_row(*first, "-", "-", "none", "this role carries no mounts", "-")
        for mount in report.mounts:
            style = STYLES.get(mount.state, "bold red" if mount.required else "yellow")
            grid.add_row(
                *first,
                mount.name,
                mount.path,
                Text(mount.state if mount.required else f"{mount.state} (optional)", style),
                Text(mount.source or mount.detail or "-"),
                age(now - mount.checked_at) if mount.checked_at else "-",
            )
        grid.add_section()
    return grid


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
