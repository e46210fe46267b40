"""Copies, schedule and the text of trees."""

from __future__ import annotations

import datetime
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint.ranks.collectives import Ranks  # noqa: E402
from hyperpod_kit.checkpoint.saves import save_schedule  # noqa: E402
from hyperpod_kit.checkpoint.transfer import memory_copy  # noqa: E402
from tests.support.rows import full  # noqa: E402


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 7, 65_535, 65_536, 65_543, 9 * 2**20 + 5, *full(70 * 2**20 + 3)])
def test_every_byte_is_copied_once_and_none_beside(threads: int, count: int) -> None:
    source = torch.randint(0, 255, (count,), dtype=torch.uint8)
    room = torch.full((count + 16,), 7, dtype=torch.uint8)
    pool = memory_copy.Copier(threads)
    done: list[object] = []
    target = room[8 : 8 + count]
    copies = [memory_copy.TensorCopy(room.data_ptr() + 8, source)]
    pool.start(memory_copy.cut_and_group_into_batches(copies, lambda _: target), done.append).help_and_wait()
    pool.close()
    assert torch.equal(room[8 : 8 + count], source) and done == [None]
    assert room[:8].tolist() == [7] * 8 and room[8 + count :].tolist() == [7] * 8


def test_views_of_any_layout_land_in_row_order() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    sources = [base.t(), base[:, ::2], base[1], torch.tensor(3.5), base.to(torch.bfloat16).t(), torch.empty(0, 3)]
    targets = [torch.zeros(source.shape, dtype=source.dtype) for source in sources]
    pool = memory_copy.Copier(2)
    by_address = {target.data_ptr(): target for target in targets}
    copies = [memory_copy.TensorCopy(t.data_ptr(), s) for t, s in zip(targets, sources, strict=True)]
    pool.start(memory_copy.cut_and_group_into_batches(copies, lambda copy: by_address[copy.target])).help_and_wait()
    pool.close()
    assert all(torch.equal(t, s) for t, s in zip(targets, sources, strict=True))


def test_an_error_in_any_thread_is_raised_and_told_once() -> None:
    told: list[BaseException | None] = []

    def fail() -> None:
        raise OSError("broken")

    copy = memory_copy.Copier(2).start([[(time.sleep, (0,))], [(fail, ())], [(time.sleep, (0,))]], told.append)
    with pytest.raises(OSError, match="broken"):
        copy.help_and_wait()
    assert copy.ended and len(told) == 1 and isinstance(told[0], OSError)


def test_in_the_background_it_ends_without_being_waited_for() -> None:
    ended = threading.Event()
    memory_copy.Copier(1).start([[(time.sleep, (0,))]], lambda _: ended.set(), background=True)
    assert ended.wait(10)


def test_schedule_in_steps_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = save_schedule.SaveSchedule(4, Ranks())
    assert [step for step in range(12) if steps.due(step)] == [3, 7, 11]
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    timed = save_schedule.SaveSchedule(datetime.timedelta(seconds=10), Ranks())
    saved = []
    for step in range(100):
        now[0] += 0.5
        if timed.due(step):
            saved.append(step)
    gaps = [b - a for a, b in zip(saved, saved[1:])]
    assert len(saved) >= 4 and set(gaps) == {20}, saved
    for bad in (0, -1, datetime.timedelta(0)):
        with pytest.raises(ValueError, match="positive"):
            save_schedule.SaveSchedule(bad, Ranks())
    with pytest.raises(ValueError, match="needs a schedule"):
        save_schedule.SaveSchedule(None, Ranks()).due(0)
