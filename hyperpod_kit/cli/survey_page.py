"""`validate-mounts --html`: the fleet as a grid, a square for each mount of each node, and what is wrong in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hyperpod_kit.cli import html_page
from hyperpod_kit.cli.html_page import text
from hyperpod_kit.model.states import STATES, MountState
from hyperpod_kit.remote import groups

if TYPE_CHECKING:
    from hyperpod_kit.model.mount_status import MountStatus
    from hyperpod_kit.remote.fleet_status import FleetStatus
    from hyperpod_kit.remote.node_report import NodeReport

COLOURS: dict[str, str] = {MountState.OK: "#1a7f37", MountState.SLOW: "#bf8700", MountState.FULL: "#bc4c00"}
BAD, SILENT, NEARLY_FULL = "#cf222e", "#6e7781", "#8250df"
SQUARE, ROW, NAME, COLUMN = 16, 22, 210, 420


def page(cluster: str, look: FleetStatus) -> str:
    """The whole document."""
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(look.at))
    problems = "".join(f"<li>{text(line)}</li>" for line in groups.problems(look.reports))
    listed = f"<ul>{problems}</ul>" if problems else ""
    return html_page.page(
        f"Mounts of {cluster}",
        f"<p>{text(groups.summary(look.reports))}; asked at {when}, in {look.seconds:.0f} s.</p>"
        f"{_grid(look)}{_key(look)}{listed}",
    )


def _grid(look: FleetStatus) -> str:
    """Two columns of nodes; a node that did not answer has one grey square."""
    across = 1000 // COLUMN
    rows = []
    for index, report in enumerate(look.reports):
        x, y = index % across * COLUMN, index // across * ROW
        name = f"{report.target.group} {report.target.instance_id}"
        label = f'<text x="{x}" y="{y + 13}" fill="currentColor">{text(name, 30)}</text>'
        rows.append(label + "".join(_squares(report, name, x + NAME, y)))
    height = (len(look.reports) + across - 1) // across * ROW + 4
    return f'<svg viewBox="0 0 1000 {max(height, ROW)}" role="img" aria-label="nodes and mounts">{"".join(rows)}</svg>'


def _squares(report: NodeReport, name: str, left: int, top: int) -> list[str]:
    if report.error:
        return [_square(left, top, SILENT, f"{name}: {report.error}")]
    return [
        _square(
            left + index * (SQUARE + 3),
            top,
            _colour(mount),
            ", ".join(
                words for words in (f"{name} {mount.path}: {mount.state}", mount.detail, mount.fullness) if words
            ),
        )
        for index, mount in enumerate(report.mounts)
    ]


def _colour(mount: MountStatus) -> str:
    return NEARLY_FULL if mount.healthy and mount.nearly_full else COLOURS.get(mount.state, BAD)


def _square(left: int, top: int, colour: str, words: str) -> str:
    box = f'<rect x="{left}" y="{top}" width="{SQUARE}" height="{SQUARE}" rx="3" fill="{colour}"/>'
    return f"<g><title>{text(words)}</title>{box}</g>"


def _key(look: FleetStatus) -> str:
    states = {str(mount.state) for report in look.reports for mount in report.mounts}
    named: list[tuple[str, str]] = [(state, COLOURS.get(state, BAD)) for state in STATES if state in states]
    if any(mount.healthy and mount.nearly_full for report in look.reports for mount in report.mounts):
        named.append(("nearly full", NEARLY_FULL))
    if any(report.error for report in look.reports):
        named.append(("no answer", SILENT))
    words = "".join(f'<span><i style="background:{colour}"></i> {text(state)}</span>' for state, colour in named)
    return f'<p class="key">{words}</p>'
