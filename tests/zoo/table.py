"""What came of the zoo's cases: rows of a file, and the table of the documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.zoo.group import SAME

BEGIN, END = "<!-- made by `make zoo` -->", "<!-- end of what `make zoo` made -->"
CONTROLS = ("DCP", "state_dict")
REFUSED = "refused: StateNotSerializable"
"""At the save: a checkpoint that is there and cannot be restored is worse."""
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_restored_by_torch(row: Row) -> bool:
    return any(row.get(control) == SAME for control in CONTROLS)


def ours(row: Row) -> str:
    return str(row.get("ours", "not tried"))


def worse(rows: list[Row]) -> list[Row]:
    """Cases that torch's own loading restores and ours does not, without a refusal."""
    return [row for row in rows if is_restored_by_torch(row) and ours(row) != SAME]


def line(row: Row) -> str:
    if row["program"] != SAME:
        return f"no program  {row['layout']:12} {row['case']}: {row['program'][:160]}"
    control = SAME if is_restored_by_torch(row) else " / ".join(str(row.get(name))[:60] for name in CONTROLS)
    return (
        f"{'WORSE ' if worse([row]) else ''}{row['layout']:12} {row['case']}: torch {control}; ours {ours(row)[:300]}"
    )


def rendered(rows: list[Row]) -> str:
    layouts = list(dict.fromkeys(row["layout"] for row in rows))
    packages = list(dict.fromkeys(row["case"].partition(":")[0] for row in rows))
    lines = [
        "| package | ranks | programs | torch restores | ours restores | of torch's, refused | worse |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for package in packages:
        for layout in layouts:
            some = [row for row in rows if row["case"].startswith(f"{package}:") and row["layout"] == layout]
            programs = [row for row in some if row["program"] == SAME]
            if not programs:
                continue
            refused = [row for row in worse(programs) if ours(row).startswith(REFUSED)]
            lines.append(
                f"| {package} | {layout} | {len(programs)} | {sum(map(is_restored_by_torch, programs))} "
                f"| {sum(ours(row) == SAME for row in programs)} | {_names(refused)} "
                f"| {_names([row for row in worse(programs) if row not in refused])} |"
            )
    return "\n".join(lines)


def _names(rows: list[Row]) -> str:
    return ", ".join(row["case"].partition(": ")[2] for row in rows) or "none"


def put(path: Path, text: str) -> None:
    """Between the two marks of the page."""
    before, _, rest = path.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
