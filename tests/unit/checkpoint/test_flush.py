from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush, flush_captures
from hyperpod_kit.checkpoint.agent.persist import seal
from hyperpod_kit.checkpoint.agent.shm import lock, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.errors import CheckpointError, NoCheckpoint, NotEnoughSharedMemory, NoValidCheckpoint, RunIsOwned
from hyperpod_kit.system import process

REPOSITORY = Path(__file__).resolve().parents[3]


def segments(shm: Path) -> list[str]:
    return sorted(os.listdir(shm))


def test_the_newest_whole_capture_is_committed_and_the_memory_freed(capture, shm: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        older = capture(rank=rank, world=2, seq=4, slot=0)
        seal.seal(older)
        capture(rank=rank, world=2, seq=5, step=50, slot=1)
    (shm / f"hpk-{os.getuid()}-{older.name.run}-00001.log").write_text("Traceback:\nOSError: the reason\n")
    (outcome,) = flush.flush()
    assert outcome.removed and segments(shm) == [] and "00001.log: OSError: the reason" in outcome.note
    found = selection.newest_valid(str(tmp_path / "root"))
    assert (found.checkpoint_id, found.step) == (outcome.attempt, 50)


def test_a_half_copy_is_passed_over_for_the_capture_before(capture, shm: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        capture(rank=rank, world=2, seq=4, step=40, slot=0)
    capture(rank=0, world=2, seq=5, slot=1)
    capture(rank=1, world=2, seq=5, slot=1, state=SlotState.WRITING)
    (outcome,) = flush.flush()
    assert outcome.removed and "seq 5 was never complete" in outcome.note
    assert selection.newest_valid(str(tmp_path / "root")).step == 40
    assert segments(shm) == []


def test_shards_on_several_nodes_are_committed_by_the_last_one(
    capture, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 had one capture more. Neither node can talk to the other; each frees its memory."""
    root = str(tmp_path / "root")
    for rank, seqs in ((0, (4, 5)), (1, (5, 6))):
        node = tmp_path / f"node{rank}"
        node.mkdir()
        for slot, seq in enumerate(seqs):
            capture(rank=rank, world=2, seq=seq, step=10 * seq, slot=slot)
        for name in segments(shm):
            (shm / name).rename(node / name)
    monkeypatch.setenv("HPK_SHM_DIR", str(tmp_path / "node0"))
    (first,) = flush.flush(job="7")
    assert first.removed and "seq 5: handed in ranks [0] of 2" in first.note and segments(tmp_path / "node0") == []
    with pytest.raises(NoCheckpoint):
        selection.newest_valid(root)
    monkeypatch.setenv("HPK_SHM_DIR", str(tmp_path / "node1"))
    (last,) = flush.flush(job="7")
    assert last.removed and segments(tmp_path / "node1") == []
    found = selection.newest_valid(root)
    assert found.step == 50 and last.note == f"seq 6: handed in ranks [1] of 2; committed {found.checkpoint_id}"


def test_a_part_that_was_begun_and_never_finished_is_written_anew(capture, shm: Path, tmp_path: Path) -> None:
    """A flush that was killed leaves a shard without a report, under the name that every node knows."""
    slot = capture(rank=1, world=2, seq=4)
    page = slot.page
    assert page is not None
    torn = tmp_path / "root" / flush_captures.shared_flush_checkpoint_id(page) / "shard-00001.safetensors"
    torn.parent.mkdir()
    torn.write_bytes(b"half")
    (outcome,) = flush.flush()
    assert outcome.removed and "seq 4: handed in ranks [1] of 2" in outcome.note and segments(shm) == []
    capture(rank=0, world=2, seq=4)
    (outcome,) = flush.flush()
    assert outcome.attempt == torn.parent.name
    assert selection.newest_valid(str(tmp_path / "root")).checkpoint_id == outcome.attempt


def test_every_capture_that_is_whole_is_saved_and_the_newest_first(capture, shm: Path, tmp_path: Path) -> None:
    for seq in (4, 5, 6):
        for rank in (0, 1):
            capture(rank=rank, world=2, seq=seq, step=10 * seq, slot=seq)
    (outcome,) = flush.flush()
    root = str(tmp_path / "root")
    assert outcome.note.startswith("committed seq-000006") and outcome.note.count("committed") == 3
    assert sorted(entry.name.step for entry in catalog.list_checkpoints(root) if entry.committed) == [40, 50, 60]
    assert selection.newest_valid(root).step == 60 and segments(shm) == []


def test_what_memory_holds_whole_is_not_given_up_for_a_commit_that_was_cut_short(
    capture, shm: Path, tmp_path: Path
) -> None:
    root = str(tmp_path / "root")
    capture(seq=5, step=50)
    (first,) = flush.flush()
    shard = tmp_path / "root" / str(first.attempt) / "shard-00000.safetensors"
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(NoValidCheckpoint):
        selection.newest_valid(root)
    capture(seq=5, step=50)
    (outcome,) = flush.flush()
    assert outcome.removed and outcome.attempt not in (None, first.attempt)
    found = selection.newest_valid(root)
    assert (found.checkpoint_id, found.step) == (outcome.attempt, 50)


def test_what_another_job_left_goes_when_it_is_empty_or_too_old(capture, shm: Path, tmp_path: Path) -> None:
    for state in (SlotState.WRITING, SlotState.FREE):
        slot = capture(job="6", state=SlotState.WRITING)
        if state is SlotState.FREE:
            slot.transition(state)
        (outcome,) = flush.flush(job="7")
        assert outcome.removed and not outcome.lost and segments(shm) == []
    capture(job="6")
    (tmp_path / "root" / "RUN.json").unlink()  # cannot be saved
    assert flush.flush(job="7") == [] and len(segments(shm)) == 2
    (outcome,) = flush.flush(job="7", max_age=-1.0)
    assert outcome.removed and segments(shm) == []


def test_a_slot_that_a_live_trainer_is_making_is_left_alone(shm: Path) -> None:
    """Its image is there before its control page."""
    name = shm_slots.SlotName(os.getuid(), "0" * 12, 0, 0)
    held = lock.acquire_ending_stale_agent(str(shm / shm_slots.lock_file_name(*name[:3])), process.this_process())
    (shm / name.file("img")).write_bytes(b"x")
    assert flush.flush(job="7") == []
    assert (shm / name.file("img")).exists()
    held.release()
    flush.flush(job="7")
    assert segments(shm) == []


def test_what_is_committed_already_is_only_freed(capture, committed, shm: Path) -> None:
    root, attempt = committed(seq=9)
    capture(rank=0, world=2, seq=8)
    (outcome,) = flush.flush()
    assert outcome.removed and outcome.attempt is None
    assert [entry.checkpoint_id for entry in catalog.list_checkpoints(root)] == [attempt]


def test_a_live_trainer_and_another_job_are_left_alone(capture, shm: Path) -> None:
    capture(owner=tuple(process.this_process()), job="7")
    assert flush.flush(job="8") == []
    (outcome,) = flush.flush(job="7")
    assert not outcome.removed and "is alive" in outcome.note
    assert len(segments(shm)) == 2


def test_a_root_whose_mount_is_gone_keeps_the_memory(capture, shm: Path, tmp_path: Path) -> None:
    capture()
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").mkdir()
    (outcome,) = flush.flush()
    assert not outcome.removed and "its mount is gone" in outcome.note
    assert len(segments(shm)) == 2


def test_the_command_runs_on_bare_python(capture, shm: Path, tmp_path: Path) -> None:
    capture(seq=3, step=30)
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "hyperpod_kit").symlink_to(REPOSITORY / "hyperpod_kit")
    program = (
        f"import sys; sys.path.insert(0, {str(lib)!r}); from hyperpod_kit.checkpoint.commands import cli; "
        "sys.exit(cli.main(sys.argv[1:]))"
    )

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, *args], text=True, capture_output=True, timeout=30, check=False
        )

    done = run("flush", "--job", "7", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["runs"][0]["removed"], done
    root = str(tmp_path / "root")
    listed = json.loads(run("ls", root, "--json").stdout)["attempts"]
    assert [(row["step"], row["committed"]) for row in listed] == [(30, True)]
    assert run("verify", root).returncode == 0
    shard = tmp_path / "root" / listed[0]["attempt"] / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    bad = run("verify", root)
    assert bad.returncode == 1 and "INVALID: shard-00000.safetensors bytes" in bad.stdout
    assert run("ls", str(tmp_path / "nowhere")).returncode == 3
    assert run("verify").returncode == 2


@pytest.mark.needs("root")
def test_root_flushes_as_the_owner_and_trusts_nobody_elses_files(capture, shm: Path, tmp_path: Path) -> None:
    slot = capture()
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and path.stat().st_mode & 0o777 == 0o700:
            path.chmod(0o755)
    shm.chmod(0o1777)
    ours = slot.name
    for suffix in ("ctl", "img"):
        theirs = shm / ours._replace(uid=4242).file(suffix)
        (shm / ours.file(suffix)).rename(theirs)
    from hyperpod_kit.checkpoint.commands import cli

    assert cli.main(["flush", "--all"]) == 0  # root's files under the name of uid 4242: nobody's
    assert len(segments(shm)) == 2
    assert catalog.list_checkpoints(str(tmp_path / "root")) == []
    for name in segments(shm):
        (shm / name).unlink()
    capture()
    for suffix in ("ctl", "img"):
        (shm / ours.file(suffix)).rename(shm / ours._replace(uid=4242).file(suffix))
        os.chown(shm / ours._replace(uid=4242).file(suffix), 4242, 4242)
    os.chown(tmp_path / "root", 4242, 4242)
    assert cli.main(["flush", "--all"]) == 0
    (entry,) = catalog.list_checkpoints(str(tmp_path / "root"))
    assert (tmp_path / "root" / entry.checkpoint_id / "MANIFEST.json").stat().st_uid == 4242
    assert segments(shm) == []


def test_memory_that_is_not_there_is_an_error_before_the_first_byte(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NotEnoughSharedMemory, match="a slot needs 4096 bytes"):
        shm_slots.create(str(shm), shm_slots.SlotName(0, "0" * 12, 0, 0), 4096)
    assert segments(shm) == []


def test_an_image_without_a_control_page_is_swept(shm: Path) -> None:
    name = shm_slots.SlotName(os.getuid(), "0" * 12, 0, 0)
    (shm / name.file("img")).write_bytes(b"x")
    with pytest.raises((OSError, CheckpointError)):
        shm_slots.attach(str(shm), name)
    flush.flush()
    assert segments(shm) == []


def test_one_agent_per_rank_and_none_is_ended_while_its_trainer_lives(shm: Path) -> None:
    path = str(shm / "x.lock")
    held = lock.acquire_ending_stale_agent(path, process.this_process())
    other = process.Process(1, 1)
    with pytest.raises(RunIsOwned, match=f"process {os.getpid()} on this node"):
        lock.acquire_ending_stale_agent(path, other)
    assert lock.try_acquire(path) is None
    held.release()
    lock.acquire_ending_stale_agent(path, other).release()
    assert segments(shm) == []


def test_the_agent_of_a_dead_trainer_is_ended(shm: Path, tmp_path: Path) -> None:
    path = str(shm / "x.lock")
    program = (
        "import sys, time; from hyperpod_kit.checkpoint.agent.shm import lock\n"
        "from hyperpod_kit.system import process\n"
        "held = lock.acquire_ending_stale_agent(sys.argv[1], process.Process(2**22 + 1, 1))\nprint('held', "
        "flush=True)\n"
        "time.sleep(600)"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    assert agent.stdout is not None and agent.stdout.readline() == b"held\n"
    lock.acquire_ending_stale_agent(path, process.this_process()).release()
    assert agent.wait(60) == -lock.STOP
