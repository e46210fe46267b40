"""The agent: a torch-free process beside each rank that seals, persists and commits, and outlives its trainer.

It is started by the trainer with one end of a socket pair: the other end closing is the trainer's death. All state is
changed by one thread, which takes events from a queue; a sealer and a persister do the long work. What the agent
knows is in the slots' control pages too, so a later agent or `checkpoint flush` can go on from there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from hyperpod_kit import __version__
from hyperpod_kit.errors import CheckpointError

from . import arena, assemble, commit, control, coordinator, fabric, layout, lock, manifest, persist, seal, verify
from .control import Key
from .lines import Channel, Message
from .process import Owner, alive

_TICK = 0.25


def _key(value: Any) -> Key:
    return (int(value[0]), int(value[1]), str(value[2]))


class Agent:
    """One rank's agent. `run()` returns when the trainer is gone and nothing is left to do."""

    def __init__(self, trainer: Channel, setup: Message) -> None:
        self.trainer = trainer
        self.root: str = setup["root"]
        self.rank: int = setup["rank"]
        self.world: int = setup["world"]
        self.incarnation: str = setup["incarnation"]
        self.token: str = setup["token"]
        self.owner = Owner(*setup["owner"])
        self.versions: Dict[str, str] = {**setup.get("versions", {}), "hyperpod_kit": __version__}
        self.folder = arena.shm_dir()
        self.run_hash = arena.run_hash(setup["run_id"])
        self.linger = float(os.environ.get("HPK_AGENT_LINGER", "600"))
        self.events: queue.SimpleQueue[Tuple[Any, ...]] = queue.SimpleQueue()
        self.to_seal: queue.SimpleQueue[Tuple[Key, arena.Slot]] = queue.SimpleQueue()
        self.to_write: queue.SimpleQueue[Tuple[Any, ...]] = queue.SimpleQueue()
        self.slots: Dict[Key, arena.Slot] = {}
        self.status: Dict[Key, str] = {}      # sealing sealed full durable failed dropped
        self.writing: Set[Key] = set()
        self.sealing: Set[Key] = set()
        self.attempts: Dict[Key, str] = {}
        self.hub: Optional[fabric.Hub] = None
        self.brain: Optional[coordinator.Coordinator] = None
        self.uplink: Optional[Channel] = None
        self.gone_at: Optional[float] = None
        self.closing = self.said_done = self.bye = self.stop = self.settled = self.orphaned = False
        lock_path = os.path.join(self.folder, arena.lock_file(os.getuid(), self.run_hash, self.rank))
        self.lock = lock.take_over(lock_path, self.owner)
        if self.rank == 0:
            self.brain = coordinator.Coordinator(self.world)
            self.hub = fabric.Hub(self.token, lambda rank, message: self.events.put(("peer", rank, message)),
                                  local=bool(setup["local"]))

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        signal.signal(lock.STOP, lambda *_: self.events.put(("stop",)))
        self._adopt()
        for target in (self._seal_loop, self._write_loop):
            threading.Thread(target=target, daemon=True).start()
        self.trainer.listen(lambda message: self.events.put(("trainer", message)),
                            lambda: self.events.put(("gone",)))
        self.trainer.send({"ev": "ready", "port": self.hub.port if self.hub else 0})
        while not self._finished():
            try:
                event = self.events.get(timeout=_TICK)
            except queue.Empty:
                if self.gone_at is None and not alive(self.owner):
                    self._on_gone()
                continue
            getattr(self, "_on_" + event[0])(*event[1:])
        self._leave()

    def _finished(self) -> bool:
        if self.stop or self.bye:
            return True
        if self.gone_at is None:
            return False
        if self.orphaned and not self.sealing:
            return True
        if not self.said_done and not self.sealing:
            self.said_done = True
            self._report({"op": "done"})
        return time.monotonic() - self.gone_at > self.linger

    def _leave(self) -> None:
        """After a normal end nothing stays in shared memory, unless it is the only copy of something."""
        log = os.path.join(self.folder, arena.log_file(os.getuid(), self.run_hash, self.rank))
        unsaved = [key for key, status in self.status.items() if status in ("sealing", "sealed", "full", "failed")]
        for key in unsaved:
            print(f"capture {key}: {self.status[key]}, left in {self.folder}", file=sys.stderr, flush=True)
        if self.closing and self.bye and self.settled and not unsaved:
            for name in arena.names(self.folder, uid=os.getuid(), run=self.run_hash, rank=self.rank):
                arena.remove(self.folder, name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(log)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(log).st_size == 0:
                os.unlink(log)
        self.lock.release()

    # --- what a predecessor left --------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Seal what a dead trainer captured, free what it had half copied. Sealed slots wait for `settle`."""
        for name in arena.names(self.folder, uid=os.getuid(), run=self.run_hash, rank=self.rank):
            arena.remove_stray_image(self.folder, name)
        for slot in arena.attached(self.folder, arena.names(self.folder, uid=os.getuid(), run=self.run_hash,
                                                            rank=self.rank)):
            page = slot.page
            if page is None:
                slot.unlink()
            elif page.state == control.WRITING:
                slot.move(control.FREE)
            elif page.state == control.CAPTURED:
                try:
                    seal.seal(slot)
                except CheckpointError as err:
                    print(f"{slot.name}: {err}", file=sys.stderr, flush=True)
            slot.close()

    def _settle(self, keep: Optional[Key]) -> None:
        """The run has restored: keep the capture that it came from until a newer one is sealed, free the rest."""
        self.settled = True
        for slot in arena.attached(self.folder, arena.names(self.folder, uid=os.getuid(), run=self.run_hash,
                                                            rank=self.rank)):
            page = slot.page
            if page is not None and page.state == control.SEALED and page.key == keep:
                self.slots[page.key] = slot
                self.status[page.key] = "durable" if page.durable else "sealed"
                if not page.durable:
                    self._report_sealed(page)
                continue
            # The trainer does not wait for this: a capture of this start may be there already.
            if page is not None and page.state == control.SEALED and page.incarnation != self.incarnation:
                slot.move(control.FREE)
            slot.close()

    # --- events -------------------------------------------------------------------------------------------------

    def _on_trainer(self, message: Message) -> None:
        op = message["op"]
        if op == "connect" and self.rank != 0:
            self.uplink = fabric.join([(str(h), int(p)) for h, p in message["addresses"]], self.token, self.rank)
            if self.uplink is None:
                self.trainer.send({"ev": "fatal", "why": f"no answer from rank 0's agent at {message['addresses']}"})
                self.stop = True
                return
            self.uplink.listen(lambda order: self.events.put(("order", order)), lambda: self.events.put(("orphaned",)))
        elif op == "settle":
            self._settle(_key(message["keep"]) if message["keep"] else None)
        elif op == "captured":
            self._capture(arena.attach(self.folder, arena.SlotName(os.getuid(), self.run_hash, self.rank,
                                                                   int(message["slot"]))))
        elif op == "skipped":
            self._report({"op": "skipped", "key": message["key"], "why": message["why"]})
        elif op == "close":
            self.closing = True
            self.gone_at = time.monotonic()

    def _capture(self, slot: arena.Slot) -> None:
        page = slot.page
        if page is None or page.state != control.CAPTURED or page.key in self.slots:
            slot.close()
            return
        self.slots[page.key] = slot
        self.status[page.key] = "sealing"
        self.sealing.add(page.key)
        self.to_seal.put((page.key, slot))

    def _on_gone(self) -> None:
        """The trainer is gone: look for a capture that it did not get to announce, free its half copy."""
        if self.gone_at is not None:
            return
        self.gone_at = time.monotonic()
        for link in (self.hub, self.uplink):
            if link is not None:
                link.patience(fabric.HURRY)
        for slot in arena.attached(self.folder, arena.names(self.folder, uid=os.getuid(), run=self.run_hash,
                                                            rank=self.rank)):
            page = slot.page
            if page is not None and page.state == control.WRITING and not alive(page.trainer):
                slot.move(control.FREE)
            self._capture(slot)

    def _on_stop(self) -> None:
        self.stop = True

    def _on_orphaned(self) -> None:
        """Rank 0's agent is gone: nothing can be committed any more, so nothing is waited for once training ends."""
        self.orphaned = True
        if self.gone_at is None:
            self.trainer.send({"ev": "fatal", "why": "rank 0's agent is gone"})

    def _on_sealed(self, key: Key, page: Optional[control.Page], why: str) -> None:
        self.sealing.discard(key)
        if page is None:
            self._finish(key, "dropped", why)
            self._report({"op": "skipped", "key": list(key), "why": why})
        elif self.status[key] == "sealing":  # it may have been dropped meanwhile
            self.status[key] = "sealed"
            self._report_sealed(page)
        self._release()

    def _report_sealed(self, page: control.Page) -> None:
        attempt = layout.AttemptName(page.seq, page.step, page.epoch, self.incarnation)
        self._report({"op": "sealed", "key": list(page.key), "attempt": str(attempt)})

    def _on_written(self, key: Key, record: Optional[manifest.FileRecord], why: str) -> None:
        self.writing.discard(key)
        page = self.slots[key].page
        if record is None or page is None:
            self._report({"op": "failed", "key": list(key), "why": why})
        else:
            text = self.slots[key].extra(page.extra_size).decode()
            self._report({"op": "persisted", "key": list(key), "report": assemble.Report(page, record, text).to_json()})
        self._release()

    def _on_committed(self, key: Key, why: Optional[str]) -> None:
        assert self.brain is not None
        self._obey(self.brain.committed(key) if why is None else self.brain.failed(0, key, why))

    # --- coordinator --------------------------------------------------------------------------------------------

    def _report(self, message: Message) -> None:
        if self.brain is not None:
            self._on_peer(0, message)
        elif self.uplink is not None:
            self.uplink.send(message)

    def _on_peer(self, rank: int, message: Optional[Message]) -> None:
        assert self.brain is not None
        if message is None:
            self._obey(self.brain.lost(rank))
            return
        op = message["op"]
        if op == "done":
            self._obey(self.brain.done(rank, "its trainer is gone"))
            return
        key = _key(message["key"])
        if op == "sealed":
            self.attempts.setdefault(key, message["attempt"])
            self._obey(self.brain.sealed(rank, key))
        elif op == "skipped":
            self._obey(self.brain.skipped(rank, key, message["why"]))
        elif op == "persisted":
            self._obey(self.brain.persisted(rank, key, assemble.Report.from_json(message["report"])))
        elif op == "failed":
            self._obey(self.brain.failed(rank, key, message["why"]))

    def _obey(self, orders: List[coordinator.Order]) -> None:
        for order in orders:
            if order.kind == coordinator.COMMIT and order.key is not None and self.brain is not None:
                self.to_write.put(("commit", order.key, dict(self.brain.reports(order.key))))
                continue
            attempt = self.attempts.get(order.key, "") if order.key else ""
            message: Message = {"op": order.kind, "key": list(order.key or ()), "why": order.why, "attempt": attempt}
            if self.hub is not None:
                self.hub.broadcast(message)
            self._on_order(message)

    # --- orders -------------------------------------------------------------------------------------------------

    def _on_order(self, message: Message) -> None:
        op = message["op"]
        if op == coordinator.BYE:
            self.bye = True
            return
        key = _key(message["key"])
        if op == coordinator.PERSIST:
            self.attempts[key] = message["attempt"]
            self.status[key] = "full"
            self.writing.add(key)
            self.trainer.send({"ev": "sealed", "key": message["key"]})
            self.to_write.put(("shard", key, message["attempt"]))
        elif op == coordinator.COMMITTED:
            if key in self.slots:
                self.slots[key].move(control.SEALED, durable=True)
            self._finish(key, "durable", message["attempt"])
        elif op == coordinator.DROPPED:
            # Sealed by all but not persisted stays restorable from memory; what some rank lacks is of no use.
            self._finish(key, "failed" if self.status.get(key) == "full" else "dropped", message["why"])
        self._release()

    def _finish(self, key: Key, status: str, note: str) -> None:
        if self.status.get(key) not in ("durable", "failed", "dropped"):
            self.status[key] = status
        self.trainer.send({"ev": status, "key": list(key), "note": note})

    def _release(self) -> None:
        """Free what has had its end *and* has a successor that all ranks have sealed."""
        whole = [key for key, status in self.status.items() if status in ("full", "durable", "failed")
                 and key in self.slots]
        newest = max(whole, default=None)
        for key, slot in list(self.slots.items()):
            status = self.status[key]
            ended = status in ("durable", "failed", "dropped") and key not in self.writing | self.sealing
            if ended and (status == "dropped" or (newest is not None and key < newest)):
                slot.move(control.FREE)
                slot.close()
                del self.slots[key]
                if status != "dropped":
                    del self.status[key]

    # --- long work ----------------------------------------------------------------------------------------------

    def _seal_loop(self) -> None:
        while True:
            key, slot = self.to_seal.get()
            try:
                self.events.put(("sealed", key, seal.seal(slot), ""))
            except (CheckpointError, OSError) as err:
                self.events.put(("sealed", key, None, str(err)))

    def _idle(self, key: Key) -> bool:
        """Whether writing this capture has lost its purpose."""
        return self.stop or self.status.get(key) != "full"

    def _write_loop(self) -> None:
        while True:
            kind, key, what = self.to_write.get()
            try:
                if kind == "shard":
                    folder = commit.make_attempt(self.root, what)
                    record = persist.write_shard(self.slots[key], folder, stopped=functools.partial(self._idle, key))
                    self.events.put(("written", key, record, ""))
                else:
                    made, extra = assemble.assemble(what, self.versions)
                    commit.commit(self.root, self.attempts[key], made, extra)
                    self.events.put(("committed", key, None))
            except (CheckpointError, OSError) as err:
                why = verify.reason_of(err)
                self.events.put(("written", key, None, why) if kind == "shard" else ("committed", key, why))


def main(argv: List[str]) -> int:
    """`python -m hyperpod_kit.checkpoint.repository.agent FD`: serve the trainer at that socket."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        # A batch system signals every process of the step; what kills the trainer must not kill its memory.
        signal.signal(number, signal.SIG_IGN)
    os.nice(5)
    trainer = Channel(socket.socket(fileno=int(argv[0])))
    setup = trainer.receive()
    if setup is None:
        return 0
    try:
        agent = Agent(trainer, setup)
    except (CheckpointError, OSError) as err:
        kind = type(err).__name__
        trainer.send({"ev": "refused", "kind": kind, "why": str(err), "hint": getattr(err, "hint", None)})
        return 1
    agent.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
