"""Memory, the node's disk, storage: what each of them holds when something dies or lies on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.agent.persist import local, persist
from hyperpod_kit.checkpoint.agent.process import agent_storage
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError, DigestMismatch
from tests.support.rows import full, share
from tests.support.wait import until
from tests.unit.checkpoint.agent_run import Start, save, states


def parts(run: Start, disk: Path, rank: int = 0) -> list[local.Part]:
    return local.list_parts(str(disk), shm_slots.run_hash(run.identity.run_id), rank)


def test_local_comes_before_durable_and_two_stay_on_the_disk(start, capture, shm: Path, tmp_path: Path) -> None:
    disk = tmp_path / "nvme"
    run = start(world=2, local=str(disk))
    run.settle()
    for seq in (1, 2, 3):
        save(run, capture, seq, slot=seq)
        kinds = [event["ev"] for event in run.until("durable")]
        assert sorted(kinds) == ["durable", "local", "sealed"] and kinds.index("local") < kinds.index("durable")
        run.until("durable", rank=1)
    until(lambda: states(shm) == ["FREE"] * 4 + ["SEALED"] * 2)
    until(lambda: [part.report.page.seq for part in parts(run, disk)] == [3, 2])
    until(lambda: len(list(disk.glob("*/*/shard-*"))) == 4 and len(list(disk.glob("*/seq-*"))) == 2)
    assert run.close() and os.listdir(shm) == []
    assert selection.newest_valid(run.root).seq == 3


@pytest.mark.parametrize(
    "place",
    share(
        (
            "local.before_report",
            "local.after_report",
            "agent.localized",
            "persist.begin@2",
            "persist.slice@2",
            "persist.done@2",
            "commit.before_manifest",
            "agent.committed",
            "agent.written",
        ),
        3,
    ),
)
@pytest.mark.parametrize("memory_too", [*full(False), True], ids=["memory stays", "memory lost"])
def test_a_node_that_dies_on_the_way_goes_on_where_it_was(
    start, capture, shm: Path, tmp_path: Path, place: str, memory_too: bool
) -> None:
    disk = tmp_path / "nvme"
    run = start(local=str(disk), env={"HPK_FAILPOINT": place})
    run.settle()
    save(run, capture, 1)
    assert run.links[0]._process.wait(15) == -signal.SIGKILL
    run.kill_trainers()
    if memory_too:
        for name in shm_slots.own_slot_names(str(shm)):
            shm_slots.remove(str(shm), name)
    found = parts(run, disk)
    again = start(local=str(disk))
    key = (1, 1, run.incarnation)
    if memory_too and not found:
        assert place == "local.before_report"
        again.settle()
        assert again.close()
        return
    again.settle(key, tier="local" if memory_too else "memory")
    again.until("durable")
    assert again.close() and os.listdir(shm) == []
    committed = [entry for entry in catalog.list_checkpoints(run.root) if entry.committed]
    assert len(committed) == 1, "what was committed already is not written again"
    assert selection.newest_valid(run.root).seq == 1


def test_one_rank_from_memory_and_one_from_its_disk(start, capture, shm: Path, tmp_path: Path) -> None:
    disk = tmp_path / "nvme"
    run = start(world=2, local=str(disk), env={"HPK_FAILPOINT": "agent.localized"})
    run.settle()
    save(run, capture, 1)
    for link in run.links:
        assert link._process.wait(15) == -signal.SIGKILL
    run.kill_trainers()
    for name in shm_slots.own_slot_names(str(shm), rank=1):
        shm_slots.remove(str(shm), name)
    again = start(world=2, local=str(disk))
    again.settle((1, 1, run.incarnation), tier="local")
    again.until("durable")
    assert again.close() and selection.newest_valid(run.root).seq == 1


def test_a_local_disk_that_cannot_be_written_costs_its_tier_only(start, capture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    run = start(local=str(tmp_path / "file" / "nvme"))
    run.settle()
    save(run, capture, 1)
    assert "local" not in [event["ev"] for event in run.until("durable")]
    assert run.close()


def test_a_disk_that_lies_never_becomes_a_checkpoint(start, capture, shm: Path, tmp_path: Path) -> None:
    disk = tmp_path / "nvme"
    run = start(local=str(disk))
    run.settle()
    save(run, capture, 1)
    run.until("durable")
    (part,) = parts(run, disk)
    source = local.open_local_store(str(disk), shm_slots.run_hash(run.identity.run_id))
    shard = Path(source.url) / part.checkpoint_id / part.report.record.file
    whole = shard.read_bytes()
    target = open_store("memory://lies")
    assert (
        agent_storage.copy_shard(part, source, target, part.checkpoint_id, persist.WriteOptions()) == part.report.record
    )
    assert target.read(f"{part.checkpoint_id}/{part.report.record.file}") == whole
    for number, at in enumerate((0, 5000, len(whole) // 2, len(whole) - 1)):
        data = bytearray(whole)
        data[at] ^= 4
        shard.write_bytes(data)
        with pytest.raises(DigestMismatch, match="local shard-00000"):
            agent_storage.copy_shard(part, source, target, f"{number}", persist.WriteOptions())
        assert not target.exists(f"{number}/{part.report.record.file}")
    shard.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="expected"):
        agent_storage.copy_shard(part, source, target, "short", persist.WriteOptions())
