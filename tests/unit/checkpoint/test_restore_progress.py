"""What a restore says of how far it is, and that whoever hears of it cannot harm it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Callable, List

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, Restored, RestoreProgress, State, load_state  # noqa: E402
from hyperpod_kit.checkpoint.transfer import restore_progress as progress  # noqa: E402
from tests.unit.checkpoint.agent_run import abandon  # noqa: E402

ROWS = 2_000_000  # 72 MB: several chunks


def state() -> State:
    return State(torch.nn.Linear(8, ROWS), rng=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Manager(tmp_path / "root") as manager:
        saved = state()
        manager.restore(saved)
        manager.save(4, saved, on_busy="wait")
    return tmp_path / "root"


class Clock:
    """Every look at it is a second later."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "CALL_INTERVAL_S", 0.0)


def in_order(heard: List[RestoreProgress], attempt: str) -> bool:
    done = [one.bytes_read for one in heard]
    whole = {one.bytes_total for one in heard}
    return done == sorted(done) and whole == {done[-1]} and {one.checkpoint_id for one in heard} == {attempt}


def from_storage(root: Path, hear: Callable[[RestoreProgress], None]) -> Restored:
    return load_state(root, state(), progress=hear)


def from_memory(root: Path, hear: Callable[[RestoreProgress], None]) -> Restored:
    manager = Manager(root)
    try:
        found = state()
        manager.restore(found)
        manager.save(5, found, on_busy="wait").wait("sealed", 60)
    finally:
        abandon(manager)
    with Manager(root) as manager:
        restored = manager.restore(state(), progress=hear)
    assert isinstance(restored, Restored)
    return restored


@pytest.mark.parametrize(("read", "tier"), [(from_storage, "storage"), (from_memory, "memory")])
@pytest.mark.usefixtures("every_chunk")
def test_it_is_told_with_each_chunk_and_at_the_end(root: Path, read: Any, tier: str) -> None:
    heard: List[RestoreProgress] = []
    restored = read(root, heard.append)
    assert restored.tier == tier and len(heard) > 2
    assert in_order(heard, restored.checkpoint_id)
    assert 72_000_000 < heard[-1].bytes_total <= restored.bytes


def test_a_short_one_says_only_its_end(root: Path) -> None:
    heard: List[RestoreProgress] = []
    restored = from_storage(root, heard.append)
    assert heard[-1].bytes_read == heard[-1].bytes_total and in_order(heard, restored.checkpoint_id)


@pytest.mark.usefixtures("every_chunk")
def test_who_hears_cannot_harm_it(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: List[RestoreProgress] = []

    def broken(at: RestoreProgress) -> None:
        calls.append(at)
        raise ValueError("no such bar")

    assert from_storage(root, broken).step == 4
    assert len(calls) == 1 and "no such bar" in caplog.text


def test_nothing_was_ever_saved(tmp_path: Path) -> None:
    heard: List[RestoreProgress] = []
    with Manager(tmp_path / "root") as manager:
        manager.restore(state(), progress=heard.append)
    assert heard == []


def test_seldom_to_who_asked_and_more_seldom_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hyperpod_kit.checkpoint")
    heard: List[RestoreProgress] = []
    clock = Clock(0.0)
    read = progress.ReadBytes(heard.append, logging.INFO, clock)
    read.begin("seq-1", 100_000_000)
    for _ in range(100):
        clock.now += 0.125  # floats have it exactly
        read(1_000_000)
    assert [one.bytes_read // 1_000_000 for one in heard] == [*range(4, 101, 4)] and len(caplog.messages) == 2
    assert caplog.messages[0].endswith("of 100 MB of seq-1")


def test_bytes_that_were_not_expected_do_not_go_beyond_the_whole() -> None:
    heard: List[RestoreProgress] = []
    read = progress.ReadBytes(heard.append, logging.INFO, Clock())
    read.begin("seq-1", 10)
    read(8)
    read(8)
    read.begin("seq-0", 5)  # the next tier or attempt
    read(1)
    read.report_complete()
    assert [(one.checkpoint_id, one.bytes_read) for one in heard] == [
        ("seq-1", 8),
        ("seq-1", 10),
        ("seq-0", 1),
        ("seq-0", 5),
    ]


def test_threads_do_not_wait_for_who_hears_slowly() -> None:
    inside, go_on = threading.Event(), threading.Event()
    heard: List[RestoreProgress] = []

    def slow(at: RestoreProgress) -> None:
        heard.append(at)
        inside.set()
        go_on.wait(60)

    read = progress.ReadBytes(slow, logging.INFO, Clock())
    read.begin("seq-1", 30)
    first = threading.Thread(target=read, args=(10,))
    first.start()
    assert inside.wait(60)
    read(10)  # returns, and says nothing
    go_on.set()
    first.join(60)
    read.report_complete()
    assert [one.bytes_read for one in heard] == [10, 30]
