"""What a person waits for before a command begins: processor time of starting it, beside Python itself and click.

    python lab/programs/start_up.py [--repeat 10] [--json]

Best of N for each, because everything else that the machine does only adds. Bar: 0.2 s of processor time.
Exit codes: 0 within the bar, 1 not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BAR = 0.2
PROGRAM = [sys.executable, "-m", "hyperpod_kit.cli.main"]
CASES = {
    "python alone": [sys.executable, "-c", "pass"],
    "python with click": [sys.executable, "-c", "import click"],
    "hyperpod-kit --version": [*PROGRAM, "--version"],
    "hyperpod-kit --help": [*PROGRAM, "--help"],
    "hyperpod-kit create-cluster --help": [*PROGRAM, "create-cluster", "--help"],
    "hyperpod-kit job --help": [*PROGRAM, "job", "--help"],
    "a key press: hyperpod-kit val<TAB>": PROGRAM,
}
COMPLETING = {"_HYPERPOD_KIT_COMPLETE": "bash_complete", "COMP_WORDS": "hyperpod-kit val", "COMP_CWORD": "1"}


def processor_seconds(argv: list[str], extra_environment: dict[str, str]) -> float:
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        argv,
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **extra_environment},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure_best(name: str, argv: list[str], repeat: int) -> float:
    """Seconds of the fastest of so many runs."""
    extra_environment = {}
    if "TAB" in name:
        extra_environment = COMPLETING
    return min(processor_seconds(argv, extra_environment) for _ in range(repeat))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=10, help="runs of each")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    args = parser.parse_args()
    best = {name: measure_best(name, argv, args.repeat) for name, argv in CASES.items()}
    slow = [name for name, value in best.items() if value > BAR]
    if args.json:
        print(json.dumps({"seconds": best, "bar": BAR, "within": not slow}))
    else:
        for name, value in best.items():
            print(f"{name:40} {value:.3f} s")
        verdict = "kept"
        if slow:
            verdict = f"missed by {', '.join(slow)}"
        print(f"bar {BAR} s: {verdict}")
    if slow:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
