"""This rank's slots in shared memory: made and faulted in behind training's back, so that a save only copies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.capture.staging_slot import StagingSlot
from hyperpod_kit.checkpoint.repository.format.shard import ShardLayout
from hyperpod_kit.checkpoint.transfer import device
from hyperpod_kit.errors import CheckpointError

log = logging.getLogger("hyperpod_kit.checkpoint")

# A slot may be this much larger than what lies in it: a loader's state that grows does not cost a new slot each time.
SLACK = 8 * 1024 * 1024


class SlotPool:
    """`count` slots, and what earlier starts have left. One is free for the next save, or none is."""

    def __init__(self, run_id: str, rank: int, count: int, *, folder: str = "") -> None:
        """`folder`: where the agent has its own (default: this user's)."""
        self.folder = folder or shm_paths.ensure_user_directory()
        uid, run = shm_paths.node_uid(), shm_slots.run_hash(run_id)
        self._names = [shm_slots.SlotName(uid, run, rank, n) for n in range(count)]
        self._staging_slots: dict[int, StagingSlot] = {}
        self._busy: dict[int, shm_slots.Slot] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._ending = False
        self._pin = False
        # What the thread of `prepare` has behind it: the plan, and slots by their names.
        self._planned = threading.Event()
        self._ready = {name: threading.Event() for name in self._names}
        self._set_all_ready()

    @property
    def count(self) -> int:
        """Return the number of slots that there are to be."""
        return len(self._names)

    @property
    def slots(self) -> list[shm_slots.Slot]:
        """Return the slots that are mapped."""
        return [*self._busy.values(), *(slot.memory for slot in self._staging_slots.values())]

    def map_existing_slots_and_prefault_newest(self) -> None:
        """Map the slots that exist, for restoring as well as for saving; a thread faults in the newest
        snapshot.

        The others can wait for `make_slots_in_thread`: while a state is restored every core and the
        memory's bandwidth is its own.
        """
        self.join()
        first_name = self._names[0]
        names = shm_slots.own_slot_names(self.folder, uid=first_name.uid, run=first_name.run, rank=first_name.rank)
        attached = list(shm_slots.attach_each_mappable(self.folder, names))
        self._busy = {memory.name.slot: memory for memory in attached}
        pages = {memory.name: memory.page for memory in attached}
        captures = {name: page.key for name, page in pages.items() if page is not None and page.state != SlotState.FREE}
        if captures:
            newest = max(captures, key=lambda name: captures[name])
            self._start_thread(self._busy[newest.slot].prefault)

    def make_slots_in_thread(self, needed: Callable[[], tuple[ShardLayout, int]], *, pin: bool = False) -> None:
        """Make all slots in a thread, behind what `map_existing_slots_and_prefault_newest` has begun; the next
        `join` waits for it.
        `needed()` returns the layout and the bytes of non-tensor state, and is called there. `pin`: for
        copies from a GPU."""
        before, self._thread = self._thread, None
        self._pin = pin
        may_begin = threading.Event()

        def work() -> None:
            # A start waits until the new thread runs, and that one would keep the interpreter's lock for 5 ms.
            may_begin.wait()
            if before is not None:
                before.join()
            try:
                layout, extra = needed()
                self._planned.set()
                for name in self._names:
                    if self._ending:
                        return
                    if self._make_usable_if_free(name, layout, extra) is None and name.slot in self._busy:
                        self._pin_for_gpu_or_warn(
                            self._busy[name.slot]
                        )  # a save will have it one day, and must not wait then
                    self._ready[name].set()
            except (CheckpointError, OSError) as err:
                self._error = err
            finally:
                self._set_all_ready()

        for event in (self._planned, *self._ready.values()):
            event.clear()
        self._start_thread(work)
        may_begin.set()

    def make_lacking_slots_in_thread(self, like: StagingSlot) -> None:
        """Start to make, after a save into `like`, the slots that still lack the room for such a save, as
        `make_slots_in_thread` does. The state may have grown since, or not have existed when they were
        made."""
        if self._thread is not None and self._thread.is_alive():
            return  # it makes them
        layout, extra = (
            like.layout,
            like.memory.image_and_extra_capacity[1] // 4,
        )  # of which `_make_usable_if_free` makes four times as much
        if any(self._must_be_made_or_remade(name, layout) for name in self._names):
            self.make_slots_in_thread(lambda: (layout, extra), pin=self._pin)

    def _must_be_made_or_remade(self, name: shm_slots.SlotName, layout: ShardLayout) -> bool:
        """Return whether a save would have to make that slot, or make it anew."""
        slot = self._staging_slots.get(name.slot)
        if slot is not None:
            memory: shm_slots.Slot | None = slot.memory
        else:
            memory = self._busy.get(name.slot)
        if memory is None:
            return True
        if _fits_without_excess(memory, layout):
            return False  # as nearly always: its page is not read after each save
        page = memory.page
        return page is None or page.state == SlotState.FREE

    def _set_all_ready(self) -> None:
        for event in (self._planned, *self._ready.values()):
            event.set()

    def wait_until_layout_is_known(self) -> None:
        """Wait until the thread of `make_slots_in_thread` has the layout; the slots may still be in the
        making."""
        self._planned.wait()

    def _start_thread(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, daemon=True, name="hpk-prefault")
        self._thread.start()

    def join(self) -> None:
        """Wait for what `map_existing_slots_and_prefault_newest` and `make_slots_in_thread` have begun."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def acquire(self, layout: ShardLayout, extra: int) -> StagingSlot | None:
        """Return a FREE slot that fits, made when there are fewer than `count`; None when all are busy.

        Raises NotEnoughSharedMemory, OSError.
        """
        for name in self._names:
            # The first save takes the first slot while the next one is still being made.
            self._ready[name].wait()
            error, self._error = self._error, None
            if error is not None:
                raise error
            slot = self._make_usable_if_free(name, layout, extra)
            if slot is not None:
                return slot
        return None

    def _make_usable_if_free(self, name: shm_slots.SlotName, layout: ShardLayout, extra: int) -> StagingSlot | None:
        slot = self._staging_slots.get(name.slot)
        if slot is not None:
            memory: shm_slots.Slot | None = slot.memory
        else:
            memory = self._busy.get(name.slot) or self._attach_if_exists(name)
        if memory is not None:
            page = memory.page
            if page is not None and page.state != SlotState.FREE:
                if slot is None:
                    self._busy[name.slot] = memory
                return None
            self._busy.pop(name.slot, None)
            if (
                page is not None
                and _fits_without_excess(memory, layout)
                and memory.image_and_extra_capacity[1] >= extra
            ):
                memory.prefault()
                self._pin_for_gpu_or_warn(memory)
                if slot is None or slot.layout.fingerprint != layout.fingerprint:
                    slot = self._staging_slots[name.slot] = StagingSlot(memory, layout)
                return slot
            # Of another size, and free: nothing is lost. The new file gets a new mapping.
            self._staging_slots.pop(name.slot, None)
            device.unregister_slot_from_cuda_driver(memory)
            memory.unlink()
            del slot, memory
        created = shm_slots.create(
            self.folder, name, layout.size + SLACK // 2, extra_room=max(shm_slots.EXTRA_ROOM, 4 * extra)
        )
        created.prefault()
        self._pin_for_gpu_or_warn(created)
        self._staging_slots[name.slot] = StagingSlot(created, layout)
        return self._staging_slots[name.slot]

    def _pin_for_gpu_or_warn(self, memory: shm_slots.Slot) -> None:
        if self._pin and not device.register_slot_with_cuda_driver(memory):
            self._pin = False
            log.warning(
                "the GPU driver cannot copy directly into %s: saves pause training for longer. Expected a tmpfs such "
                "as /dev/shm",
                f"{self.folder}/{memory.name.file('img')}",
            )

    def _attach_if_exists(self, name: shm_slots.SlotName) -> shm_slots.Slot | None:
        try:
            return shm_slots.attach(self.folder, name)
        except FileNotFoundError:
            return None

    def stop_and_join(self, seconds: float) -> None:
        """Stop making slots and wait for the thread, `seconds` at most: the interpreter is about to end."""
        self._ending = True
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        self.join()
        for memory in self.slots:
            device.unregister_slot_from_cuda_driver(memory)
        self._staging_slots.clear()
        self._busy.clear()


def _fits_without_excess(memory: shm_slots.Slot, layout: ShardLayout) -> bool:
    return layout.size <= memory.image_and_extra_capacity[0] <= layout.size + SLACK
