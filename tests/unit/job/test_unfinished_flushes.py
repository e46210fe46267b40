"""Who starts from older captures than those that nodes are still bringing to storage waits, and knows when not to."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from hyperpod_kit.checkpoint.repository.records import flush_note
from hyperpod_kit.checkpoint.repository.records.flush_note import FlushNote
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.job.resume.checkpoint_choice import NONE, Choice
from hyperpod_kit.job.resume.unfinished_flushes import (
    SILENT,
    STALL,
    FlushWatch,
    choose_after_flushes_end,
    make_note_reader,
)

NOTE = FlushNote("n1", "7", 1, 5, 50, 8_000_000_000)


def choice(seq: int) -> Choice:
    return Choice(f"seq-{seq}", 10 * seq, (1, seq)) if seq else Choice(NONE, 0)


@pytest.mark.parametrize(("order", "waits"), [(None, True), ((1, 4), True), ((1, 5), False), ((2, 1), False)])
def test_only_what_is_newer_is_waited_for(order: Optional[Tuple[int, int]], waits: bool) -> None:
    assert bool(FlushWatch().update_and_list_ongoing_flushes({"a": NOTE}, order, 0.0)) is waits


def test_a_note_that_is_not_renewed_is_of_a_node_that_died() -> None:
    watch = FlushWatch()
    for second in range(0, 60):
        note = replace(NOTE, beat=min(second, 30), moved=second)
        going = watch.update_and_list_ongoing_flushes(
            {"a": note if second <= 30 else replace(NOTE, beat=30, moved=30)}, None, float(second)
        )
        assert bool(going) is (second < 30 + SILENT), second
    assert watch.silent(60.0) == ["a"]


def test_a_flush_that_lives_and_moves_nothing_is_waited_for_no_longer() -> None:
    watch = FlushWatch()
    for second in range(0, 200):
        going = watch.update_and_list_ongoing_flushes({"a": replace(NOTE, beat=second)}, None, float(second))
        assert bool(going) is (second < STALL), second
    assert watch.update_and_list_ongoing_flushes({"a": replace(NOTE, beat=200, moved=1)}, None, 200.0), "it moves again"
    assert watch.silent(200.0) == []


def test_a_note_that_is_just_being_written_is_there(tmp_path: Path) -> None:
    """Where storage is busy that takes seconds."""
    watch = FlushWatch()
    assert watch.update_and_list_ongoing_flushes({"a": NOTE}, (1, 4), 0.0) and watch.update_and_list_ongoing_flushes(
        {"a": None}, (1, 4), 25.0
    )
    assert watch.update_and_list_ongoing_flushes(
        {"a": NOTE}, (1, 4), 50.0
    ) and not watch.update_and_list_ongoing_flushes({"a": NOTE}, (1, 5), 51.0)
    assert FlushWatch().update_and_list_ongoing_flushes({"a": None}, (1, 4), 0.0) == [None]


def test_the_newest_is_chosen_once_it_has_arrived(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    name = flush_note.new_note_path()
    flush_note.write(store, name, NOTE)
    arrived: List[int] = [3]
    said: List[str] = []
    rounds: List[float] = []

    def pause(seconds: float) -> None:
        rounds.append(seconds)
        flush_note.write(store, name, replace(NOTE, beat=len(rounds), moved=len(rounds) * 10**9))
        if len(rounds) == 3:
            arrived[0] = 5
            flush_note.try_remove(store, name)

    found = choose_after_flushes_end(
        lambda: choice(arrived[0]), make_note_reader(str(tmp_path)), 600.0, pause=pause, report_line=said.append
    )
    assert found.step == 50 and len(rounds) == 3
    assert said == [
        "n1 still brings step 50 (seq 5) of job 7 from memory to storage, 0.0 of 8.0 GB; waiting up to 600 s more"
    ]


def test_the_wait_has_a_bound_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    said: List[str] = []

    def notes(stale: List[str]) -> Dict[str, Optional[FlushNote]]:
        return {"a": replace(NOTE, beat=int(clock[0]), moved=int(clock[0])), "b": replace(NOTE, host="n2", seq=4)}

    def pause(seconds: float) -> None:
        clock[0] += seconds

    assert choose_after_flushes_end(lambda: choice(3), notes, 40.0, pause=pause, report_line=said.append).step == 30
    assert clock[0] == pytest.approx(40.0, abs=2.0)
    assert said[-1].endswith("continuing without them after 40 s") and said[0].startswith("n1, n2 still bring step 50")


@pytest.mark.parametrize("found", [choice(3)._replace(stepped_back=True), choice(3)._replace(kind="dcp")])
def test_who_steps_back_or_trains_with_another_framework_waits_for_nothing(found: Choice) -> None:
    def notes(stale: List[str]) -> Dict[str, Optional[FlushNote]]:
        raise AssertionError("nobody asks")

    assert choose_after_flushes_end(lambda: found, notes, 600.0) is found


def test_what_others_write_there_makes_nobody_wait_for_long_nor_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "flushes").mkdir()
    for number, text in enumerate((b"", b"{}", b'{"format": "hpk-flush/1"}', b"x" * 5000)):
        (tmp_path / f"flushes/n-{number}.json").write_bytes(text)
    (tmp_path / "flushes/n-9.json").symlink_to("/etc/passwd")
    flush_note.write(store, flush_note.new_note_path(), replace(NOTE, seq=-1))
    assert set(flush_note.read_all(store).values()) == {None}
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def pause(seconds: float) -> None:
        clock[0] += seconds

    said: List[str] = []
    assert (
        choose_after_flushes_end(
            lambda: choice(3), make_note_reader(str(tmp_path)), 600.0, pause=pause, report_line=said.append
        ).step
        == 30
    )
    assert clock[0] == pytest.approx(SILENT, abs=2.0) and said[0].startswith("a node is still flushing captures")
    assert choose_after_flushes_end(lambda: choice(3), make_note_reader(str(tmp_path)), 600.0, pause=_never).step == 30
    assert Path("/etc/passwd").exists()


def _never(_: float) -> None:
    raise AssertionError("it waits")


def test_a_flush_leaves_a_note_while_it_writes_and_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, held at its first write until somebody has seen its note."""
    from hyperpod_kit.checkpoint.agent.flush import flush
    from hyperpod_kit.checkpoint.agent.flush.flush_progress import Sign
    from hyperpod_kit.checkpoint.agent.persist import persist
    from tests.faults.capturer import capture

    shm, root = tmp_path / "shm", tmp_path / "root"
    shm.mkdir()
    monkeypatch.setenv("HPK_SHM_DIR", str(shm))
    capture(str(shm), str(root), job="7", owner=(2**22 + 1, 1), seq=5)
    seen, real = threading.Event(), persist.write_shard
    signs: List[Any] = []

    def held(*args: Any, **more: Any) -> Any:
        assert seen.wait(30)
        return real(*args, **more)

    monkeypatch.setattr(persist, "write_shard", held)
    done: List[Any] = []
    flushing = threading.Thread(target=lambda: done.extend(flush.flush(job="7", on_progress=signs.append)))
    flushing.start()

    def pause(seconds: float) -> None:
        seen.set()
        flushing.join(30)

    def newest() -> Choice:
        from hyperpod_kit.job.resume.checkpoint_choice import choose

        return choose(str(root))

    from tests.support.wait import until

    until(lambda: any(sign.announced for sign in signs), what="the note")
    assert choose_after_flushes_end(newest, make_note_reader(str(root)), 60.0, pause=pause).step == 50
    assert done[0].removed and not list((root / "flushes").iterdir())
    assert isinstance(signs[-1], Sign)
