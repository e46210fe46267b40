#!/usr/bin/env python3
"""Seconds of the optional step `training_environment` beside the same commands typed by hand, with the same wheels.

    python lab/programs/training_environment.py DIR --lock requirements.lock --wheels WHEELS [--uv UV] [--rounds 3]

Rounds take turns: by hand with venv and pip, the step with pip, by hand with uv, the step with uv, and at last the step
again, which finds the version and checks it. WHEELS is a directory with the files of the lock (`pip download
--require-hashes -r requirements.lock -d WHEELS`), so that no network is measured. DIR lies on the file system to
measure. Prints medians, with the least and the most: seconds, and seconds of processors.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hyperpod_kit.bundle.sources import locate_sources
from hyperpod_kit.bundle.wheel import build_wheel
from hyperpod_kit.node.environments import maker
from hyperpod_kit.node.environments.maker import EnvironmentSpec
from hyperpod_kit.node.slurm.lease import LeaseOwner

PIP = ("-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check")


def by_hand(place: Path, lock: Path, wheel: Path, uv: str) -> None:
    """What a person types."""
    python = f"{place}/bin/python"
    if uv:
        commands = [
            [uv, "venv", "--quiet", "--python", sys.executable, str(place)],
            [uv, "pip", "install", "--quiet", "--no-cache", "--python", python, "--require-hashes", "-r", str(lock)],
            [uv, "pip", "install", "--quiet", "--no-cache", "--python", python, "--no-deps", str(wheel)],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", str(place)],
            [python, *PIP, "--require-hashes", "-r", str(lock)],
            [python, *PIP, "--no-deps", str(wheel)],
        ]
    for command in commands:
        # In a session of its own, as the step's commands are: a scheduler may share processors by sessions.
        subprocess.run(command, check=True, cwd="/", start_new_session=True)


def step(directory: Path, lock: Path, wheel: Path, uv: str) -> None:
    """What the step does as the owner of the environment."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    node = LeaseOwner("i-0", "this-machine")
    spec = EnvironmentSpec(
        str(directory), os.uname().machine, str(lock), digest, str(wheel), sys.executable, uv, node, 1200.0
    )
    maker.ensure_version(spec, lambda text: None)


def measure(work: Callable[[], None]) -> tuple[float, float]:
    """(seconds, seconds of processors by this process and those that it has started)."""
    started, before = time.monotonic(), sum(os.times()[:4])
    work()
    return time.monotonic() - started, sum(os.times()[:4]) - before


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--uv", default=shutil.which("uv") or "")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    measured: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        top = Path(temporary)
        lock = top / "requirements.lock"
        lock.write_text(f"--no-index\n--find-links {arguments.wheels.resolve()}\n{arguments.lock.read_text()}")
        name, data = build_wheel(locate_sources())
        wheel = top / name
        wheel.write_bytes(data)
        for number in range(arguments.rounds):
            for tool, uv in (("pip", ""), ("uv", arguments.uv)):
                if tool == "uv" and not uv:
                    continue
                place = top / f"{tool}-{number}"
                makes = partial(step, place / "step", lock, wheel, uv)
                rows: dict[str, Callable[[], None]] = {
                    f"{tool}, by hand": partial(by_hand, place / "hand", lock, wheel, uv),
                    f"{tool}, the step": makes,
                    f"{tool}, the step on a node that finds it": makes,
                }
                for label, work in rows.items():
                    measured.setdefault(label, []).append(measure(work))
                shutil.rmtree(place)
    for label, pairs in measured.items():
        columns = [f"{statistics.median(row):6.1f} ({min(row):.1f} to {max(row):.1f})" for row in zip(*pairs)]
        print(f"{label:42} {columns[0]:24} {columns[1]}")


if __name__ == "__main__":
    main()
