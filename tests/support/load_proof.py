"""No flake under load: every test file that starts a process, many times beside others.

    python -m tests.support.load_proof [--rounds 20] [--at-once 8] [--rows build/load-proof.jsonl] [FILE…]

So many files run at once that each waits for a processor most of the time: they are each other's load, and no processor
time is spent on load alone. A row is appended for each (file, round); a run that was interrupted goes on with the
others. The last lines of pytest stand in the row of a round that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Dict, List, Set, Tuple

from tests.suite.run import APART, INTERRUPTED, can_run_apart

CHECKOUT = Path(__file__).resolve().parents[2]
STARTS_A_PROCESS = re.compile(r"subprocess|warm\.|multiprocessing|os\.fork|PrivateSlurm|\bPopen\b")
EVERY_TEST_IS_FULL = 5
"""What pytest exits with where no test of a file was selected."""
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


def append(rows: Path, row: Dict[str, object]) -> None:
    with open(rows, "a") as opened:
        opened.write(json.dumps(row) + "\n")


def run(file: str, number: int, prefix: List[str]) -> Dict[str, object]:
    """One round of a file; a row."""
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-m", "not full", file]
    begun = time.monotonic()
    load = os.getloadavg()[0]
    try:
        done = subprocess.run(
            [*prefix, *pytest],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = 124, "it did not end"
    outcome = "passed" if code in (0, EVERY_TEST_IS_FULL) else "failed"
    row: Dict[str, object] = {"file": file, "round": number, "outcome": outcome}
    row["seconds"] = round(time.monotonic() - begun, 1)
    row["load"] = round(load, 1)
    if outcome == "failed":
        row["output"] = output.splitlines()[-LINES:]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.load_proof")
    parser.add_argument("files", nargs="*", help="test files (all that start processes)")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=8, help="files that run beside each other")
    parser.add_argument("--rows", type=Path, default=CHECKOUT / "build/load-proof.jsonl")
    options = parser.parse_args()
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    absent = [file for file in options.files if not (CHECKOUT / file).is_file()]
    if absent:
        parser.error(f"no such file: {', '.join(absent)}")
    plan = [(file, number) for number in range(options.rounds) for file in options.files or files()]
    earlier = finished(options.rows)
    due = [round_of_file for round_of_file in plan if round_of_file not in earlier]
    # As in the gate: a /dev/shm and processes of its own for each.
    prefix = APART if can_run_apart() else []
    failed = 0
    pool = ThreadPoolExecutor(options.at_once)
    try:
        rounds = [pool.submit(run, file, number, prefix) for file, number in due]
        for count, finished_round in enumerate(as_completed(rounds), len(plan) - len(due) + 1):
            row = finished_round.result()
            append(options.rows, row)
            failed += row["outcome"] == "failed"
            summary = f"{row['file']} {row['outcome']} in {row['seconds']} s"
            print(f"{count}/{len(plan)} round {row['round']}: {summary}", flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        pool.shutdown(cancel_futures=True)
    print(f"{failed} of these rounds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
