"""The slots are made behind training's back; a save waits for the one that it takes, not for all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Page, SlotState
from hyperpod_kit.checkpoint.capture.slots import SlotPool
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec, lay_out
from hyperpod_kit.checkpoint.transfer import device
from hyperpod_kit.errors import NotEnoughSharedMemory

LAYOUT = lay_out([TensorSpec("w", "F32", (4096,))], rank=0, world=1, run_id="r", plan="p")


@pytest.fixture
def gate(shm: Path, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The second slot cannot be made before it is set."""
    opened, real = threading.Event(), shm_slots.create

    def create(folder: str, name: shm_slots.SlotName, size: int, **how: Any) -> shm_slots.Slot:
        if name.slot:
            assert opened.wait(20)
        return real(folder, name, size, **how)

    monkeypatch.setattr(shm_slots, "create", create)
    return opened


def test_the_first_save_does_not_wait_for_the_second_slot(gate: threading.Event) -> None:
    pool = SlotPool("run", 0, 2)
    pool.make_slots_in_thread(lambda: (LAYOUT, 100))
    pool.wait_until_layout_is_known()
    first = pool.acquire(LAYOUT, 100)
    assert first is not None and first.number == 0 and not gate.is_set()
    first.memory.write_page(Page().transition(SlotState.WRITING))
    gate.set()
    second = pool.acquire(LAYOUT, 100)
    assert second is not None and second.number == 1
    second.memory.write_page(Page().transition(SlotState.WRITING))
    assert pool.acquire(LAYOUT, 100) is None
    pool.close()


LARGER = lay_out([TensorSpec("w", "F32", (4_000_000,))], rank=0, world=1, run_id="r", plan="p")


@pytest.mark.parametrize("before", [None, LAYOUT])
def test_after_a_first_save_that_makes_its_slot_the_others_are_made_too(shm: Path, before: Any) -> None:
    pool = SlotPool("run", 0, 3)
    if before is not None:  # a state that has grown
        pool.make_slots_in_thread(lambda: (before, 100))
        pool.join()
    first = pool.acquire(LARGER, 100)
    assert first is not None
    first.memory.write_page(Page().transition(SlotState.WRITING))
    pool.make_lacking_slots_in_thread(first)
    pool.join()
    assert [slot.image_and_extra_capacity[0] >= LARGER.size for slot in pool.slots] == [True] * 3
    made = {id(slot) for slot in pool.slots}
    pool.make_lacking_slots_in_thread(first)
    assert pool._thread is None, "there was nothing left to make"
    second = pool.acquire(LARGER, 100)
    assert second is not None and second.number == 1 and id(second.memory) in made
    pool.close()


def test_what_is_still_being_made_is_not_made_again(gate: threading.Event) -> None:
    pool = SlotPool("run", 0, 2)
    pool.make_slots_in_thread(lambda: (LAYOUT, 100))
    first = pool.acquire(LAYOUT, 100)
    assert first is not None
    pool.make_lacking_slots_in_thread(first)
    assert pool.acquire(LAYOUT, 100) is first, "it does not wait for the second slot"
    gate.set()
    pool.close()


def test_a_slot_that_could_not_be_made_is_an_error_of_a_save(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*_: Any, **__: Any) -> shm_slots.Slot:
        raise NotEnoughSharedMemory("no room")

    monkeypatch.setattr(shm_slots, "create", create)
    pool = SlotPool("run", 0, 2)
    pool.make_slots_in_thread(lambda: (LAYOUT, 100))
    with pytest.raises(NotEnoughSharedMemory, match="no room"):
        pool.acquire(LAYOUT, 100)
    pool.close()


def test_a_start_faults_in_what_it_may_restore_from_and_leaves_the_rest_for_later(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulted: list[int] = []
    monkeypatch.setattr(shm_slots.Slot, "prefault", lambda slot: faulted.append(slot.name.slot))
    for seqs, expected in (((5, 7, 0), [1]), ((9, 7, 0), [0]), ((0, 0, 0), [])):
        before = SlotPool("run", 0, 3)
        before.make_slots_in_thread(lambda: (LAYOUT, 100))
        before.join()
        for slot, seq in enumerate(seqs):
            found = shm_slots.attach(before.folder, before._names[slot])
            found.write_page(Page(epoch=1, seq=seq).transition(SlotState.WRITING) if seq else Page())
        before.close()
        faulted.clear()
        after = SlotPool("run", 0, 3)
        after.map_existing_slots_and_prefault_newest()
        after.join()
        assert faulted == expected
        after.close()


@pytest.fixture
def registered(shm: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots that the driver of a GPU knows, by their numbers: real cudaHostRegister is in tests/gpu."""
    known: list[int] = []

    def register(memory: shm_slots.Slot) -> bool:
        if memory.name.slot not in known:
            known.append(memory.name.slot)
        return True

    monkeypatch.setattr(device, "register_slot_with_cuda_driver", register)
    monkeypatch.setattr(device, "unregister_slot_from_cuda_driver", lambda memory: known.remove(memory.name.slot))
    return known


def test_slots_that_hold_captures_of_an_earlier_start_are_registered_too(registered: list[int]) -> None:
    earlier = SlotPool("run", 0, 2)
    earlier.make_slots_in_thread(lambda: (LAYOUT, 100))
    kept = earlier.acquire(LAYOUT, 100)
    assert kept is not None
    kept.memory.write_page(Page().transition(SlotState.WRITING))
    kept.memory.transition(SlotState.CAPTURED)
    earlier.join()

    pool = SlotPool("run", 0, 2)
    pool.map_existing_slots_and_prefault_newest()
    pool.make_slots_in_thread(lambda: (LAYOUT, 100), pin=True)
    second = pool.acquire(LAYOUT, 100)
    pool.join()
    assert second is not None and second.number == 1 and sorted(registered) == [0, 1]
    kept.memory.transition(SlotState.FREE)
    first = pool.acquire(LAYOUT, 100)
    assert first is not None and first.number == 0 and sorted(registered) == [0, 1]
    pool.close()
    assert registered == []


def test_memory_that_the_driver_does_not_take_is_said_once(
    shm: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device, "register_slot_with_cuda_driver", lambda memory: False)
    pool = SlotPool("run", 0, 2)
    pool.make_slots_in_thread(lambda: (LAYOUT, 100), pin=True)
    assert pool.acquire(LAYOUT, 100) is not None
    pool.join()
    assert len(caplog.messages) == 1 and str(shm) in caplog.messages[0] and "tmpfs" in caplog.messages[0]
    pool.close()
