"""The rows of finished parts, in a file: a run of the whole suite that was interrupted goes on behind them.

A part that has passed is not run again until the whole suite has, or until a file of the checkout changes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Sequence

COMPLETE = "all"
"""The part's name in the row that ends a run of all parts."""
_SUMMED = ("passed", "failed", "skipped", "seconds", "processor_seconds")


@dataclass(frozen=True)
class Row:
    """What came of a part.

    Attributes:
        tree: what git calls the contents of the checkout that it was run on.
        processor_seconds: of its processes and all that they waited for; machines and daemons are not among them.
    """

    part: str
    tree: str
    status: int
    passed: int
    failed: int
    skipped: int
    seconds: float
    processor_seconds: float
    when: str


def total(rows: Sequence[Row]) -> Row:
    """The row that ends a run of all parts."""
    counts = {word: sum(getattr(row, word) for row in rows) for word in _SUMMED}
    return Row(part=COMPLETE, tree=rows[-1].tree, status=0, when=rows[-1].when, **counts)


def append(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as rows:
        rows.write(json.dumps(dataclasses.asdict(row)) + "\n")


def passed(path: Path, tree: str) -> Dict[str, Row]:
    """The parts of the run in progress that have passed on this tree, by name."""
    last: Dict[str, Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = Row(**json.loads(line))
        except (ValueError, TypeError):
            continue  # a row that an interrupted run has not finished
        if row.part == COMPLETE:
            last.clear()
        else:
            last[row.part] = row
    return {row.part: row for row in last.values() if row.tree == tree and row.status == 0}


def tree_of(checkout: Path) -> str:
    """What git calls the contents of the checkout, with what is not committed and without what git ignores.

    Empty where this is no checkout of git's.
    """
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-index-") as directory:
        environment = {**os.environ, "GIT_INDEX_FILE": str(Path(directory, "index"))}
        for command in (["add", "--all"], ["write-tree"]):
            git = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout), *command]
            try:
                answer = subprocess.run(git, env=environment, text=True, capture_output=True, timeout=120)
            except (OSError, subprocess.TimeoutExpired):
                return ""
            if answer.returncode != 0:
                return ""
    return answer.stdout.strip()
