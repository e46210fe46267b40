"""`storage usage --html`: directories as areas, and the tables below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, NamedTuple, Sequence

from hyperpod_kit.cli.views import html_page
from hyperpod_kit.cli.views.html_page import clean_and_escape_html
from hyperpod_kit.cli.views.storage_usage_show import (
    AGE_COLUMNS,
    age_rows_written_and_read,
    counted_noun,
    format_size,
    growth_lines,
)
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.storage.usage.report import Total, UsageReport

WIDTH, HEIGHT = 1000, 520
MOST = 60
"""Areas; what is smaller is one of them."""
COLOURS = ("#4c78a8", "#72b7b2", "#54a24b", "#b279a2", "#e45756", "#f58518", "#9d755d", "#79706e")
TABLES = (("users", "user"), ("groups", "group"), ("runs", "run"), ("directories", "directory"))


class Area(NamedTuple):
    """A rectangle of a treemap, in units of its picture."""

    name: str
    value: float
    x: float
    y: float
    width: float
    height: float


def render_usage_page(usage_reports: Sequence[UsageReport], top: int) -> str:
    """Make one document for all places."""
    return html_page.render_html_page(
        "Who fills the storage", "\n".join(_render_report(report, top) for report in usage_reports)
    )


def squarified_treemap(values: Sequence[tuple[str, float]], width: float, height: float) -> list[Area]:
    """Areas in proportion, nearly squares: Bruls, Huizing, van Wijk, "Squarified Treemaps" (2000)."""
    remaining = sorted(((name, value) for name, value in values if value > 0), key=lambda pair: -pair[1])
    total = sum(value for _, value in remaining)
    scale = 0.0
    if total:
        scale = width * height / total
    areas: list[Area] = []
    x = y = 0.0
    while remaining:
        side = min(width - x, height - y)
        row: list[tuple[str, float]] = []
        while remaining and (
            not row or _worst_aspect_ratio([*row, remaining[0]], side, scale) <= _worst_aspect_ratio(row, side, scale)
        ):
            row.append(remaining.pop(0))
        thick = 0.0
        if side > 0:
            thick = sum(value for _, value in row) * scale / side
        at = 0.0
        across = width - x >= height - y
        for name, value in row:
            long = 0.0
            if thick:
                long = value * scale / thick
            if across:
                box = (x, y + at, thick, long)
            else:
                box = (x + at, y, long, thick)
            areas.append(Area(name, value, *box))
            at += long
        if across:
            x, y = (x + thick, y)
        else:
            x, y = (x, y + thick)
    return areas


def _worst_aspect_ratio(row: Sequence[tuple[str, float]], side: float, scale: float) -> float:
    """The longest rectangle of a row, as length over breadth."""
    values = [value * scale for _, value in row]
    total = sum(values)
    if total <= 0 or side <= 0:
        return float("inf")
    return max(side**2 * max(values) / total**2, total**2 / (side**2 * min(values)))


def _render_report(report: UsageReport, top: int) -> str:
    room = ""
    if report.room is not None and report.room[0]:
        total, free = report.room
        room = f", the file system is {1 - free / total:.0%} full ({format_size(free)} free)"
    unread = ""
    if report.unread_count:
        unread = f"<p>{counted(report.unread_count, 'directory', 'directories', spec=',')} could not be read.</p>"
    growth = "".join(f"<p>{clean_and_escape_html(_as_sentence(line))}</p>" for line in growth_lines(report))
    tables = [_render_table(word, getattr(report, name), report, top) for name, word in TABLES if getattr(report, name)]
    return (
        f"<h2>{clean_and_escape_html(report.root)}</h2>"
        f"<p>{report.total.entries:,} {counted_noun(report)}, {format_size(report.total.allocated)} on disk{room}.</p>"
        f"{growth}{unread}{_render_treemap(report)}{_render_ages(report)}{''.join(tables)}"
    )


def _as_sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}."


def _render_ages(report: UsageReport) -> str:
    rows = age_rows_written_and_read(report)
    if not rows:
        return ""
    head = "".join(_render_cells("th", AGE_COLUMNS))
    lines = "".join(f"<tr>{''.join(_render_cells('td', row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _render_cells(tag: str, values: Sequence[str]) -> Iterator[str]:
    """The first is a name, the others are numbers."""
    for column, word in enumerate(values):
        kind = ""
        if column:
            kind = ' class="n"'
        yield f"<{tag}{kind}>{clean_and_escape_html(word)}</{tag}>"


def _render_treemap(report: UsageReport) -> str:
    """Directories that lie right below the root, each an area; what lies in the root itself is one."""
    below = list(_top_level_directory_sizes(report))
    shown, rest = below[:MOST], sum(value for _, value in below[MOST:])
    root_bytes = report.total.allocated - sum(value for _, value in below)
    shown += [(name, value) for name, value in (("others", rest), ("directly in it", root_bytes)) if value > 0]
    boxes = []
    for index, area in enumerate(squarified_treemap(shown, WIDTH, HEIGHT)):
        label = f"{area.name} {format_size(area.value)}"
        inside = ""
        if area.width > 60 and area.height > 18:
            caption = _fit_label(area, label)
            inside = (
                f'<text x="{area.x + 6:.1f}" y="{area.y + 16:.1f}" fill="#fff">{clean_and_escape_html(caption)}</text>'
            )
        boxes.append(
            f"<g><title>{clean_and_escape_html(label)}</title>"
            f'<rect x="{area.x:.1f}" y="{area.y:.1f}" width="{area.width:.1f}" '
            f'height="{area.height:.1f}" fill="{COLOURS[index % len(COLOURS)]}" stroke="#fff"/>{inside}</g>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="directories by size">{"".join(boxes)}</svg>'


def _fit_label(area: Area, label: str) -> str:
    """Return the label that fits into an area: the name with its size, the name, or its beginning; never
    part of a figure."""
    letters = max(int(area.width / 7) - 1, 3)
    if len(label) <= letters:
        return label
    if len(area.name) <= letters:
        return area.name
    return f"{area.name[: letters - 1]}…"


def _top_level_directory_sizes(report: UsageReport) -> Iterator[tuple[str, float]]:
    top = report.root.rstrip("/")
    for name, total in report.directories.items():
        inner = ""
        if name.startswith(f"{top}/"):
            inner = name[len(top) + 1 :]
        if inner and "/" not in inner.rstrip("/"):
            yield inner, float(total.allocated)


def _render_table(word: str, rows: dict[str, Total], report: UsageReport, top: int) -> str:
    if report.price is not None:
        priced = ["US dollars a month"]
    else:
        priced = []
    head = "".join(_render_cells("th", (word, "count", "on disk", "share", *priced)))
    lines = []
    for name, part in list(rows.items())[:top]:
        share = 0.0
        if report.total.allocated:
            share = part.allocated / report.total.allocated
        cost = report.monthly_cost_usd(part)
        costs = () if cost is None else (f"{cost:,.2f}",)
        cells = _render_cells("td", (name, f"{part.entries:,}", format_size(part.allocated), f"{share:.0%}", *costs))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    more = ""
    if len(rows) > top:
        more = f"<p>And {len(rows) - top:,} more.</p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{more}"
