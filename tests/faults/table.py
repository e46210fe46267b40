"""The table of docs/faults.md: a row a fault, a column a profile, written by the tests that made the fault."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from hyperpod_rehearsal.records.profiles import STOCK
from tests.faults.profiles import PROFILES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
LOOPBACK = "nodes on loopback"
NOT_RUN = "not run"
COLUMNS = ["fault", "what happens", *PROFILES, "test"]


@dataclass
class FaultRow:
    """A line of the page. `seconds`: profile -> what was measured there, in words."""

    fault: str
    happens: str
    test: str
    seconds: Dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, cells: List[str], columns: Sequence[str] = COLUMNS) -> FaultRow:
        """`columns`: those of the page that it is from, which may not know a profile yet."""
        fault, happens, *seconds, test = cells
        return cls(fault, happens, test, dict(zip(columns[2:-1], seconds)))

    def line(self) -> str:
        cells = [self.fault, self.happens, *(self.seconds.get(name, NOT_RUN) for name in PROFILES), self.test]
        return "| " + " | ".join(cells) + " |"


@dataclass
class Table:
    """Rows by fault, of one run; those of tests that did not run, and other columns, stay as the page has them."""

    rows: Dict[str, FaultRow] = field(default_factory=dict)

    def row(
        self, profile: str, test: str, fault: str, happens: str, seconds: Optional[float] = None, more: str = ""
    ) -> None:
        """`seconds`: from the fault to the first resumed step, None where nothing resumes."""
        shown = "–" if seconds is None else f"{seconds:.1f}"
        self.rows[fault] = FaultRow(fault, happens, f"`{test}`", {profile: shown + (f" ({more})" if more else "")})

    def write(self, profile: str, page: Path = PAGE, *, loopback: bool = False) -> None:
        """A run's column into the page, between its marks; known rows in their place, new ones at the end.

        What happens is said once, as `stock` has it; a profile in which it is something else says so in its own cell.
        loopback: measured without machines, which is said, and does not take the place of what machines measured.
        """
        text = page.read_text()
        before, _, rest = text.partition(BEGIN)
        old, _, after = rest.partition(END)
        rows: Dict[str, FaultRow] = {}
        columns: List[str] = []
        for line in old.splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            columns = columns or cells
            if cells and len(cells) == len(columns) and cells[0] not in ("fault", "---"):
                rows[cells[0]] = FaultRow.read(cells, columns)
        for fault, new in self.rows.items():
            known = rows.setdefault(fault, replace(new, seconds={}))
            cell = new.seconds[profile]
            before_it = known.seconds.get(profile, NOT_RUN)
            if loopback and before_it != NOT_RUN and LOOPBACK not in before_it:
                continue
            if loopback:
                cell += f", {LOOPBACK}"
            if profile == STOCK.name:
                known.happens = new.happens
            elif new.happens != known.happens:
                cell += f": {new.happens}"
            known.test, known.seconds[profile] = new.test, cell
        head = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"
        body = "\n".join(row.line() for row in rows.values())
        page.write_text(f"{before}{BEGIN}\n{head}\n{body}\n{END}{after}")

    def show(self) -> str:
        return "\n".join(f"{next(iter(row.seconds.values())):>16}  {row.fault}" for row in self.rows.values())
