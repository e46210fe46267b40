"""A child that works on a root that hangs is left behind without its caller's streams; what it prints still comes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.untrusted import owner
from tests.support.rows import full
from tests.support.serving_fuse import serving_mount, silence

REPOSITORY = Path(__file__).resolve().parents[3]
IN_TIME = 100.0
"""Seconds that a command may take which would wait for ever."""

PROGRAM = """
import sys
from hyperpod_kit.cli import main
from hyperpod_kit.untrusted import owner
owner.uid_to_act_as_if_root.__defaults__ = owner.run_as_user_in_child.__defaults__ = (owner.OwnerLimits(1.0, 2.0),)
sys.exit(main.run_command_line(sys.argv[1:]))
"""


@pytest.fixture
def hanging_root(tmp_path: Path) -> Iterator[Path]:
    with serving_mount(tmp_path / "mount") as daemon:
        root = tmp_path / "mount" / "root"
        root.mkdir()
        silence(daemon)
        yield root


@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize(
    "line",
    [
        "checkpoint ls ROOT",
        "checkpoint get ROOT w --out OUT",
        "checkpoint import ROOT --from dcp --out OUT",
        "job status --root ROOT",
        *full(
            "checkpoint verify ROOT",
            "checkpoint prune ROOT --latest 1",
            "checkpoint repair ROOT",
            "checkpoint diff ROOT/seq-000001.step-0000000010.e1-a ROOT",
            "checkpoint export ROOT --to safetensors --out OUT",
            "checkpoint import ROOT/w.safetensors --from safetensors --out OUT",
            "job goodput --root ROOT",
            "job prove ROOT",
        ),
    ],
)
def test_a_command_on_a_root_that_hangs_ends_and_so_does_its_output(hanging_root: Path, line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line.replace("ROOT", str(hanging_root)).split()],
        cwd=hanging_root.parent.parent,
        capture_output=True,
        text=True,
        timeout=IN_TIME,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 3 and re.search(f"{hanging_root}.* does not answer", done.stderr), done


def test_what_the_child_prints_comes_in_its_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def work() -> int:
        for number in range(3):
            print(number)
            print(f"e{number}", file=sys.stderr)
        return 7

    assert owner.run_as_user_in_child(work, os.geteuid(), str(tmp_path)) == 7
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("0\n1\n2\n", "e0\ne1\ne2\n")


def test_a_reader_that_has_seen_enough_ends_the_command(tmp_path: Path) -> None:
    """As `| head` does."""
    program = f"""
import os, sys
from hyperpod_kit.untrusted import owner
def work():
    while True:
        print("x" * 1000)
owner.run_as_user_in_child(work, os.geteuid(), {str(tmp_path)!r})
"""
    command = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert command.stdout is not None and command.stderr is not None
    assert command.stdout.readline() == b"x" * 1000 + b"\n"
    command.stdout.close()
    assert b"BrokenPipeError" in command.stderr.read()
    assert command.wait(IN_TIME) in (1, 120), "Python's own codes: 120 where something is left to be written at the end"
    command.stderr.close()


def test_an_interrupted_command_takes_back_what_it_has_half_made(tmp_path: Path) -> None:
    """Also where only the command is told, and not its child, as by `kill -INT`."""
    half = tmp_path / "half"
    program = f"""
import os, pathlib, signal, sys
from hyperpod_kit.untrusted import owner
half = pathlib.Path({str(half)!r})
def work():
    half.touch()
    try:
        print("begun", flush=True)
        signal.pause()
    finally:
        half.unlink()
owner.run_as_user_in_child(work, os.geteuid(), {str(tmp_path)!r})
"""
    command = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert command.stdout is not None and command.stderr is not None
    assert command.stdout.readline() == b"begun\n" and half.exists()
    command.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in command.stderr.read()
    command.wait(IN_TIME)
    command.stdout.close()
    command.stderr.close()
    assert not half.exists()
