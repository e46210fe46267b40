"""Tables for people: heads in capitals, two blanks between columns, no lines. The one style of every command.

On a terminal a table is as wide as the screen at most: columns that fold are broken into lines, then columns that may
be missing are left out and named below the table, and last a row becomes a paragraph. No text is cut. In a file or a
pipe a row is a line. Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import sys
import time
import unicodedata
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from hyperpod_kit.untrusted.text import clean_one_line

CELL = 2000
"""Characters of a line of a cell: AWS's longest messages fit."""

_GAP = "  "
_COMFORTABLE_FOLD = 20
_NARROWEST_FOLD = 10


class Column(NamedTuple):
    """A column. folds: its texts may be broken into lines; may_miss: it is left out where there is no room.

    The first column identifies the row and does neither.
    """

    head: str
    is_number: bool = False
    folds: bool = False
    may_miss: bool = False


class Cell(NamedTuple):
    """One line of a cell. `style`: words such as `bold red`, of which a terminal makes colours."""

    text: str
    style: str = ""


Paint = Callable[[str, str], str]
CellLines = Tuple[Cell, ...]


def _no_paint(text: str, style: str) -> str:
    return text


class TextTable:
    """A table that is filled row by row and then formatted for a width."""

    def __init__(self, columns: Sequence[Union[Column, str]], title: str = "") -> None:
        self.title = title
        self._columns = [_clean_head(column) for column in columns]
        if self._columns[0].folds or self._columns[0].may_miss:
            raise ValueError(f"{self._columns[0].head} stands first and identifies the row")
        self._rows: List[List[CellLines]] = []

    def add_row(self, *cells: Union[str, Cell, Sequence[Cell]]) -> None:
        """Add a row, with a cell for each column. Raises ValueError for another number of cells."""
        if len(cells) != len(self._columns):
            raise ValueError(f"{len(cells)} cells for {len(self._columns)} columns")
        self._rows.append([_clean_lines(cell) for cell in cells])

    def format(self, width: Optional[int] = None, paint: Paint = _no_paint) -> str:
        """Return the table without a line end. `width`: columns of the screen, None for a file or a pipe."""
        lines: List[str] = []
        if self.title:
            lines.append(clean_one_line(self.title, CELL))
        if width is None:
            return "\n".join([*lines, *self._format_lines_for_pipe()])
        layout = self._fit(width)
        if layout is None:
            return "\n".join([*lines, *self._format_paragraphs(paint)])
        lines += self._format_columns(layout, paint)
        missing = [column.head for number, column in enumerate(self._columns) if number not in layout]
        if missing:
            lines.append(f"not shown in {width} columns: {', '.join(missing)}")
        return "\n".join(lines)

    def _format_lines_for_pipe(self) -> List[str]:
        flat = [[(Cell(" ".join(line.text for line in cell)),) for cell in row] for row in self._rows]
        plain = TextTable(self._columns)
        plain._rows = [list(row) for row in flat]
        return plain._format_columns(plain._natural_widths(), _no_paint)

    def _natural_widths(self) -> Dict[int, int]:
        """Return the width that each column has with its texts unbroken."""
        return {
            number: max(
                [_display_width(column.head)]
                + [_display_width(line.text) for row in self._rows for line in row[number]]
            )
            for number, column in enumerate(self._columns)
        }

    def _fit(self, width: int) -> Optional[Dict[int, int]]:
        """Return the columns that are shown with their widths, None where not even the narrowest columns fit."""
        natural = self._natural_widths()
        shown = list(natural)
        while True:
            widths = self._fold(natural, shown, width, _COMFORTABLE_FOLD)
            if widths is not None:
                return widths
            unneeded = [number for number in shown if self._columns[number].may_miss]
            if not unneeded:
                return self._fold(natural, shown, width, _NARROWEST_FOLD)
            shown.remove(unneeded[-1])

    def _fold(self, natural: Dict[int, int], shown: List[int], width: int, least: int) -> Optional[Dict[int, int]]:
        """Return widths that fit, with folded columns of at least `least`; None where there are none."""
        widths = {number: natural[number] for number in shown}
        folding = sorted(
            (number for number in shown if self._columns[number].folds), key=lambda number: natural[number]
        )
        room = width - len(_GAP) * (len(shown) - 1) - sum(widths[n] for n in shown if n not in folding)
        for index, number in enumerate(folding):
            share = room // (len(folding) - index)
            widths[number] = min(natural[number], share)
            if widths[number] < min(natural[number], least):
                return None
            room -= widths[number]
        if room < 0:
            return None
        return widths

    def _format_columns(self, widths: Dict[int, int], paint: Paint) -> List[str]:
        lines = [self._join({number: Cell(self._columns[number].head) for number in widths}, widths, paint)]
        for row in self._rows:
            cells = {number: _wrap_lines(row[number], widths[number]) for number in widths}
            for index in range(max(len(cell) for cell in cells.values())):
                line = {number: cell[index] if index < len(cell) else Cell("") for number, cell in cells.items()}
                lines.append(self._join(line, widths, paint))
        return lines

    def _join(self, cells: Dict[int, Cell], widths: Dict[int, int], paint: Paint) -> str:
        parts = []
        for number, cell in cells.items():
            padding = " " * (widths[number] - _display_width(cell.text))
            text = cell.text
            if text and cell.style:
                text = paint(text, cell.style)
            if self._columns[number].is_number:
                parts.append(padding + text)
            else:
                parts.append(text + padding)
        return _GAP.join(parts).rstrip()

    def _format_paragraphs(self, paint: Paint) -> List[str]:
        """Return each row as a line with its first cell and a line for each other one that has a text."""
        lines = []
        for row in self._rows:
            for number, cell in enumerate(row):
                text = " ".join(paint(line.text, line.style) if line.style else line.text for line in cell)
                if number == 0:
                    lines.append(text)
                elif text:
                    lines.append(f"  {self._columns[number].head}: {text}".replace("  : ", "  "))
        return lines


def _clean_head(column: Union[Column, str]) -> Column:
    if isinstance(column, str):
        column = Column(column)
    return column._replace(head=clean_one_line(column.head, CELL))


def _clean_lines(cell: Union[str, Cell, Sequence[Cell]]) -> CellLines:
    lines: Sequence[Cell]
    if isinstance(cell, str):
        lines = (Cell(cell),)
    elif isinstance(cell, Cell):
        lines = (cell,)
    else:
        lines = cell
    return tuple(Cell(clean_one_line(line.text, CELL), line.style) for line in lines)


def _wrap_lines(cell: CellLines, width: int) -> List[Cell]:
    import textwrap  # dear, and few tables need it

    lines: List[Cell] = []
    for line in cell:
        if _display_width(line.text) <= width:
            lines.append(line)
            continue
        lines += [Cell(part, line.style) for part in textwrap.wrap(line.text, width, break_on_hyphens=False)]
    return lines


def _display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def format_rows(columns: Sequence[Union[Column, str]], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """Return rows as a table for standard output: as wide as the terminal that it is, or as the texts."""
    table = TextTable(columns, title)
    for row in rows:
        table.add_row(*row)
    return table.format(screen_width())


def screen_width() -> Optional[int]:
    """Return the columns of the terminal that standard output is, None where it is none."""
    import shutil

    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def format_utc(seconds: float) -> str:
    """Return a moment (Unix seconds) like `2026-01-31 12:00:00Z`. Raises as time.gmtime."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
