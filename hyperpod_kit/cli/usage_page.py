"""`storage usage --html`: directories as areas, and the tables below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, NamedTuple, Sequence

from hyperpod_kit.cli import html_page
from hyperpod_kit.cli.html_page import text
from hyperpod_kit.cli.storage_usage_show import size

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
    left: float
    top: float
    width: float
    height: float


def page(found: Sequence[UsageReport], top: int) -> str:
    """One document for all places."""
    return html_page.page("Who fills the storage", "\n".join(_place(one, top) for one in found))


def treemap(values: Sequence[tuple[str, float]], width: float, height: float) -> list[Area]:
    """Areas in proportion, nearly squares: Bruls, Huizing, van Wijk, "Squarified Treemaps" (2000)."""
    left_over = sorted(((name, value) for name, value in values if value > 0), key=lambda pair: -pair[1])
    total = sum(value for _, value in left_over)
    scale = width * height / total if total else 0.0
    areas: list[Area] = []
    x = y = 0.0
    while left_over:
        side = min(width - x, height - y)
        row: list[tuple[str, float]] = []
        while left_over and (not row or _worst([*row, left_over[0]], side, scale) <= _worst(row, side, scale)):
            row.append(left_over.pop(0))
        thick = sum(value for _, value in row) * scale / side if side > 0 else 0.0
        at = 0.0
        across = width - x >= height - y
        for name, value in row:
            long = value * scale / thick if thick else 0.0
            box = (x, y + at, thick, long) if across else (x + at, y, long, thick)
            areas.append(Area(name, value, *box))
            at += long
        x, y = (x + thick, y) if across else (x, y + thick)
    return areas


def _worst(row: Sequence[tuple[str, float]], side: float, scale: float) -> float:
    """The longest rectangle of a row, as length over breadth."""
    values = [value * scale for _, value in row]
    whole = sum(values)
    if whole <= 0 or side <= 0:
        return float("inf")
    return max(side**2 * max(values) / whole**2, whole**2 / (side**2 * min(values)))


def _place(one: UsageReport, top: int) -> str:
    room = ""
    if one.room is not None and one.room[0]:
        room = f", the file system is {1 - one.room[1] / one.room[0]:.0%} full ({size(one.room[1])} free)"
    unread = f"<p>{one.unread_count:,} directories could not be read.</p>" if one.unread_count else ""
    tables = "\n".join(_table(word, getattr(one, name), one.total, top) for name, word in TABLES if getattr(one, name))
    return (
        f"<h2>{text(one.root)}</h2><p>{one.total.entries:,} entries, {size(one.total.allocated)} on disk{room}.</p>"
        f"{unread}{_picture(one)}{tables}"
    )


def _picture(one: UsageReport) -> str:
    """Directories that lie right below the root, each an area; what lies in the root itself is one."""
    below = list(_below(one))
    shown, rest = below[:MOST], sum(value for _, value in below[MOST:])
    left = one.total.allocated - sum(value for _, value in below)
    shown += [(name, value) for name, value in (("others", rest), ("right here", left)) if value > 0]
    boxes = []
    for index, area in enumerate(treemap(shown, WIDTH, HEIGHT)):
        label = f"{area.name} {size(area.value)}"
        inside = ""
        if area.width > 60 and area.height > 18:
            letters = max(int(area.width / 7) - 1, 3)
            inside = f'<text x="{area.left + 6:.1f}" y="{area.top + 16:.1f}" fill="#fff">{text(label[:letters])}</text>'
        boxes.append(
            f'<g><title>{text(label)}</title><rect x="{area.left:.1f}" y="{area.top:.1f}" width="{area.width:.1f}" '
            f'height="{area.height:.1f}" fill="{COLOURS[index % len(COLOURS)]}" stroke="#fff"/>{inside}</g>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="directories by size">{"".join(boxes)}</svg>'


def _below(one: UsageReport) -> Iterator[tuple[str, float]]:
    top = one.root.rstrip("/")
    for name, total in one.directories.items():
        inner = name[len(top) + 1 :] if name.startswith(f"{top}/") else ""
        if inner and "/" not in inner.rstrip("/"):
            yield inner, float(total.allocated)


def _table(word: str, rows: dict[str, Total], whole: Total, top: int) -> str:
    lines = [
        f'<tr><td>{text(name)}</td><td class="n">{total.entries:,}</td><td class="n">{size(total.allocated)}</td>'
        f'<td class="n">{total.allocated / whole.allocated if whole.allocated else 0:.0%}</td></tr>'
        for name, total in list(rows.items())[:top]
    ]
    head = f'<tr><th>{word}</th><th class="n">entries</th><th class="n">on disk</th><th class="n">of all</th></tr>'
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"
