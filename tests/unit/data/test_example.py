"""examples/data/train.py as its page says: killed, started again on two processes, each sample once an epoch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod_kit.data.ledger_check import check

PROGRAM = Path(__file__).parents[3] / "examples" / "data" / "train.py"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "corpus").mkdir()
    for part in range(3):
        lines = (f"document {part} {n}: what it says\n" for n in range(200))
        (tmp_path / "corpus" / f"{part}.txt").write_text("".join(lines))
    (tmp_path / "shm").mkdir()
    return tmp_path


def command(place, *before):
    words = [str(PROGRAM), str(place / "corpus"), "--root", str(place / "run"), "--epochs", "2", "--workers", "1"]
    return [sys.executable, *before, *words]


def environment(place):
    return {
        **os.environ,
        "HPK_SHM_DIR": str(place / "shm"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PROGRAM.parents[2]),
        "PYTHONWARNINGS": "ignore",
    }


def losses(text):
    """Step -> loss, the last one that was said of a step."""
    return dict(re.findall(r"step (\d+) loss (\S+)", text))


def test_the_losses_are_those_of_an_undisturbed_run(place):
    calm = subprocess.run(
        [*command(place)[:-5], str(place / "calm"), *command(place)[-4:]],
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=150,
    )
    said = ""
    for stop in (13, 41, None):
        process = subprocess.Popen(command(place), env=environment(place), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if f"step {stop} " in line:
                process.send_signal(signal.SIGKILL)
                break
        process.wait()
    assert len(losses(calm.stdout)) == 150 and losses(said) == losses(calm.stdout)


@pytest.mark.distributed
def test_killed_and_started_again_on_two_processes(place):
    process = subprocess.Popen(command(place), env=environment(place), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "step 27" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        command(place, *torchrun), env=environment(place), capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = check(place / "run" / "ledger")
    assert found.good and found.launches == 2
    assert [(one.once, one.complete) for one in found.epochs] == [(600, True)] * 2
