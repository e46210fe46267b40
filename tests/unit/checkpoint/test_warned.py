"""Save and end on a warning signal: one process, two ranks, and who heard the signals before."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, Restored, State  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.checkpoint.saves.preemption_signal import SIGNALS  # noqa: E402
from tests.distributed import sharded_job  # noqa: E402


def state_of(step: int) -> State:
    return State(extra={"weights": torch.full((500,), float(step))})


def committed(root: str) -> list[int]:
    return sorted(entry.name.step for entry in catalog.iter_checkpoints_newest_first(root) if entry.committed)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Signals that somebody else has heard, who did so before."""
    found: list[int] = []
    before = {one: signal.signal(one, lambda number, _: found.append(number)) for one in SIGNALS}
    yield found
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_the_next_step_and_ends_with_75_however_often_it_comes(
    shm: Path, tmp_path: Path, number: signal.Signals, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "run")
    manager = Manager(root, every=100, save_on_signal=True)
    manager.restore(state_of(-1))
    assert manager.step(0, state_of(0)) is None and not manager.ending
    os.kill(os.getpid(), number)
    waits = manager._agent.wait_exit

    def told_again(seconds: float) -> bool:
        for one in SIGNALS:  # by Slurm, by `job run`, by srun: each of them may come while the save is on its way
            os.kill(os.getpid(), one)
        return waits(seconds)

    monkeypatch.setattr(manager._agent, "wait_exit", told_again)
    with pytest.raises(SystemExit) as ended:
        manager.step(1, state_of(1))
    os.kill(os.getpid(), number)
    assert ended.value.code == 75 and committed(root) == [1] and heard == []
    with Manager(root) as again:
        got = again.restore(state_of(-1))
    assert isinstance(got, Restored) and got.step == 1


def test_who_heard_the_signals_before_hears_them_after_a_normal_end(
    shm: Path, tmp_path: Path, heard: list[int]
) -> None:
    with Manager(tmp_path / "run", save_on_signal=True) as manager:
        manager.restore(state_of(-1))
    for number in SIGNALS:
        os.kill(os.getpid(), number)
    assert heard == list(SIGNALS)


def test_a_forked_child_ends_as_it_would_and_the_trainer_hears_nothing_of_it(shm: Path, tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with Manager(tmp_path / "run", every=100, save_on_signal=True) as manager:
        manager.restore(state_of(-1))
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(told, b"x")  # what comes before, Python forgets in a child
                end = time.monotonic() + 120
                while time.monotonic() < end:  # a pause() would miss a signal that came just before it
                    time.sleep(0.1)
            finally:
                os._exit(1)  # not a second pytest
        assert os.read(ready, 1) == b"x"
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        os.close(ready)
        os.close(told)
        assert manager.step(0, state_of(0)) is None
    assert committed(str(tmp_path / "run")) == []


def test_without_it_signals_are_left_alone_and_another_thread_cannot_hear_them(shm: Path, tmp_path: Path) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with Manager(tmp_path / "one"):
        assert [signal.getsignal(one) for one in SIGNALS] == before
    said: list[str] = []

    def elsewhere() -> None:
        try:
            Manager(tmp_path / "two", save_on_signal=True)
        except ValueError as err:
            said.append(str(err))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in said[0]


def until_told(root: str, told: int) -> dict[str, Any]:
    """Train until a signal that came to one rank ends all of them."""
    rank = int(os.environ["RANK"])
    manager = Manager(root, every=1000, save_on_signal=True)
    manager.restore(state_of(-1))
    try:
        for step in range(1000):
            if step == 5 and rank == told:
                os.kill(os.getpid(), signal.SIGUSR1)
            manager.step(step, state_of(step))
    except SystemExit as ended:
        return {"code": ended.code, "step": step}
    raise AssertionError("it went on")


@pytest.mark.distributed
def test_what_one_rank_is_told_all_ranks_save_at_the_same_step(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    found = sharded_job.run(tmp_path, 2, until_told, root, 1)
    assert found == [{"code": 75, "step": 6}] * 2 and committed(root) == [6]
