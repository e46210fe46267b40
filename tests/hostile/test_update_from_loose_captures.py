"""A node is updated while jobs run: captures lie as builds before 0.1.0 laid them, and others may lay theirs beside.

An agent whose directory is the base itself does all that theirs did, under the same names.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from hyperpod_kit.checkpoint.agent.flush import shm_cleanup
from hyperpod_kit.checkpoint.agent.process import slot_recovery
from hyperpod_kit.checkpoint.agent.shm import control_page, lock, shm_paths, shm_slots
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.errors import RunIsOwned
from hyperpod_kit.system import process
from tests.hostile.captures import DEAD, committed, flushed, lay, within
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, place
from tests.support.rows import full

pytestmark = ROOT


@pytest.fixture
def base() -> Iterator[Path]:
    with place() as found, pytest.MonkeyPatch.context() as patch:
        (found / "shm").mkdir()
        (found / "shm").chmod(0o1777)
        patch.setenv("HPK_SHM_DIR", str(found / "shm"))
        yield found / "shm"


def run_of(folder: Path) -> str:
    return next(folder.glob(f"hpk-{VICTIM}-*.ctl")).name.split("-")[2]


def adopted(base: Path, run: str) -> List[int]:
    """As the victim: what the run's rank 0 has in its own directory after the start of an agent there."""
    answer = base.parent / "answer"
    answer.touch()
    os.chown(answer, VICTIM, VICTIM)

    def work() -> None:
        folder = shm_paths.ensure_user_directory()
        held = lock.acquire_ending_stale_agent(
            os.path.join(folder, shm_slots.lock_file_name(VICTIM, run, 0)), process.this_process()
        )
        slot_recovery.move_slots_from_other_directories(folder, run, 0, process.this_process())
        held.release()
        slots = list(
            shm_slots.attach_each_mappable(folder, shm_slots.own_slot_names(folder, uid=VICTIM, run=run, rank=0))
        )
        answer.write_text(" ".join(str(slot.page.step) for slot in slots if slot.page is not None))

    code = as_user(VICTIM, within(60, work))
    assert code in (0, -signal.SIGKILL), code
    return sorted(map(int, answer.read_text().split()))


@pytest.mark.parametrize("squat", [None, "lock", *full("log", "saves", "fifo")])
def test_a_start_takes_them_over(base: Path, squat: Any) -> None:
    lay(base, base.parent / "root", loose=True)
    run = run_of(base)
    shm_paths.make_directories_as_root_reporting_moved(str(base), VICTIM)
    if squat is not None:
        path = base / f"hpk-{VICTIM}-{run}-00000.{'lock' if squat == 'fifo' else squat}"
        assert as_user(ATTACKER, lambda: os.mkfifo(path, 0o666) if squat == "fifo" else path.write_text("x" * 9)) == 0
    assert adopted(base, run) == [10]
    own = base / f"hyperpod-kit/{VICTIM}"
    assert len(list(own.glob("hpk-*"))) == 2 and not list(base.glob(f"hpk-{VICTIM}-{run}-*-*"))
    assert [one.removed for one in flushed(base)] == [True] and committed(base.parent / "root")


def test_a_slot_of_the_same_number_is_not_written_over(base: Path) -> None:
    root = base.parent / "root"
    lay(base, root, loose=True)
    lay(base, root, seq=2)
    assert adopted(base, run_of(base)) == [10, 20]
    [outcome] = flushed(base)
    assert outcome.removed and selection.newest_valid(str(root)).step == 20


@pytest.mark.parametrize("link", [1, 2])
def test_killed_in_between_one_place_or_both_have_all_of_it(
    base: Path, link: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(base, base.parent / "root", loose=True)
    run = run_of(base)
    with monkeypatch.context() as patch:
        patch.setenv("HPK_FAILPOINT", f"agent.adopting@{link}")
        assert adopted(base, run) == []
    assert adopted(base, run) == [10]
    assert [one.removed for one in flushed(base)] == [True] and committed(base.parent / "root")
    assert not [path for path in base.rglob("hpk-*") if path.suffix in (".ctl", ".img")]


def test_a_flush_in_between_saves_them_as_well(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(base, base.parent / "root", loose=True)
    with monkeypatch.context() as patch:
        patch.setenv("HPK_FAILPOINT", "agent.adopting@2")
        assert adopted(base, run_of(base)) == []
    assert all(one.removed for one in flushed(base)) and committed(base.parent / "root")
    assert not [path for path in base.rglob("hpk-*") if path.suffix in (".ctl", ".img")]


def test_a_trainer_of_the_first_release_that_lives_keeps_its_own(base: Path) -> None:
    lay(base, base.parent / "root", loose=True)
    run = run_of(base)

    def work() -> None:
        held = lock.try_acquire(str(base / shm_slots.lock_file_name(VICTIM, run, 0)), process.this_process())
        assert held is not None
        with pytest.raises(RunIsOwned, match=f"process {os.getpid()} on this node"):
            slot_recovery.move_slots_from_other_directories(
                shm_paths.ensure_user_directory(), run, 0, process.Process(1, 1)
            )
        assert len(shm_slots.own_slot_names(str(base), uid=VICTIM, run=run)) == 1
        held.release()

    assert as_user(VICTIM, within(60, work)) == 0


def test_the_janitor_looks_at_both(base: Path) -> None:
    lay(base, base.parent / "root", loose=True)
    lay(base, base.parent / "other")

    def work() -> None:
        for folder in shm_paths.own_directories_and_shm_root():
            for slot in shm_slots.attach_each_mappable(folder, shm_slots.own_slot_names(folder)):
                slot.transition(control_page.SlotState.FREE)
        assert (
            len(
                shm_cleanup.remove_empty_segments_of_dead_runs(
                    *shm_paths.own_directories_and_shm_root(), excluded_run=""
                )
            )
            == 2
        )
        assert not [place for place in shm_paths.own_directories_and_shm_root() if shm_slots.own_slot_names(place)]

    assert as_user(VICTIM, within(60, work)) == 0


PAGE_OF_THE_FIRST_RELEASE = {
    "state": "SEALED",
    "rank": 0,
    "world": 1,
    "epoch": 1,
    "seq": 1,
    "step": 10,
    "incarnation": "abc123",
    "run": "root",
    "run_id": "r",
    "root": "/fsx/root",
    "job": {"slurm_job_id": "7"},
    "owner": list(DEAD),
    "digest": "blake2b",
    "chunk": 4096,
    "size": 4096,
    "layout": "blake2b:l",
    "plan": "blake2b:p",
    "tensors": 1,
    "plan_tensors": 1,
    "extra_size": 2,
    "extra_root": "blake2b:e",
    "shard_root": "blake2b:s",
    "durable": False,
}


def test_a_page_and_the_names_of_the_first_release_are_read(base: Path) -> None:
    import hashlib
    import json

    text = json.dumps(PAGE_OF_THE_FIRST_RELEASE, separators=(",", ":")).encode()
    half = b"HPKSLOT1" + (2).to_bytes(8, "little") + len(text).to_bytes(4, "little") + text
    half += hashlib.blake2b(half, digest_size=8).digest()
    found = control_page.read(memoryview(half.ljust(2048, b"\0") + bytes(2048)))
    assert (
        found is not None
        and found[0] == 2
        and found[1].step == 10
        and found[1].origin.trainer == process.Process(*DEAD)
    )
    assert shm_slots.SlotName(4002, "0" * 12, 1, 2).file("ctl") == "hpk-4002-000000000000-00001-02.ctl"
    assert shm_slots.lock_file_name(4002, "0" * 12, 1) == "hpk-4002-000000000000-00001.lock"
