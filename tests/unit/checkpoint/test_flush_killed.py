"""A flush that is killed before any of its operations on files: nothing whole is gone without a word."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.agent.persist import seal
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.environment import HPK_ROOT
from hyperpod_kit.errors import CheckpointError
from hyperpod_lab.torture import day
from tests.support import warm

SEED = 20261127
PROGRAM = """
import os, signal, sys
from hyperpod_kit import audit
from hyperpod_kit.checkpoint.agent.flush import flush

OPERATIONS = ("open", "write", "pwrite", "writev", "fsync", "mkdir", "rename", "link", "unlink", "rmdir", "ftruncate")
count = 0

def counted(real):
    def act(*given, **named):
        global count
        count += 1
        if count == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)
    return act

audit.JOURNAL = "/nowhere"
for name in OPERATIONS:
    setattr(os, name, counted(getattr(os, name)))
try:
    flush.flush(job="7")
finally:
    os._exit(0)
"""


def flush_killed_before(number: int, said: Path) -> bool:
    """Flush in a process that is killed before its operation of that number; whether it was. `said`: what it said."""
    with said.open("w") as errors:
        process = warm.Forked(
            ["-c", PROGRAM, str(number)],
            dict(os.environ),
            imported=("hyperpod_kit.audit", "hyperpod_kit.checkpoint.agent.flush.flush"),
            descriptors=[errors.fileno(), errors.fileno()],
            cwd="/",
        )
    return process.wait() == -signal.SIGKILL


def whole_ranks(shm: Path) -> List[int]:
    ranks = []
    for slot in shm_slots.attach_each_mappable(str(shm), shm_slots.own_slot_names(str(shm))):
        if slot.page is not None and slot.page.state in COMPLETE_STATES:
            ranks.append(slot.page.origin.rank)
        slot.close()
    return sorted(ranks)


def remaining(shm: Path) -> List[str]:
    """Files of captures. The lock of a flush that was killed after them stays for the run's next start."""
    return [name for name in os.listdir(shm) if not name.endswith(".lock")]


def newest_step(root: Path) -> int:
    try:
        return selection.newest_valid(str(root)).step
    except (CheckpointError, OSError):
        return 0


def moments(stride: int) -> Iterator[int]:
    """Numbers of operations, without an end: each (`stride` 1), or some of them, drawn."""
    draws = random.Random(SEED)
    number = 0
    while True:
        number += draws.randint(1, 2 * stride - 1)
        yield number


@pytest.fixture(autouse=True)
def _outside_of_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HPK_ROOT, raising=False)
    monkeypatch.setattr("hyperpod_kit.audit.JOURNAL", "/nowhere")


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.full)])
def test_a_capture_is_in_memory_or_on_storage_whenever_its_flush_is_killed(
    capture: Any, shm: Path, tmp_path: Path, stride: int
) -> None:
    root, said = tmp_path / "root", tmp_path / "said"
    for seq, number in enumerate(moments(stride), 1):
        for rank in (0, 1):
            seal.seal(capture(rank=rank, world=2, seq=seq, step=10 * seq))
        killed = flush_killed_before(number, said)
        assert whole_ranks(shm) == [0, 1] or newest_step(root) == 10 * seq, f"operation {number}: {said.read_text()}"
        outcomes = flush.flush(job="7")
        assert not any(one.lost for one in outcomes), f"operation {number}: {outcomes}"
        assert newest_step(root) == 10 * seq and remaining(shm) == [], f"operation {number}: {outcomes}"
        if not killed:
            break
    assert number > 20, "operations were met"


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.full)])
def test_what_a_flush_gives_up_is_said_before_it_goes(capture: Any, shm: Path, tmp_path: Path, stride: int) -> None:
    """Storage stays away, and the captures have become too old."""
    root, said = tmp_path / "root", tmp_path / "said"
    root.rename(tmp_path / "away")
    gone = 0
    for seq, number in enumerate(moments(stride), 1):
        (tmp_path / "away").rename(root)
        for rank in (0, 1):
            seal.seal(capture(rank=rank, world=2, seq=seq, step=10 * seq))
        root.rename(tmp_path / "away")
        day.backdate_captures(str(shm))
        killed = flush_killed_before(number, said)
        if whole_ranks(shm) != [0, 1]:
            gone += 1
            assert f"LOST: step {10 * seq} (seq {seq}), given up" in said.read_text(), f"operation {number}"
        flush.flush(job="7")
        assert remaining(shm) == [], f"operation {number}"
        if not killed:
            break
    assert gone > 1, "some were killed in the middle of it"
