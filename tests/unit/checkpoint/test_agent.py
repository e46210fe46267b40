"""Real agents killed with SIGKILL wherever it hurts: what every rank had captured is never lost, never mixed up."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.agent.flush import shm_cleanup
from hyperpod_kit.checkpoint.agent.persist.seal import seal
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import FreeSlot, SaveSkipped, TakeOver
from hyperpod_kit.checkpoint.agent.shm import control_page, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentSupervisor
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, identity, latest
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system import process
from tests.support.rows import share
from tests.support.wait import until
from tests.unit.checkpoint.agent_run import CHUNK, save, states
from tests.unit.checkpoint.small_checkpoint import put_checkpoint


def test_a_save_is_sealed_then_durable_and_the_older_one_makes_room(start, capture, shm: Path) -> None:
    run = start(world=2)
    run.settle()
    save(run, capture, 1)
    assert [event["ev"] for event in run.until("durable")] == ["sealed", "durable"]
    assert states(shm) == ["SEALED", "SEALED"]
    save(run, capture, 2, slot=1)
    (*_, last) = run.until("durable")
    found = selection.newest_valid(run.root)
    assert (found.checkpoint_id, found.seq) == (last["note"], 2) and found.checkpoint_id.endswith(run.incarnation)
    until(lambda: states(shm) == ["FREE", "FREE", "SEALED", "SEALED"])
    assert run.close() and os.listdir(shm) == []


def test_a_rank_that_skips_drops_the_save_for_all(start, capture, shm: Path) -> None:
    run = start(world=2)
    run.settle()
    slot = capture(rank=0, world=2, seq=1, incarnation=run.incarnation, owner=tuple(run.trainers[0].owner))
    run.captured(0, slot)
    run.links[1].send(SaveSkipped((1, 1, run.incarnation), "no slot was free"))
    (*_, last) = run.until("dropped")
    assert last["note"] == "rank 1: no slot was free" and run.until("dropped", rank=1)
    until(lambda: states(shm) == ["FREE"])
    assert run.close() and catalog.list_checkpoints(run.root) == []


def test_a_trainer_killed_after_the_copy_is_the_breakpoint_that_gets_saved(start, capture, shm: Path) -> None:
    run = start(world=2)
    run.settle()
    save(run, capture, 3, tell=False)
    run.kill_trainers()
    assert all([link._process.wait(15) == 0 for link in run.links])
    assert selection.newest_valid(run.root).seq == 3


PLACES = [
    "agent.captured",
    "seal.leaf",
    "seal.leaf@2",
    "seal.before_page",
    "seal.after_page",
    "agent.ordered",
    "persist.begin",
    "persist.slice",
    "persist.before_sync",
    "persist.done",
    "agent.written",
    "agent.before_commit",
    "commit.before_extra",
    "commit.before_manifest",
    "commit.after_manifest",
    "agent.committed",
    "agent.before_free",
    "agent.after_free",
]


@pytest.mark.parametrize("place", share(PLACES, 3))
def test_an_agent_killed_anywhere_loses_nothing(start, capture, shm: Path, place: str) -> None:
    """Two saves; rank 0's agent dies on the second one's way, the rest dies with it; the next start goes on."""
    run = start(world=2)
    run.settle()
    save(run, capture, 1)
    run.until("durable")
    run.until("durable", rank=1)
    run.kill_trainers()
    until(lambda: all(link._process.poll() is not None for link in run.links))
    run = start(world=2, rank_env={0: {"HPK_FAILPOINT": place}})
    run.settle((1, 1, "none"))
    save(run, capture, 2, slot=1)
    if place in ("agent.before_free", "agent.after_free"):
        until(lambda: SlotState.SEALED in states(shm))
        save(run, capture, 3, slot=2)
    assert run.links[0]._process.wait(15) == -signal.SIGKILL
    run.kill_trainers()
    run.kill_agents()
    hot = [slot.page for slot in shm_slots.attach_each_mappable(str(shm), shm_slots.own_slot_names(str(shm)))]
    kept = [page for page in hot if page is not None and page.state in (SlotState.SEALED, SlotState.CAPTURED)]
    newest = max(page.key for page in kept)
    again = start(world=2)
    again.settle(newest)
    run_on = [page for page in kept if page.key == newest]
    if all(page.durable for page in run_on):
        assert again.close()
    else:
        again.until("durable")
        assert again.close()
    found = selection.newest_valid(run.root)
    assert found.seq == newest[1] >= 2 and not found.rejected
    assert verify.verify_checkpoint(run.root, found.checkpoint_id).world == 2
    assert os.listdir(shm) == []


@pytest.mark.parametrize("durable", [True, False])
def test_one_in_a_dead_agents_place_frees_what_a_durable_capture_has_replaced(
    start, capture, shm: Path, durable: bool
) -> None:
    """No order for the durable one will come any more, so nothing else would ever free a slot."""
    run = start(again=True)
    older = capture(epoch=1, seq=1)
    newer = capture(epoch=2, seq=2, slot=1, incarnation=run.incarnation, owner=run.trainers[0].owner)
    for slot, reached in ((older, durable), (newer, True)):
        seal(slot)
        slot.transition(SlotState.SEALED, durable=reached)
    run.settle((1, 1, "abc123"))
    run.links[0].send(TakeOver())
    until(lambda: older.page.state is SlotState.FREE, what="a free slot")
    assert newer.page.state is SlotState.SEALED


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "new"])
@pytest.mark.parametrize(
    "place", share(("persist.slice", "local.before_report", "local.after_report", "persist.begin@2"), 1)
)
def test_one_in_a_dead_agents_place_goes_on_with_what_is_on_the_nodes_disk(
    start, capture, shm: Path, tmp_path: Path, place: str, kept: bool
) -> None:
    """Rank 1's agent dies on the way to the disk or, when rank 0's part is on storage already, from there."""
    if kept:
        for rank in range(2):
            slot = capture(rank=rank, world=2, chunk=CHUNK)
            seal(slot)
            slot.transition(SlotState.SEALED)
    run = start(world=2, make=AgentSupervisor, local=str(tmp_path / "disk"), rank_env={1: {"HPK_FAILPOINT": place}})
    run.settle((1, 1, "abc123") if kept else None)
    if not kept:
        save(run, capture, 1)
    told = [run.until("durable", rank=rank, timeout=60) for rank in range(2)]
    assert run.links[1]._used == 0, "the count begins anew"
    troubles = [event["why"] for event in told[1] if event["ev"] == "trouble"]
    assert len(troubles) == 1 and "a new agent" in troubles[0], troubles
    assert run.close()
    found = selection.newest_valid(run.root)
    assert found.seq == 1 and verify.verify_checkpoint(run.root, found.checkpoint_id).world == 2


def test_a_full_disk_is_a_failed_save_whose_bytes_stay_in_memory(start, capture, shm: Path, tmp_path: Path) -> None:
    run = start()
    run.settle()
    root = Path(run.root)
    root.rename(tmp_path / "away")
    root.write_text("not a directory")
    save(run, capture, 1)
    events = run.until("failed")
    assert "rank 0:" in events[-1]["note"]
    if "sealed" not in [event["ev"] for event in events]:  # one worker seals while another writes
        run.until("sealed")
    root.unlink()
    (tmp_path / "away").rename(root)
    save(run, capture, 2, slot=1)
    run.until("durable")
    until(lambda: states(shm) == ["FREE", "SEALED"])


def test_the_rate_limit_ends_when_the_machine_is_about_to_go(start, capture) -> None:
    run = start(rate_limit=1.0)
    run.settle()
    save(run, capture, 1)
    run.until("durable")  # the first piece is free
    save(run, capture, 2, slot=1)
    run.until("sealed")
    os.kill(run.links[0].pid, signal.SIGUSR1)
    run.until("durable")


def test_room_is_made_by_giving_up_what_nobody_writes_yet(start, capture, shm: Path) -> None:
    run = start(rate_limit=1.0)
    run.settle()
    save(run, capture, 1)
    run.until("durable")
    for seq in (2, 3, 4):  # the limit holds the second one back, and the others behind it
        save(run, capture, seq, slot=seq - 1)
        run.until("sealed")
    until(lambda: states(shm) == ["FREE", "SEALED", "SEALED", "SEALED"])
    until(lambda: list(Path(run.root).glob("seq-000002.*/*.safetensors")), what="the writing of the second one")
    run.links[0].send(FreeSlot((1, 5, run.incarnation)))
    told = run.until("released")
    assert told[-1]["slot"] == 2 and told[0]["ev"] == "dropped" and told[0]["key"][1] == 3
    run.links[0].send(FreeSlot((1, 5, run.incarnation)))
    assert run.until("released")[-1]["slot"] is None  # 2 is being written, 4 is the newest
    os.kill(run.links[0].pid, signal.SIGTERM)
    run.until("durable")
    run.until("durable")
    assert run.close()
    assert [entry.name.seq for entry in catalog.list_checkpoints(run.root) if entry.committed] == [4, 2, 1]


def test_after_a_commit_the_policy_is_applied_and_the_hint_points_at_it(start, capture, shm: Path) -> None:
    run = start(keep={"latest": {"n": 1}})
    run.settle()
    for seq in (1, 2, 3):
        save(run, capture, seq, slot=seq)
        (*_, last) = run.until("durable")
    assert run.close(), "the end waits for what is still to be removed"
    assert [entry.checkpoint_id for entry in catalog.list_checkpoints(run.root)] == [last["note"]]
    hint = latest.read(open_store(run.root))
    assert hint is not None and str(hint) == last["note"]


def test_a_policy_that_is_none_is_refused_at_the_start(start) -> None:
    with pytest.raises(CheckpointError, match="retention policy"):
        start(keep={"newest": 1})


def test_a_root_that_is_exchanged_under_a_run_gets_no_commit_and_loses_nothing(
    start, capture, shm: Path, tmp_path: Path
) -> None:
    run = start(keep={"latest": {"n": 1}})
    run.settle()
    save(run, capture, 1)
    run.until("durable")
    root = Path(run.root)
    root.rename(tmp_path / "ours")
    other = PosixStore(run.root)
    theirs = identity.ensure_run_identity(other, "theirs")
    names = [put_checkpoint(other, seq, epoch=0, run=theirs) for seq in (1, 2, 3)]
    save(run, capture, 2, slot=1)
    (*_, last) = run.until("failed", "durable")
    assert "is of run 'theirs'" in last["note"] and "expected run 'root'" in last["note"], last
    assert [entry.checkpoint_id for entry in catalog.list_checkpoints(run.root) if entry.committed] == names[::-1]
    for name in names:
        verify.verify_checkpoint(run.root, name)
    assert states(shm)[-1] == "SEALED", "what could not be committed stays in memory"
    shutil.rmtree(root)
    (tmp_path / "ours").rename(root)
    save(run, capture, 3, slot=2)
    assert run.until("durable", "failed")[-1]["ev"] == "durable"


def test_segments_of_dead_runs_that_hold_nothing_go_and_captures_stay(start, capture, shm: Path) -> None:
    def other(run: str, state: SlotState, owner: Any) -> shm_slots.SlotName:
        name = shm_slots.SlotName(os.getuid(), run * 12, 0, 0)
        slot = shm_slots.create(str(shm), name, 4096)
        slot.write_page(control_page.Page(state=state, origin=control_page.CaptureOrigin(owner=owner)))
        slot.close()
        return name

    dead, alive = (2**22 + 1, 1), tuple(process.this_process())
    gone = [other("a", SlotState.FREE, dead), other("b", SlotState.WRITING, dead)]
    stay = [other("c", SlotState.SEALED, dead), other("d", SlotState.FREE, alive)]
    run = start()
    run.settle()
    save(run, capture, 1)
    run.until("durable")
    until(lambda: not any((shm / name.file("ctl")).exists() for name in gone))
    assert all((shm / name.file("img")).exists() for name in stay)
    assert (
        shm_cleanup.remove_empty_segments_of_dead_runs(str(shm), excluded_run=shm_slots.run_hash(run.identity.run_id))
        == []
    )
    assert run.close()


@pytest.mark.usefixtures("agents_of_an_interpreter")
def test_an_agent_is_small(start, capture, tmp_path: Path) -> None:
    """Besides what it maps: at most 64 MiB, and descriptors that do not grow."""
    run = start(local=str(tmp_path / "nvme"))
    run.settle()

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{run.links[0].pid}/fd"))

    save(run, capture, 1, slot=0)
    run.until("durable")
    first = descriptors()
    for seq in range(2, 12):
        save(run, capture, seq, slot=seq)
        run.until("durable")
    with open(f"/proc/{run.links[0].pid}/status") as file:
        sizes = dict(line.split(":", 1) for line in file.read().splitlines())
    assert sum(int(sizes[key].split()[0]) for key in ("RssAnon", "RssFile")) <= 64 * 1024
    # Two descriptors a slot that is mapped, whatever else there is.
    assert descriptors() - first <= 2 * 10 + 2
