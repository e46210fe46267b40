"""examples/data/train.py as its page says: killed, started again on two processes, each sample once an epoch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hyperpod_kit.data.loading.sample_log_check import check_sample_log
from tests.support import warm
from tests.unit.data.proof import PROGRAM, losses_under_kills


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
    return [*before, *words]


def environment(place):
    return {
        **os.environ,
        "HPK_SHM_DIR": str(place / "shm"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PROGRAM.parents[2]),
        "PYTHONWARNINGS": "ignore",
    }


@pytest.mark.full
def test_the_losses_are_those_of_an_undisturbed_run(tmp_path):
    """Bit for bit: with dropout, with other workers at each start."""
    run, same = losses_under_kills(tmp_path, 1, kills=2, lines=300, seed=0)
    assert same and run.kills == 2 and len(run.losses) == 76


@pytest.mark.full
@pytest.mark.distributed
def test_killed_and_started_again_on_two_processes(place):
    process = warm.Program(command(place), environment(place))
    for line in process.stdout:
        if "step 27" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *command(place, *torchrun)],
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = check_sample_log(place / "run" / "ledger")
    assert found.is_exactly_once and found.launches == 2
    assert [(one.once, one.complete) for one in found.epochs] == [(600, True)] * 2


@pytest.mark.full
def test_file_after_file_killed_and_started_again(place):
    words = [str(PROGRAM.parent / "by_file.py"), str(place / "corpus"), "--root", str(place / "run")]
    process = warm.Program(words, environment(place))
    said = [process.stdout.readline(), process.stdout.readline()]
    process.kill()
    process.wait()
    done = warm.run(words, environment(place))
    assert done.returncode == 0, done.stdout[-3000:]
    found = check_sample_log(place / "run" / "ledger")
    assert found.is_exactly_once and [(one.once, one.complete) for one in found.epochs] == [(600, True)]
    files = [line.split()[-1] for line in [*said, *done.stdout.splitlines()]]
    assert set(files) == {str(place / "corpus" / f"{part}.txt") for part in range(3)}
