"""Saves that come to nothing are heard elsewhere too: in the node's shared memory, on the root, by `job status`."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, cast

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush, shm_cleanup
from hyperpod_kit.checkpoint.agent.leader import failure_rows
from hyperpod_kit.checkpoint.agent.leader.failure_counter import FailureCounter
from hyperpod_kit.checkpoint.agent.leader.failure_rows import Row
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, OrderKind
from hyperpod_kit.checkpoint.agent.shm import failure_note, note_page, shm_slots
from hyperpod_kit.checkpoint.agent.shm.failure_note import Note
from hyperpod_kit.checkpoint.repository import policy, retention
from hyperpod_kit.checkpoint.repository.format.layout import CheckpointId
from hyperpod_kit.checkpoint.repository.records import catalog, identity
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.checkpoint.repository.store.restricted import RestrictedStore
from hyperpod_kit.job import cli
from hyperpod_kit.job.status import saves
from tests.support.wait import until

NOTE = Note("run", "/root", "7", 80, 1000.5, 0, "")
NAME = f"hpk-{os.getuid()}-{'0a' * 6}-00000.saves"


class Inline:
    """A worker that does what it is given at once, and can be made to fail."""

    def __init__(self) -> None:
        self.why: List[str] = []

    def submit(self, event: str, key: Any, job: Any) -> None:
        try:
            job()
            self.why.append("")
        except Exception as err:
            self.why.append(str(err))


class Place:
    def __init__(self, store: str) -> None:
        self.store = store


def counted(folder: Path, root: Path, worker: Any = None) -> FailureCounter:
    return FailureCounter(
        str(folder),
        str(root),
        identity.ensure_run_identity(str(root), "run"),
        "abc123",
        cast(Any, Place(str(root))),
        worker or cast(Any, Inline()),
        clock=lambda: 5000.0,
    )


def the_note(folder: Path) -> Note:
    found = failure_note.read_all(str(folder))
    assert len(found) == 1
    return found[0].note


def test_rank_0_counts_what_is_of_its_start_and_each_save_once(shm: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    heard = counted(shm, root)
    heard.count_ended_save_and_write_note(
        Order(OrderKind.COMMITTED, (1, 3, "other0"), str(CheckpointId(3, 30, 1, "other0")))
    )
    heard.count_ended_save_and_write_note(
        Order(OrderKind.OVERTAKEN, (2, 4, "abc123"), "seq 5 goes to storage in its place")
    )
    heard.count_ended_save_and_write_note(Order(OrderKind.SEALED, (2, 4, "abc123"), ""))
    assert not failure_note.read_all(str(shm))  # nothing has ended: nothing is said
    for seq, kind in (
        (5, OrderKind.FAILED),
        (6, OrderKind.REFUSED),
        (7, OrderKind.DROPPED),
        (7, OrderKind.FAILED),
        (8, OrderKind.FAILED),
    ):
        heard.count_ended_save_and_write_note(Order(kind, (2, seq, "abc123"), f"why {seq}\x1b[31m"))
    assert the_note(shm) == Note("run", str(root), "", None, None, 4, "why 8 [31m")
    assert sorted(os.listdir(root / ".hpk")) == [f"saves-e000002-00000{seq}.json" for seq in (5, 6, 8)]
    assert failure_rows.read_newest(str(root)) == Row(2, 8, 4, "why 8 [31m", 5000.0)
    heard.count_ended_save_and_write_note(
        Order(OrderKind.COMMITTED, (2, 9, "abc123"), str(CheckpointId(9, 90, 2, "abc123")))
    )
    assert the_note(shm) == Note("run", str(root), "", 90, 5000.0, 0, "")
    (info,) = [os.stat(shm / name) for name in os.listdir(shm)]
    assert info.st_size == note_page.PAGE and info.st_mode & 0o777 == 0o600


def test_what_the_root_did_not_take_is_said_with_the_next_loss(shm: Path, tmp_path: Path) -> None:
    root, worker = tmp_path / "root", Inline()
    heard = counted(shm, root, worker)
    os.rename(root, tmp_path / "away")
    root.mkdir()  # another's, or a mount point without its mount: nothing is put there
    heard.count_ended_save_and_write_note(Order(OrderKind.FAILED, (1, 1, "abc123"), "gone"))
    heard.on_row_written(worker.why[-1])
    assert "no RUN.json" in worker.why[-1] and not os.listdir(root)
    heard.count_ended_save_and_write_note(Order(OrderKind.FAILED, (1, 2, "abc123"), "gone"))
    heard.on_row_written(worker.why[-1])
    root.rmdir()
    os.rename(tmp_path / "away", root)
    heard.count_ended_save_and_write_note(Order(OrderKind.FAILED, (1, 3, "abc123"), "full"))  # the third is no doubling
    heard.on_row_written(worker.why[-1])
    assert worker.why[-1] == "" and failure_rows.read_newest(str(root)) == Row(1, 3, 3, "full", 5000.0)


def test_saves_that_are_lost_by_turns_do_not_fill_the_root(shm: Path, tmp_path: Path) -> None:
    heard = counted(shm, tmp_path / "root")
    for seq in range(1, 401, 2):
        heard.count_ended_save_and_write_note(Order(OrderKind.DROPPED, (1, seq, "abc123"), "no slot was free"))
        heard.count_ended_save_and_write_note(
            Order(OrderKind.COMMITTED, (1, seq + 1, "abc123"), str(CheckpointId(seq + 1, seq, 1, "abc123")))
        )
    assert len(os.listdir(tmp_path / "root/.hpk")) == 100
    for seq in range(401, 405):
        heard.count_ended_save_and_write_note(Order(OrderKind.DROPPED, (1, seq, "abc123"), "no slot was free"))
    found = failure_rows.read_newest(str(tmp_path / "root"))
    assert found is not None and (found.seq, found.lost_in_row) == (404, 4)


def plant(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**NOTE._asdict(), **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"run": 7},
        {"root": None},
        {"last_why": ["x"]},
        {"lost_in_row": True},
        {"lost_in_row": -1},
        {"lost_in_row": 1.0},
        {"lost_in_row": 2**70},
        {"durable_step": None},
        {"durable_at": None},
        {"durable_at": float("nan")},
        {"durable_at": float("inf")},
        {"durable_at": "now"},
        {"durable_at": 1e300},
        {"durable_step": False},
        {"more": 1},
    ],
)
def test_a_note_of_odd_types_is_none(tmp_path: Path, changes: Dict[str, Any]) -> None:
    plant(tmp_path / NAME)
    assert the_note(tmp_path) == NOTE
    plant(tmp_path / NAME, **changes)
    assert not failure_note.read_all(str(tmp_path))


def test_what_others_leave_in_shared_memory_is_passed_over_and_waited_for_never(tmp_path: Path) -> None:
    def name(number: int, uid: int = os.getuid()) -> Path:
        return tmp_path / f"hpk-{uid}-{number:012x}-00000.saves"

    os.mkfifo(name(1))
    plant(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", name(2))
    name(3).mkdir()
    name(4).write_bytes(b" " * (1 << 20))
    name(5).write_text("[" * 4000)
    name(6).write_bytes(b"\xff\xfe")
    name(7).write_text("7")
    plant(name(8, os.getuid() + 1))
    plant(tmp_path / f"hpk-{os.getuid()}-{9:012x}-00001.saves")
    plant(name(10), run="a\nb\ud800" + "x" * 3000)
    (found,) = failure_note.read_all(str(tmp_path))
    assert found.run_hash == f"{10:012x}" and found.note.run == ("a b " + "x" * 200)[:199] + "…"
    for number in range(20, 60):
        plant(name(number))
    assert len(failure_note.read_all(str(tmp_path))) == note_page.MOST_OF_ONE


def test_a_note_is_not_written_through_what_lies_in_its_place(tmp_path: Path) -> None:
    path, other = tmp_path / NAME, tmp_path / "capture.img"
    other.write_bytes(b"i" * note_page.PAGE)
    os.link(other, path)
    with pytest.raises(OSError):
        failure_note.write(str(path), NOTE)
    path.unlink()
    os.symlink(other, path)
    with pytest.raises(OSError):
        failure_note.write(str(path), NOTE)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError):
        failure_note.write(str(path), NOTE)
    assert other.read_bytes() == b"i" * note_page.PAGE
    path.unlink()
    failure_note.write(
        str(path), NOTE._replace(last_why="\\" * 9000, root="/" + "\U0001f4be" * 9000, run="\udcff" * 900)
    )
    assert path.stat().st_size == note_page.PAGE and the_note(tmp_path).last_why == "\\" * 199 + "…"
    failure_note.write(str(path), NOTE)
    assert the_note(tmp_path) == NOTE


def test_dead_runs_leave_no_note_behind(shm: Path, capture: Any) -> None:
    slot = capture()
    path = shm / shm_slots.failure_note_file_name(os.getuid(), slot.name.run, 0)
    failure_note.write(str(path), NOTE)
    assert [one.removed for one in flush.flush(timeout=5)] == [True]
    assert not os.listdir(shm)
    capture(seq=2, state="writing")
    failure_note.write(str(path), NOTE)
    assert (
        shm_cleanup.remove_empty_segments_of_dead_runs(str(shm), excluded_run="") == [slot.name.run]
        and not path.exists()
    )


@pytest.mark.parametrize(
    "durable, lost, expected",
    [
        (None, None, []),
        (80, None, ["newest durable: step 80, 12 min ago"]),
        (
            80,
            8,
            [
                "newest durable: step 80, 12 min ago",
                "8 saves in a row failed since (at TIME): the disk is full",
            ],
        ),
        (80, 1, ["newest durable: step 80, 12 min ago", "1 save failed since (at TIME): the disk is full"]),
        (None, 2, ["newest durable: none", "2 saves in a row failed (at TIME): the disk is full"]),
    ],
)
def test_what_job_status_says(durable: Any, lost: Any, expected: List[str]) -> None:
    at = 1_000_000.0
    found = saves.SaveStatus(
        saves.NewestDurable("a", 1, 1, durable, at) if durable else None,
        Row(1, 2, lost, "the disk is full", at) if lost else None,
    )
    said = saves.describe_save_status(found, at + 720)
    assert [line.replace(time.strftime("%H:%MZ", time.gmtime(at)), "TIME") for line in said] == expected
    assert json.loads(json.dumps(found.to_dict()))["unknown"] == ""


@pytest.mark.parametrize("kind", ["posix", "mountpoint", "object"])
def test_a_word_on_the_root_is_only_ever_created(tmp_path: Path, kind: str) -> None:
    kinds: Mapping[str, Callable[[str], Store]] = {
        "posix": PosixStore,
        "mountpoint": RestrictedStore,
        "object": lambda path: open_store(f"memory://{path}"),
    }
    where = kinds[kind](str(tmp_path / "root"))
    whose = identity.ensure_run_identity(where, "run")
    assert failure_rows.read_newest(where) is None
    rows = [Row(1, seq, count, f"why {seq}", 5.0) for seq, count in ((2, 1), (3, 2), (1_000_005, 4))]
    for row in rows:
        failure_rows.create_row_file_on_owned_root(where, whose, row)
        failure_rows.create_row_file_on_owned_root(where, whose, row._replace(why="said again by the next agent"))
    assert failure_rows.read_newest(where) == rows[-1]
    assert catalog.list_checkpoints(where) == [] and retention.enforce(where, policy.Latest(1), whose).remaining == ()


def test_words_on_the_root_that_are_none_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / failure_rows.FOLDER
    assert failure_rows.read_newest(str(tmp_path)) is None
    folder.mkdir(parents=True)
    row = Row(1, 3, 2, "a\nb\x1b]0;", 5.0)
    (folder / "saves-e000001-000003.json").write_text(json.dumps(row._asdict()))
    (folder / "saves-e000001-000004.json").write_text(json.dumps(row._asdict()))  # not what its name says
    (folder / "saves-e000001-000005.json").write_text("{")
    os.mkfifo(folder / "saves-e000001-000006.json")
    (folder / "saves-e7-1.json").write_text("{}")
    assert failure_rows.read_newest(str(tmp_path)) == row._replace(why="a b ]0;")
    assert saves.describe_save_status(saves.read_save_status(str(tmp_path)), 6.0)[0] == "newest durable: none"
    shutil.rmtree(folder)
    folder.write_text("no directory")
    assert "unknown" in saves.describe_save_status(saves.read_save_status(str(tmp_path)), 6.0)[0]


def test_a_root_of_another_framework_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "global_step80").mkdir()
    (tmp_path / "latest").write_text("global_step80")
    assert (
        saves.read_save_status(str(tmp_path)) == saves.SaveStatus()
        and saves.describe_save_status(saves.SaveStatus(), 0.0) == []
    )


def test_a_run_whose_saves_fail_is_seen_from_elsewhere_until_one_is_durable(
    shm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    from hyperpod_kit.checkpoint import Manager, State

    root = tmp_path / "run"
    state = State(torch.nn.Linear(8, 8))
    manager = Manager(str(root), max_lost=None)
    manager.restore(state)
    assert manager.save(0, state).wait("durable", 60)
    until(lambda: the_note(shm).durable_step == 0)
    os.rename(root, tmp_path / "away")
    root.write_text("no directory")
    with pytest.warns(RuntimeWarning, match="came to nothing|failed"):
        for step in range(1, 4):
            assert not manager.save(step, state, on_busy="wait").wait("durable", 10)
    root.unlink()
    os.rename(tmp_path / "away", root)
    # A file where the attempt's directory would be: the root takes all else.
    (root / str(CheckpointId(5, 4, 1, manager._start.incarnation))).write_text("in its place")
    with pytest.warns(RuntimeWarning):
        assert not manager.save(4, state, on_busy="wait").wait("durable", 10)
        until(lambda: the_note(shm).lost_in_row == 4)
        assert the_note(shm).durable_step == 0 and the_note(shm).run == manager._start.run.run
        # The row of the third may come late, when the root is there again.
        until(lambda: (row := failure_rows.read_newest(str(root))) is not None and row.lost_in_row == 4)
        assert cli.main(["status", "--root", str(root)]) == 0
        said = capsys.readouterr().out
        assert "newest durable: step 0, " in said and "\n4 saves in a row failed since (at " in said
        assert manager.save(5, state, on_busy="wait").wait("durable", 60)
    until(lambda: the_note(shm).lost_in_row == 0)
    assert the_note(shm).durable_step == 5
    assert cli.main(["status", "--root", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["saves"]
    assert (found["durable"]["step"], found["lost"], found["unknown"]) == (5, None, "")
    assert manager.close() and not os.listdir(shm)
