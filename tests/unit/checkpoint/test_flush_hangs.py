"""A flush of a root on a real FUSE mount that hangs, at any moment: it ends in time, says what it could not save, its
exit code is not 0, and all that was whole is in memory or on storage still."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, List, NamedTuple, Tuple

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush, flush_users
from hyperpod_kit.checkpoint.agent.flush.flush_handover import EndedJob, flush_job_until_saved
from hyperpod_kit.checkpoint.agent.persist import seal
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system.wait import fixed_pause
from tests.support.serving_fuse import serving_mount, silence
from tests.support.wait import scaled, until

pytestmark = pytest.mark.needs("root", "fuse")

REPOSITORY = Path(__file__).resolve().parents[3]
IN_TIME = 100.0
"""Seconds that a command may take which would wait for ever."""


class HangingRoot(NamedTuple):
    """A checkpoint root on a mount whose daemon is a process of its own."""

    path: Path
    store: Path
    daemon: subprocess.Popen[str]

    def hang(self) -> None:
        """From now on the daemon takes requests and answers none."""
        silence(self.daemon)

    def hang_after(self, answers: int) -> None:
        """It answers so many more requests, and none then."""
        assert self.daemon.stdin is not None
        self.daemon.stdin.write(f"{answers}\n")
        self.daemon.stdin.flush()

    def come_back(self) -> None:
        """The mount is gone, and what it showed lies in its place."""
        self.daemon.kill()
        self.daemon.wait(IN_TIME)
        mount = self.path.parent
        subprocess.run(["umount", "--lazy", str(mount)], check=True, timeout=IN_TIME)
        mount.rmdir()
        self.store.rename(mount)


@contextlib.contextmanager
def hanging_root(mount: Path) -> Iterator[HangingRoot]:
    with serving_mount(mount) as daemon:
        (mount / "root").mkdir()
        yield HangingRoot(mount / "root", mount.parent / f"{mount.name}.store", daemon)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[HangingRoot]:
    with hanging_root(tmp_path / "mount") as made:
        yield made


def whole_captures(folder: Path) -> List[Tuple[str, int]]:
    """(root, step) of every whole capture in memory."""
    captures = []
    for slot in shm_slots.attach_each_mappable(str(folder), shm_slots.own_slot_names(str(folder))):
        if slot.page is not None and slot.page.state in COMPLETE_STATES:
            captures.append((slot.page.origin.root, slot.page.step))
        slot.close()
    return sorted(captures)


def newest_step(root: Path) -> int:
    try:
        return selection.newest_valid(str(root)).step
    except (CheckpointError, OSError):
        return 0


def flush_within(seconds: int, *options: str) -> subprocess.CompletedProcess[str]:
    """`checkpoint flush`, whose output is read to its end: a child that is left behind must not have the pipe."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "hyperpod_kit.checkpoint.commands.cli", "flush"),
            *("--all", "--timeout", str(seconds), *options),
        ],
        capture_output=True,
        text=True,
        timeout=seconds + IN_TIME,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def test_the_command_ends_and_names_what_it_could_not_save(
    capture: Any, shm: Path, root: HangingRoot, tmp_path: Path
) -> None:
    """Beside another run whose storage answers: that one is saved and freed."""
    capture(seq=3, step=30, elsewhere=str(root.path)).close()
    capture(seq=5, step=50).close()
    root.hang()
    seconds = round(scaled(20))
    done = flush_within(seconds, "--json")
    assert done.returncode == 1, done
    outcomes = [flush.FlushOutcome(**row) for row in json.loads(done.stdout)["runs"]]
    (stuck,) = [outcome for outcome in outcomes if not outcome.removed]
    (saved,) = [outcome for outcome in outcomes if outcome.removed]
    assert f"not done after {seconds} s: {root.path} has not taken step 30 (seq 3)" in stuck.note, outcomes
    assert saved.attempt and newest_step(tmp_path / "root") == 50
    assert whole_captures(shm) == [(str(root.path), 30)]
    again = flush_within(5)
    assert again.returncode == 1 and "left in" in again.stdout, again
    root.come_back()
    # The kernel lets go of the processes that were left behind.
    until(lambda: [outcome.removed for outcome in flush.flush()] == [True], what="a flush of what stayed")
    assert newest_step(root.path) == 30 and os.listdir(shm) == []


def test_the_unit_of_an_ended_job_ends_and_says_what_stays(capture: Any, shm: Path, root: HangingRoot) -> None:
    capture(seq=3, step=30, elsewhere=str(root.path)).close()
    root.hang()
    said: List[str] = []
    ended = EndedJob("7", 0, os.getuid(), None)
    stall = round(scaled(2.0))
    code = flush_job_until_saved(
        ended,
        folder=str(shm),
        max_age=86400.0,
        announcement_path="",
        say=said.append,
        limit=4.0 * stall,
        stall=stall,
        pauses=fixed_pause(1.0),
    )
    assert code == 1
    assert f"no progress for {stall} s: {root.path} has not taken step 30 (seq 3); it stays" in said[0]
    assert whole_captures(shm) == [(str(root.path), 30)]
    root.come_back()
    # The kernel lets go of the processes that were left behind.
    until(lambda: flush.flush(job="7")[0].removed, what="a flush of what stayed")
    assert newest_step(root.path) == 30 and os.listdir(shm) == []


def test_tries_leave_one_process_behind_and_not_one_each(capture: Any, shm: Path, root: HangingRoot) -> None:
    capture(seq=3, step=30, elsewhere=str(root.path)).close()
    root.hang()
    seconds = round(scaled(2.0))

    def tried() -> str:
        (outcome,) = flush_users.flush_as(os.getuid(), folder=str(shm), job="7", timeout=seconds, max_age=86400.0)
        return outcome.note

    assert f"not done after {seconds} s" in tried()
    until(lambda: "the kernel holds it until its storage answers" in tried(), what="a word about the process")


@pytest.mark.parametrize("stride", [40, pytest.param(5, marks=pytest.mark.full)])
def test_it_hangs_at_any_request(capture: Any, shm: Path, tmp_path: Path, stride: int) -> None:
    saved = 0
    for seq, answers in enumerate(range(3, 10_000, stride), 1):
        with hanging_root(tmp_path / f"mount{seq}") as root:
            for rank in (0, 1):
                seal.seal(capture(rank=rank, world=2, seq=seq, step=10 * seq, elsewhere=str(root.path)))
            root.hang_after(answers)
            outcomes = flush_users.flush_as(os.getuid(), folder=str(shm), job="7", timeout=4.0, max_age=86400.0)
            done = flush.exit_code(outcomes) == 0
            if not done:
                assert f"step {10 * seq}" in outcomes[0].note, (answers, outcomes)
            root.come_back()
            kept = whole_captures(shm) == [(str(root.path), 10 * seq)] * 2
            assert kept or newest_step(root.path) == 10 * seq, (answers, outcomes)
            until(lambda: all(one.removed for one in flush.flush(job="7")), what="a flush of all that stayed")
            assert newest_step(root.path) == 10 * seq, (answers, outcomes)
            saved += 1
            if done:
                break
    assert saved > 2, "it hung in the middle"
