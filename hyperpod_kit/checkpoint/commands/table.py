"""Plain text columns for people; no width is guessed, so a line is cut by nobody."""

from __future__ import annotations

from typing import List, Sequence

from hyperpod_kit.untrusted.text import clean_one_line


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return lines of columns under their heads; the columns in `right` (by index) are aligned to the right."""
    cells = [list(heads), *[[clean_one_line(cell) for cell in row] for row in rows]]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    lines: List[str] = []
    for row in cells:
        padded = [
            cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def format_byte_count(value: float) -> str:
    """Return a number of bytes as people read it; powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            if unit == "B":
                return f"{value:,.0f} {unit}"
            return f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
