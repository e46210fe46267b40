"""No flake under load: every test that starts a process, many times beside others.

    PYTEST_ADDOPTS="-p tests.support.process_starts --record-starts=$PWD/build/process-starts.txt" make test
    python -m tests.support.load_proof [--rounds 20] [--at-once 8] [--rows build/load-proof.jsonl] [FILE…]

The first command finds these tests. In the second, so many files run at once that each waits for a processor most of
the time: they are each other's load, and no processor time is spent on load alone. Some rounds of a file share a
process, as its tests share one with others in the gate: the imports cost more than most files' tests. A row with the
commit is appended for each such series; a run that was interrupted goes on with the others. The last lines of pytest
stand in the row of a series that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Dict, List, Set, Tuple

from tests.suite.run import APART, INTERRUPTED, can_run_apart
from tests.support.process_starts import read_starts

CHECKOUT = Path(__file__).resolve().parents[2]
EVERY_TEST_IS_FULL = 5
"""What pytest exits with where no test of a file was selected."""
SECONDS = 7200
TOGETHER = 5
"""Rounds of a file in one process."""
LINES = 30
"""Of pytest's output, kept of a round that failed."""


def files(starts: Path) -> List[str]:
    """Test files with tests that start processes, without those that boot machines."""
    paths = {test.partition("::")[0] for test in read_starts(starts)}
    return sorted(path for path in paths if not path.startswith("tests/rehearsal/"))


def finished(rows: Path) -> Set[Tuple[str, int]]:
    """What has its row already."""
    if not rows.exists():
        return set()
    entries = [json.loads(line) for line in rows.read_text().splitlines()]
    return {(entry["file"], entry["round"]) for entry in entries}


def planned(chosen: List[str], rounds: int) -> List[Tuple[str, int, int]]:
    """File, first round, and how many rounds, of every series."""
    firsts = range(0, rounds, TOGETHER)
    return [(file, first, min(TOGETHER, rounds - first)) for first in firsts for file in chosen]


def commit() -> str:
    """Of the checkout; a proof of some hours may have rows of several."""
    argv = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True).stdout.strip()


def append(rows: Path, row: Dict[str, object]) -> None:
    with open(rows, "a") as opened:
        opened.write(json.dumps(row) + "\n")


def run(file: str, first: int, count: int, starts: Path, prefix: List[str]) -> Dict[str, object]:
    """One series of a file's rounds; a row."""
    options = ["-p", "no:cacheprovider", "-n", "0", "-m", "not full", "--keep-duplicates"]
    options += ["-p", "tests.support.process_starts", f"--only-starts={starts}"]
    pytest = [sys.executable, "-m", "pytest", *options, *[file] * count]
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
    row: Dict[str, object] = {"file": file, "round": first, "rounds": count, "outcome": outcome}
    row["seconds"] = round(time.monotonic() - begun, 1)
    row["load"] = round(load, 1)
    row["commit"] = commit()
    if outcome == "failed":
        row["output"] = output.splitlines()[-LINES:]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.load_proof")
    parser.add_argument("files", nargs="*", help="test files (all with tests that start processes)")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=8, help="files that run beside each other")
    parser.add_argument("--rows", type=Path, default=CHECKOUT / "build/load-proof.jsonl")
    parser.add_argument("--starts", type=Path, default=CHECKOUT / "build/process-starts.txt", help="the tests")
    options = parser.parse_args()
    if not options.starts.is_file():
        parser.error(f"no such file: {options.starts}. Record it with tests.support.process_starts.")
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    absent = [file for file in options.files if not (CHECKOUT / file).is_file()]
    if absent:
        parser.error(f"no such file: {', '.join(absent)}")
    plan = planned(options.files or files(options.starts), options.rounds)
    earlier = finished(options.rows)
    due = [(file, first, count) for file, first, count in plan if (file, first) not in earlier]
    # As in the gate: a /dev/shm and processes of its own for each.
    prefix = APART if can_run_apart() else []
    failed = 0
    pool = ThreadPoolExecutor(options.at_once)
    try:
        series = [pool.submit(run, file, first, count, options.starts, prefix) for file, first, count in due]
        for number, ended in enumerate(as_completed(series), len(plan) - len(due) + 1):
            row = ended.result()
            append(options.rows, row)
            failed += row["outcome"] == "failed"
            summary = f"{row['file']} {row['outcome']} in {row['seconds']} s"
            print(f"{number}/{len(plan)} from round {row['round']} on: {summary}", flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        pool.shutdown(cancel_futures=True)
    print(f"{failed} of these series failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
