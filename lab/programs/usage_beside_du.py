"""`storage usage` beside `du` on one tree, in turn.

    python lab/programs/usage_beside_du.py TREE [--runs N] [--cold] [--make]

Prints the seconds of each run, their medians, and what each took of the processors. `--cold` (root) drops the page
cache before each run, `--make` makes TREE first: a million empty files in 2,441 directories.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS, STEPS, FILES = 40, 60, 417
WALK = "import sys; from hyperpod_kit.cli.main import run_command_line; sys.exit(run_command_line(sys.argv[1:]))"


def create_test_tree(tree: Path) -> None:
    """Create a tree of a million empty files. Raises FileExistsError."""
    for number in range(RUNS * STEPS):
        directory = tree / f"run{number // STEPS:02}" / f"step{number % STEPS:04}"
        directory.mkdir(parents=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        for file in range(min(FILES, 1_000_000 - number * FILES)):
            os.close(os.open(f"shard-{file:06}.bin", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
        os.close(handle)


def time_command(argv: list[str], cold: bool) -> tuple[float, float]:
    """Seconds by the clock, and of the processors."""
    if cold:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        with tempfile.TemporaryDirectory() as empty:  # the program itself is not what is measured
            subprocess.run([*argv[:-1], empty], stdout=subprocess.DEVNULL, check=True)
    before, started_at = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    after, finished_at = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    return finished_at - started_at, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--make", action="store_true")
    args = parser.parse_args()
    if args.make:
        create_test_tree(args.tree)
    programs = {
        "storage usage": [sys.executable, "-c", WALK, "storage", "usage", "--fresh", str(args.tree)],
        "du -s": ["du", "-s", str(args.tree)],
    }
    time_command(programs["du -s"], False)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(args.runs):
        for name, argv in programs.items():
            samples[name].append(time_command(argv, args.cold))
    for name, rows in samples.items():
        clock, cpu = (statistics.median(row[at] for row in rows) for at in (0, 1))
        every = " ".join(f"{row[0]:.2f}" for row in rows)
        print(f"{name:14} median {clock:.2f} s, processors {cpu:.2f} s: {every}")


if __name__ == "__main__":
    main()
