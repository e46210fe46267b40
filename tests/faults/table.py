"""The table of docs/faults.md: a row a fault, written by the tests that made it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
LOOPBACK = "nodes on loopback"
HEAD = "| fault | what happens | fault to first resumed step, s | test |\n| --- | --- | --- | --- |"


@dataclass
class Table:
    """Rows by fault; those of tests that did not run stay as the page has them."""

    rows: Dict[str, List[str]] = field(default_factory=dict)

    def row(self, test: str, fault: str, happens: str, seconds: Optional[float] = None, more: str = "") -> None:
        """`seconds`: from the fault to the first resumed step, None where nothing resumes."""
        shown = "–" if seconds is None else f"{seconds:.1f}"
        self.rows[fault] = [fault, happens, shown + (f" ({more})" if more else ""), f"`{test}`"]

    def write(self, page: Path = PAGE, *, loopback: bool = False) -> None:
        """Into the page, between its marks; known rows in their place, new ones at the end.

        loopback: measured without machines, which is said, and does not take the place of what machines measured.
        """
        text = page.read_text()
        before, _, rest = text.partition(BEGIN)
        old, _, after = rest.partition(END)
        rows = {}
        for line in old.splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) == 4 and cells[0] not in ("fault", "---"):
                rows[cells[0]] = cells
        for fault, cells in self.rows.items():
            if not loopback:
                rows[fault] = cells
            elif LOOPBACK in rows.get(fault, [LOOPBACK] * 4)[2]:
                rows[fault] = [*cells[:2], f"{cells[2]}, {LOOPBACK}", cells[3]]
        body = "\n".join("| " + " | ".join(cells) + " |" for cells in rows.values())
        page.write_text(f"{before}{BEGIN}\n{HEAD}\n{body}\n{END}{after}")

    def show(self) -> str:
        return "\n".join(f"{cells[2]:>16}  {cells[0]}" for cells in self.rows.values())
