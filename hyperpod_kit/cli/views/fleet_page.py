"""`validate-mounts --html`: the fleet as a grid, a square for each mount of each node, and what is wrong in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hyperpod_kit.cli.views import html_page
from hyperpod_kit.cli.views.html_page import clean_and_escape_html
from hyperpod_kit.model.states import STATES, MountState
from hyperpod_kit.remote.reports import groups

if TYPE_CHECKING:
    from hyperpod_kit.model.mount_status import MountStatus
    from hyperpod_kit.remote.reports.fleet_status import FleetStatus
    from hyperpod_kit.remote.reports.node_report import NodeReport

COLOURS: dict[str, str] = {MountState.OK: "#1a7f37", MountState.SLOW: "#bf8700", MountState.FULL: "#bc4c00"}
BAD, SILENT, NEARLY_FULL = "#cf222e", "#6e7781", "#8250df"
SQUARE, ROW, NAME, COLUMN = 16, 22, 210, 420


def render_fleet_page(cluster: str, status: FleetStatus) -> str:
    """Make the whole document."""
    when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(status.at))
    problems = "".join(f"<li>{clean_and_escape_html(line)}</li>" for line in groups.describe_problems(status.reports))
    listed = ""
    if problems:
        listed = f"<ul>{problems}</ul>"
    return html_page.render_html_page(
        f"Mounts of {cluster}",
        f"<p>{clean_and_escape_html(groups.summarize_mount_health(status.reports))}; asked at {when}, in "
        f"{status.seconds:.0f} s.</p>"
        f"{_render_grid(status)}{_render_legend(status)}{listed}",
    )


def _render_grid(status: FleetStatus) -> str:
    """Draw two columns of nodes; a node that did not answer has one grey square."""
    across = 1000 // COLUMN
    rows = []
    for index, report in enumerate(status.reports):
        x, y = index % across * COLUMN, index // across * ROW
        name = f"{report.target.group} {report.target.instance_id}"
        label = f'<text x="{x}" y="{y + 13}" fill="currentColor">{clean_and_escape_html(name, 30)}</text>'
        rows.append(label + "".join(_mount_squares(report, name, x + NAME, y)))
    height = (len(status.reports) + across - 1) // across * ROW + 4
    return f'<svg viewBox="0 0 1000 {max(height, ROW)}" role="img" aria-label="nodes and mounts">{"".join(rows)}</svg>'


def _mount_squares(report: NodeReport, name: str, x: int, y: int) -> list[str]:
    if report.error:
        return [_svg_square(x, y, SILENT, f"{name}: {report.error}")]
    return [
        _svg_square(
            x + index * (SQUARE + 3),
            y,
            _mount_colour(mount),
            ", ".join(
                part for part in (f"{name} {mount.path}: {mount.state}", mount.detail, mount.fullness_text) if part
            ),
        )
        for index, mount in enumerate(report.mounts)
    ]


def _mount_colour(mount: MountStatus) -> str:
    if mount.healthy and mount.nearly_full:
        return NEARLY_FULL
    return COLOURS.get(mount.state, BAD)


def _svg_square(x: int, y: int, colour: str, title: str) -> str:
    box = f'<rect x="{x}" y="{y}" width="{SQUARE}" height="{SQUARE}" rx="3" fill="{colour}"/>'
    return f"<g><title>{clean_and_escape_html(title)}</title>{box}</g>"


def _render_legend(status: FleetStatus) -> str:
    states = {str(mount.state) for report in status.reports for mount in report.mounts}
    named: list[tuple[str, str]] = [(state, COLOURS.get(state, BAD)) for state in STATES if state in states]
    if any(mount.healthy and mount.nearly_full for report in status.reports for mount in report.mounts):
        named.append(("nearly full", NEARLY_FULL))
    if any(report.error for report in status.reports):
        named.append(("no answer", SILENT))
    legend = "".join(
        f'<span><i style="background:{colour}"></i> {clean_and_escape_html(state)}</span>' for state, colour in named
    )
    return f'<p class="key">{legend}</p>'
