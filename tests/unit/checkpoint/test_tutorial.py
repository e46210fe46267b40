"""The tutorial's program, run as its page says: without our lines, killed and started again, and with two ranks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm

PROGRAM = Path(__file__).parents[3] / "examples" / "tutorial" / "train.py"
ADDED = "  # +"


def places(directory):
    shm = directory / "shm"
    shm.mkdir()
    return {
        **os.environ,
        "ROOT": str(directory / "root"),
        "HPK_SHM_DIR": str(shm),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PROGRAM.parents[2]),
    }


@pytest.fixture
def environment(tmp_path):
    return places(tmp_path)


def run(program, environment):
    done = warm.run([str(program)], environment)
    assert done.returncode == 0, done.stdout
    return done.stdout


def last_loss(output):
    return re.findall(r"step 39 loss (\S+)", output)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the program prints when nothing happens to it."""
    return run(PROGRAM, places(tmp_path_factory.mktemp("undisturbed")))


@pytest.mark.full
def test_without_our_lines_it_trains_the_same(tmp_path, environment, undisturbed):
    lines = PROGRAM.read_text().splitlines(keepends=True)
    bare = [line for line in lines if not line.rstrip().endswith(ADDED)]
    assert 0 < len(lines) - len(bare) <= 20
    (tmp_path / "bare.py").write_text("".join(bare))
    plain = run(tmp_path / "bare.py", environment)
    assert last_loss(plain) == last_loss(undisturbed) != []


def test_killed_and_started_again_it_goes_on(environment, undisturbed):
    victim = warm.Program([str(PROGRAM)], environment)
    for line in victim.stdout:
        if line.startswith("step 19 "):
            victim.send_signal(signal.SIGKILL)
            break
    victim.wait(30)
    victim.stdout.close()
    again = run(PROGRAM, environment)
    begins = re.search(r"begins at step (\d+)", again)
    assert begins is not None and int(begins.group(1)) >= 20
    assert last_loss(again) == last_loss(undisturbed) != []


@pytest.mark.full
@pytest.mark.distributed
def test_two_ranks_by_torchrun(environment):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *torchrun, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "rank 0: begins at step 0" in out and "rank 1: begins at step 0" in out and last_loss(out)
