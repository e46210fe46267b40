"""No flake under load: every test file that starts a process, many times beside busy processors.

    python -m tests.support.load_proof [--rounds 20] [--busy 4] [--rows build/load-proof.jsonl] [FILE…]

A row is appended for each (file, round); a run that was interrupted goes on with the others. The last lines of pytest
stand in the row of a round that failed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import List, Set, Tuple

CHECKOUT = Path(__file__).resolve().parents[2]
STARTS_A_PROCESS = re.compile(r"subprocess|warm\.|multiprocessing|os\.fork|PrivateSlurm|\bPopen\b")
BUSY = [sys.executable, "-c", "while True: pass"]
SECONDS = 3600
LINES = 30
"""Of pytest's output, kept of a round that failed."""


def files() -> List[str]:
    """Test files that start processes, without those that boot machines."""
    found = []
    for path in sorted((CHECKOUT / "tests").rglob("test_*.py")):
        place = str(path.relative_to(CHECKOUT))
        if not place.startswith("tests/rehearsal/") and STARTS_A_PROCESS.search(path.read_text()):
            found.append(place)
    return found


def finished(rows: Path) -> Set[Tuple[str, int]]:
    """What has its row already."""
    if not rows.exists():
        return set()
    entries = [json.loads(line) for line in rows.read_text().splitlines()]
    return {(entry["file"], entry["round"]) for entry in entries}


def run(file: str, number: int) -> dict[str, object]:
    """One round of a file; a row."""
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-m", "not full", file]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            argv, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = 124, "it did not end"
    # 5: all tests of the file are `full`.
    outcome = "passed" if code in (0, 5) else "failed"
    row: dict[str, object] = {"file": file, "round": number, "outcome": outcome}
    row["seconds"] = round(time.monotonic() - begun, 1)
    if outcome == "failed":
        row["output"] = output.splitlines()[-LINES:]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.load_proof")
    parser.add_argument("files", nargs="*", help="test files (all that start processes)")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--busy", type=int, default=4, help="processes that compute all the time")
    parser.add_argument("--rows", type=Path, default=CHECKOUT / "build/load-proof.jsonl")
    options = parser.parse_args()
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    absent = [file for file in options.files if not (CHECKOUT / file).is_file()]
    if absent:
        parser.error(f"no such file: {', '.join(absent)}")
    plan = [(file, number) for number in range(options.rounds) for file in options.files or files()]
    earlier = finished(options.rows)
    failed = 0
    with ExitStack() as stack:
        for _ in range(options.busy):
            stack.callback(subprocess.Popen(BUSY).kill)
        for place, (file, number) in enumerate(plan, 1):
            if (file, number) in earlier:
                continue
            row = run(file, number)
            with open(options.rows, "a") as rows:
                rows.write(json.dumps(row) + "\n")
            failed += row["outcome"] == "failed"
            print(f"{place}/{len(plan)} round {number}: {file} {row['outcome']} in {row['seconds']} s", flush=True)
    print(f"{failed} of these rounds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
