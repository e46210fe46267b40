"""Saves that come to nothing are heard: by the log, by a warning, by an error, and by close()."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import threading
import warnings
from pathlib import Path
from typing import Any, List

import pytest

from tests.support.clock import FakeClock
from tests.support.wait import until

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import parse_agent_event_if_known
from hyperpod_kit.checkpoint.agent.reports import save_failures
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.saves.saves import Saves
from hyperpod_kit.errors import CheckpointError

KEY = "abc123"


def ended(saves: Saves, seq: int, kind: str, note: str = "the disk is full", **more: Any) -> None:
    handle = saves.new(10 * seq, 1, seq)
    event = parse_agent_event_if_known({"ev": kind, "key": [1, seq, KEY], "note": note, "was": kind, **more})
    assert event is not None
    saves.handle_event(event, KEY)
    assert handle.final


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def state() -> State:
    return State(torch.nn.Linear(8, 8))


def weight_of(state: State) -> torch.Tensor:
    assert isinstance(state.model, torch.nn.Linear)
    return state.model.weight


def runtime_warnings(caught: pytest.WarningsRecorder) -> List[warnings.WarningMessage]:
    """Without those of other tests' objects, which the garbage collector may have come to meanwhile."""
    return [warning for warning in caught if warning.category is RuntimeWarning]


def test_the_first_and_then_every_doubling_is_said_with_how_long_ago_the_newest_durable_one_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock(1000.0)
    saves = Saves("/root", None, clock=clock)
    ended(saves, 1, "durable")
    clock.now += 720
    for seq in range(2, 12):
        ended(saves, seq, "failed")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "save of step 20: failed: the disk is full; newest durable is step 10, 12 min ago",
        "save of step 30: failed: the disk is full; the 2nd in a row; newest durable is step 10, 12 min ago",
        "save of step 50: failed: the disk is full; the 4th in a row; newest durable is step 10, 12 min ago",
        "save of step 90: failed: the disk is full; the 8th in a row; newest durable is step 10, 12 min ago",
    ]
    with pytest.warns(RuntimeWarning) as heard:
        saves.emit_warnings(1)
    places = [warning.filename for warning in runtime_warnings(heard)]
    assert places == [__file__] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saves.emit_warnings(1)  # each is said once
    ended(saves, 12, "durable")
    ended(saves, 13, "dropped", "rank 1 went on without it")
    assert caplog.messages[-1].startswith("save of step 130: dropped: rank 1 went on without it; newest durable is ")


def test_so_many_in_a_row_are_an_error_until_one_is_durable_again() -> None:
    saves = Saves("/root", 3)
    for seq in (1, 2):
        ended(saves, seq, "failed")
        assert saves.trouble is None
    ended(saves, 3, "dropped", "rank 2: Input/output error")
    trouble = saves.trouble
    assert trouble is not None and "3 saves in a row failed" in str(trouble)
    assert "save of step 30: dropped: rank 2: Input/output error" in str(trouble)
    assert "max_lost=None" in str(trouble.hint)
    ended(saves, 4, "durable")
    assert saves.trouble is None
    for bad in (0, -1):
        with pytest.raises(ValueError, match="max_lost"):
            Saves("/root", bad)


def test_storage_that_is_only_slower_than_the_saves_is_said_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    saves = Saves("/root", 2)
    for seq in range(1, 5):
        saves.skip(saves.new(seq, 1, seq))
    ended(saves, 5, "dropped", f"rank 1: {save_failures.NO_SLOT}")
    ended(saves, 6, "dropped", f"rank 1: {save_failures.REPLACED}")
    assert saves.trouble is None and saves.skipped == 4 and "the 4th in a row" in caplog.text
    caplog.clear()
    ended(saves, 7, "dropped", "seq 8 goes to storage in its place", was="overtaken")  # it is on the nodes' disks
    ended(saves, 8, "failed", save_failures.NO_SLOT + " on the device")
    assert saves.trouble is None and not caplog.text
    ended(saves, 9, "failed")
    assert saves.trouble is not None


def test_a_late_end_of_an_older_save_does_not_begin_a_row() -> None:
    tally = save_failures.Tally(FakeClock(1000.0))
    assert (
        tally.record_failure_and_check_report_due(3, "full")
        and not tally.record_durable_and_check_recovery(2, 20)
        and tally.in_a_row == 1
    )
    assert (
        tally.record_durable_and_check_recovery(4, 40)
        and not tally.record_failure_and_check_report_due(1, "full")
        and tally.in_a_row == 0
    )
    for seq in range(5, 3000):
        tally.record_failure_and_check_report_due(seq, "full")
    assert tally.in_a_row == tally.broken == 2995 and len(tally._lost) < 300
    assert [save_failures.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 111, 122)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "111th",
        "122nd",
    ]
    assert [save_failures.ago(s) for s in (-5, 59, 60, 3599, 3600, 7500)] == [
        "0 s ago",
        "59 s ago",
        "1 min ago",
        "59 min ago",
        "1 h 0 min ago",
        "2 h 5 min ago",
    ]


def test_a_root_that_takes_nothing_any_more_is_heard_and_ends_the_run_after_so_many(
    root: str, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    """The root was deleted under the run and is a file now; the same for full and read-only ones."""
    manager = Manager(root, max_lost=2, every=1)
    manager.restore(state)
    assert manager.save(0, state).wait("durable", 60)
    shutil.rmtree(root)
    Path(root).write_text("no directory")
    with pytest.warns(RuntimeWarning) as heard:
        assert not manager.save(1, state, on_busy="wait").wait("durable", 10)
        assert "save of step 1: failed" in caplog.text and "newest durable is step 0" in caplog.text
        # By the next call at the latest; by the very one where the agent is faster than the trainer. The third may find
        # its slot still taken by one of the two that failed.
        with pytest.raises(CheckpointError, match=r"in a row failed, the last: save of step \d: (failed|skipped)"):
            assert not manager.save(2, state, on_busy="wait").wait("durable", 10)
            manager.step(3, state)
    message = str(runtime_warnings(heard)[0].message)
    assert re.search("save of step 1: failed: .*; newest durable is step 0, ", message), message
    assert re.search("save of step 2: failed: .*the 2nd in a row", caplog.text)
    with pytest.warns(RuntimeWarning, match=r"the newest save, of step \d, is not durable"):
        assert not manager.close(10)


def test_close_is_false_when_the_newest_save_was_skipped(root: str, state: State) -> None:
    """Save, and then close() for `every save is durable`: the last step was lost, and close() said True."""
    manager = Manager(root)
    manager.restore(state)
    os.kill(manager._agent.pid, signal.SIGSTOP)
    with pytest.warns(RuntimeWarning, match="save of step 2: skipped: .* no slot was free"):
        handles = [manager.save(step, state) for step in range(3)]
    os.kill(manager._agent.pid, signal.SIGCONT)
    assert handles[0].wait("durable", 60) and handles[1].wait("durable", 60)
    with pytest.warns(RuntimeWarning, match="the newest save, of step 2, is not durable: skipped"):
        assert manager.close() is False
    assert manager.close() is False  # asked again
    with Manager(root) as manager:
        got = manager.restore(state)
        assert isinstance(got, Restored) and got.step == 1


def test_an_older_save_that_failed_is_no_reason_for_false(root: str, state: State) -> None:
    manager = Manager(root)
    manager.restore(state)
    os.kill(manager._agent.pid, signal.SIGSTOP)
    with pytest.warns(RuntimeWarning, match="skipped"):
        for step in range(3):
            last = manager.save(step, state)
    os.kill(manager._agent.pid, signal.SIGCONT)
    assert not last.wait("durable", 10)
    assert manager.save(3, state, on_busy="wait").wait("durable", 60)
    assert manager.close()


def test_with_closes_at_the_end_and_says_what_is_not_durable(root: str, state: State) -> None:
    with Manager(root) as manager:
        manager.restore(state)
        handle = manager.save(0, state)
    assert handle.state == "durable" and not os.listdir(os.environ["HPK_SHM_DIR"])
    with pytest.warns(RuntimeWarning, match="step 1"), pytest.raises(
        CheckpointError, match="newest save is not durable"
    ), Manager(root) as manager:
        manager.restore(state)
        shutil.rmtree(root)
        Path(root).write_text("no directory")
        manager.save(1, state)


def test_with_an_exception_nothing_is_waited_for_and_memory_keeps_the_newest(root: str, state: State) -> None:
    with pytest.raises(RuntimeError, match="in the loop"), Manager(root) as manager:
        manager.restore(state)
        torch.nn.init.constant_(weight_of(state), 3.0)
        os.kill(manager._agent.pid, signal.SIGSTOP)  # so that waiting would be for ever
        manager.save(0, state)
        raise RuntimeError("in the loop")
    os.kill(manager._agent.pid, signal.SIGCONT)
    assert manager._agent.wait_exit(10) and [entry.committed for entry in catalog.list_checkpoints(root)] == [True]
    with pytest.raises(CheckpointError, match="is closed"):
        manager.step(1, state)
    torch.nn.init.constant_(weight_of(state), 4.0)
    with Manager(root) as manager:  # in the same process: the first has let go
        got = manager.restore(state)
        assert isinstance(got, Restored) and (got.step, got.tier) == (0, "memory")
        assert weight_of(state)[0, 0].item() == 3.0
    with pytest.raises(SystemExit), Manager(root) as manager:
        manager.restore(state)
        handle = manager.save(5, state)
        raise SystemExit(75)  # an end on purpose is a normal one
    assert handle.state == "durable"


def test_a_callback_is_called_once_at_the_end_of_a_save(
    root: str, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    called: List[Any] = []
    came = threading.Event()
    with Manager(root) as manager:
        manager.restore(state)
        handle = manager.save(0, state)
        handle.add_done_callback(lambda ended: 1 // 0)
        handle.add_done_callback(lambda ended: (called.append(ended.state), came.set()))
        assert came.wait(10) and called == ["durable"]
        handle.add_done_callback(lambda ended: called.append(ended))
        assert called == ["durable", handle]
    until(lambda: "a callback of <save of step 0: durable> failed" in caplog.text)
