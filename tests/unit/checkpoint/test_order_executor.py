"""What an agent's orders and jobs leave of its captures, with a slot in shared memory and workers that do nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.agent.process.agent_captures import Capture, Captures
from hyperpod_kit.checkpoint.agent.process.agent_events import LocalResult, RankResult, SealResult, WriteResult
from hyperpod_kit.checkpoint.agent.process.order_executor import OrderExecutor
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, OrderKind
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.agent.shm.shm_slots import Slot


@pytest.mark.parametrize(
    ("job", "end_of_job"),
    [
        ("seal", lambda key: SealResult(key, None, "the trainer overwrote it")),
        ("write", lambda key: LocalResult(key, None, "No space left on device")),
        ("write", lambda key: WriteResult(key, None, "No space left on device")),
    ],
    ids=["seal", "local write", "write"],
)
def test_a_capture_dropped_during_a_job_is_freed_when_the_job_ends(
    capture: Callable[..., Slot], job: str, end_of_job: Callable[[Any], RankResult]
) -> None:
    slot = capture()
    assert slot.page is not None
    key = slot.page.key
    captures = Captures()
    captures.add(Capture(slot.page, "seq-000001", shard=SlotShard(slot))).jobs.add(job)
    trainer: Any = SimpleNamespace(send=lambda event: None)
    unused: Any = None
    orders = OrderExecutor(0, trainer, captures, unused, unused, lambda report: None)
    orders.on_order(Order(OrderKind.DROPPED, key))
    states = [slot.page.state]  # the job reads it
    orders.on_result(end_of_job(key))
    states.append(slot.page.state)
    assert states == [SlotState.CAPTURED, SlotState.FREE] and key not in captures
    slot.close()
