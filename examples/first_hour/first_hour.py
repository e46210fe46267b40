"""The first hour with hyperpod-kit, typed by a program: from a clone without a .venv to an own job that came back.

    python examples/first_hour/first_hour.py [--skip STAGE ...] [--keep]

Each stage is a list of commands as a person types them, with a check of what they left. A table of minutes and commands
ends it. The caches of pip and of the rehearsal are those of this machine: on one without them the first two stages
download about a gigabyte. `--skip clone` uses the Python that runs this program. `demo` needs root. Exit codes: 0 every
stage did what it should, 1 one did not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

REPOSITORY = Path(__file__).resolve().parents[2]
KILL_AT = 25
"""The step at which a rank of the own job is killed; a save is made at every tenth."""
LONGEST = 1800.0
"""Seconds that a command gets."""


class StageError(Exception):
    """A command ended otherwise than it should, or left something else."""


@dataclass
class Hour:
    """`directory`: where everything is typed, with the own files and `kit`, the clone, or a link to the repository."""

    directory: Path
    environment: dict[str, str]
    facts: dict[str, str] = field(default_factory=dict)

    def type_command(self, command: str, exit_code: int = 0) -> str:
        """Run a command in bash and return what it printed. Raises StageError."""
        print(f"$ {command}", flush=True)
        argv = ["bash", "-c", command]
        done = subprocess.run(
            argv,
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
        )
        print(done.stdout, end="", flush=True)
        if done.returncode != exit_code:
            raise StageError(f"`{command}` ended with {done.returncode}, expected {exit_code}")
        return done.stdout


@dataclass(frozen=True)
class Stage:
    """`commands`: what is typed; `run`: types them and returns what came of it in a few words."""

    name: str
    commands: tuple[str, ...]
    run: Callable[[Hour, tuple[str, ...]], str]


def set_up(hour: Hour, commands: tuple[str, ...]) -> str:
    for command in commands:
        output = hour.type_command(command)
    return output.strip()


def run_demo(hour: Hour, commands: tuple[str, ...]) -> str:
    (command,) = commands
    output = hour.type_command(command)
    if "bit-identical" not in output:
        raise StageError("the demo does not say that the resumed run has the weights of an undisturbed one")
    return "a machine killed, the job resumed, weights bit-identical"


def configure(hour: Hour, commands: tuple[str, ...]) -> str:
    init, mistake, refused, remedy, accepted = commands
    hour.type_command(init)
    hour.type_command(mistake)
    output = hour.type_command(refused, exit_code=1)
    error = re.search(r"^error (HPK-\w+)", output, re.MULTILINE)
    if error is None:
        raise StageError("validate does not name the code of the mistake")
    hour.facts["code"] = error[1]
    hour.type_command(remedy)
    hour.type_command(accepted)
    return f"{error[1]} found, mended, valid"


def train(hour: Hour, commands: tuple[str, ...]) -> str:
    """Start the own job, kill a rank of it as from another terminal, and wait for its end."""
    job, kill, *others = commands
    print(f"$ {job}", flush=True)
    process = subprocess.Popen(
        ["bash", "-c", job],
        cwd=hour.directory,
        env=hour.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        begun, lost = _watch_and_kill(process, kill)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    if process.returncode != 0:
        raise StageError(f"`{job}` ended with {process.returncode}, expected 0")
    if len(begun) != 2 or not 0 < begun[1] <= lost:
        raise StageError(f"its starts began at the steps {begun}, expected 0 and one before step {lost} of the kill")
    for command in others:
        hour.type_command(command)
    status = json.loads((hour.directory / "status.json").read_text())
    attempts = len(status["attempts"])
    if attempts != 2:
        raise StageError(f"job status knows {attempts} attempts, expected 2")
    return f"killed at step {lost}, resumed at step {begun[1]}, {attempts} attempts"


def _watch_and_kill(process: subprocess.Popen[str], kill: str) -> tuple[list[int], int]:
    """The steps at which rank 0 began, and the last one before the kill."""
    begun: list[int] = []
    ranks: dict[str, str] = {}
    lost = -1
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if start := re.match(r"rank (\d+) pid (\d+) begins at step (\d+)", line):
            ranks[start[1]] = start[2]
            if start[1] == "0":
                begun.append(int(start[3]))
        step = re.match(r"step (\d+) loss", line)
        if step and lost < 0 and int(step[1]) >= KILL_AT:
            lost = int(step[1])
            command = kill.replace("PID", ranks["1"])
            print(f"$ {command}  # in another terminal", flush=True)
            subprocess.run(["bash", "-c", command], check=True)
    process.wait()
    return begun, lost


def explain(hour: Hour, commands: tuple[str, ...]) -> str:
    (command,) = commands
    code = hour.facts.get("code", "HPK-C003")
    output = hour.type_command(command.replace("CODE", code))
    if not output.startswith(code) or "remedy:" not in output:
        raise StageError(f"explain {code} has no remedy")
    return f"{code} and its remedy"


INIT = (
    "hyperpod-kit init --name ml --region us-west-2 --execution-role arn:aws:iam::111122223333:role/HyperPod "
    "--subnet subnet-0123456789abcdef0 --security-group sg-0123456789abcdef0 --workers 4 --data-bucket my-training-data"
)
"""What `init` asks for on a terminal, as flags."""

STAGES = (
    Stage(
        "clone",
        (f"git clone --quiet {REPOSITORY} kit", "cd kit && ./setup.sh venv admin torch", "hyperpod-kit --version"),
        set_up,
    ),
    Stage("demo", ("make -C kit demo",), run_demo),
    Stage(
        "configuration",
        (
            INIT,
            """sed -i 's/"read_only": true/"read_only": "yes"/' provisioning_parameters.json""",
            "hyperpod-kit validate",
            """sed -i 's/"read_only": "yes"/"read_only": true/' provisioning_parameters.json""",
            "hyperpod-kit validate",
        ),
        configure,
    ),
    Stage(
        "own script",
        (
            "hyperpod-kit job run --local --checkpoint-root run1 -- torchrun --nproc-per-node 2 fsdp2.py",
            "kill -9 PID",
            "hyperpod-kit job status --root run1 --json > status.json",
            "hyperpod-kit checkpoint ls run1",
        ),
        train,
    ),
    Stage("explain", ("hyperpod-kit explain CODE",), explain),
)


def begin(directory: Path, cloned: bool) -> Hour:
    """An empty directory with the own script, and the PATH of somebody who has activated the clone's .venv."""
    shutil.copy(Path(__file__).with_name("fsdp2.py"), directory)
    programs = Path(sys.executable).parent
    if cloned:
        programs = directory / "kit/.venv/bin"
    else:
        (directory / "kit").symlink_to(REPOSITORY)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    if cloned:
        environment.pop("PYTHONPATH", None)
    return Hour(directory, environment)


def table(rows: list[tuple[str, int, float, str]]) -> str:
    lines = [f"{'stage':<14} {'commands':>8} {'minutes':>8}  result"]
    lines += [f"{name:<14} {count:>8} {seconds / 60:>8.1f}  {result}" for name, count, seconds, result in rows]
    commands, seconds = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return "\n".join([*lines, f"{'all':<14} {commands:>8} {seconds / 60:>8.1f}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [stage.name for stage in STAGES]
    parser.add_argument("--skip", action="append", default=[], choices=names, help="leave a stage out; repeatable")
    parser.add_argument("--keep", action="store_true", help="leave the directory with the clone and its .venv")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hyperpod-kit-first-hour-"))
    rows: list[tuple[str, int, float, str]] = []
    hour = begin(directory, "clone" not in args.skip)
    try:
        for stage in STAGES:
            if stage.name in args.skip:
                continue
            start = time.monotonic()
            result = stage.run(hour, stage.commands)
            rows.append((stage.name, len(stage.commands), time.monotonic() - start, result))
    except (StageError, subprocess.SubprocessError) as err:
        print(f"failed: {err}", file=sys.stderr)
        return 1
    finally:
        if not args.keep:
            shutil.rmtree(directory, ignore_errors=True)
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
