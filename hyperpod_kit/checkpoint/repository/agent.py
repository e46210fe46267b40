"""The agent: a torch-free process beside each rank that seals, persists and commits, and outlives its trainer.

It is started by the trainer with one end of a socket pair: the other end closing is the trainer's death. All state is
changed by one thread, which takes events from a queue; workers seal, write and commit. What the agent knows is in the
slots' control pages too, so a later agent or `checkpoint flush` can go on from there.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import time
from typing import Any, List, Optional, Tuple

from hyperpod_kit import __version__

from . import (
    agent_captures,
    agent_work,
    arena,
    control,
    coordinator,
    fabric,
    identity,
    janitor,
    layout,
    lock,
    losses,
    replicas,
)
from .agent_asked import Asked
from .agent_captures import Captures, Held, SlotFiles
from .agent_head import Head
from .agent_storage import Storage
from .assemble import Report
from .control import Key, Page
from .failpoint import failpoint
from .lines import Channel, Message
from .local import Part
from .process import Owner, alive
from .seal import Sealing

_TICK = 0.25


def _key(value: Any) -> Key:
    return (int(value[0]), int(value[1]), str(value[2]))


class Agent:
    """One rank's agent. `run()` returns when the trainer is gone and nothing is left to do."""

    def __init__(self, trainer: Channel, setup: Message) -> None:
        """Raises RunIsOwned, CheckpointError, OSError."""
        self.trainer = trainer
        self.rank: int = setup["rank"]
        self.world: int = setup["world"]
        self.incarnation: str = setup["incarnation"]
        self.token: str = setup["token"]
        self.owner = Owner(*setup["owner"])
        self.folder = arena.shm_dir()
        self.run_hash = arena.run_hash(setup["run_id"])
        self.linger = float(os.environ.get("HPK_AGENT_LINGER", "600"))
        self.events: queue.SimpleQueue[Tuple[Any, ...]] = queue.SimpleQueue()
        self.files = SlotFiles(self.folder, self.run_hash, self.rank)
        self.captures = Captures()
        self.told_layout = ""
        self.asked = Asked(self.rank, trainer, self._report)
        self.head: Optional[Head] = None
        self.uplink: Optional[Channel] = None
        self.gone_at: Optional[float] = None
        self.closing = self.bye = self.stop = self.settled = self.orphaned = False
        lock_path = os.path.join(self.folder, arena.lock_file(arena.node_uid(), self.run_hash, self.rank))
        self.lock = lock.take_over(lock_path, self.owner)
        versions = {**setup.get("versions", {}), "hyperpod_kit": __version__}
        self.storage = Storage(setup["root"], directory=setup.get("local"), rank=self.rank, versions=versions,
                               whose=identity.RunIdentity(setup.get("run", ""), setup["run_id"]),
                               rate_limit=setup.get("rate_limit"), keep=setup.get("keep"), stopped=lambda: self.stop)
        self.chores = agent_work.Worker("chores", self.events.put)
        if self.rank == 0:
            hub = fabric.Hub(self.token, lambda rank, message: self.events.put(("peer", rank, message)),
                             peers=self.world - 1, local=bool(setup.get("one_host")))
            self.head = Head(self.world, hub, self.captures, self.storage, self.events.put, self._on_order,
                             self.chores)

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the end."""
        signal.signal(lock.STOP, lambda *_: self.events.put(("stop",)))
        for number in (signal.SIGTERM, signal.SIGUSR1):
            # A batch system signals every process of the step; what kills the trainer must not kill its memory.
            signal.signal(number, lambda *_: self.events.put(("hurry",)))
        self.files.recover()
        self.sealer = agent_work.Worker("seal", self.events.put)
        self.writer = agent_work.Worker("write", self.events.put)
        self.uploader = agent_work.Worker("upload", self.events.put)
        self.trainer.listen(lambda message: self.events.put(("trainer", message)),
                            lambda: self.events.put(("gone",)))
        self.chores.submit("swept", (0, 0, ""), lambda: janitor.sweep(self.folder, but=self.run_hash))
        self.trainer.send({"ev": "ready", "port": self.head.hub.port if self.head else 0})
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
        if self.stop:
            return True
        if self.captures.busy("seal"):
            return False
        if self.bye and self.head is not None and self.head.keeping:
            return False
        if self.bye or (self.orphaned and self.gone_at is not None):
            return True
        # What is being written is worth any time; only what nobody works at any more is not waited for.
        at_work = any(self.captures.busy(job) for job in ("write", "upload", "commit"))
        return self.gone_at is not None and not at_work and time.monotonic() - self.gone_at > self.linger

    def _leave(self) -> None:
        """After a normal end nothing stays in shared memory, unless it is the only copy of something."""
        log = os.path.join(self.folder, arena.log_file(arena.node_uid(), self.run_hash, self.rank))
        unsaved = self.captures.unsaved()
        for held in unsaved:
            print(f"capture {held.key}: {held.state}, left in {self.folder}", file=sys.stderr, flush=True)
        if self.closing and self.bye and self.settled and not unsaved:
            for name in self.files.names():
                arena.remove(self.folder, name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(log)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(log).st_size == 0:
                os.unlink(log)
        failpoint("agent.before_unlock")
        self.lock.release()

    # --- what a predecessor left --------------------------------------------------------------------------------

    def _settle(self, keep: Optional[Key], tier: str) -> None:
        """The run has restored: keep the capture that it came from until a newer one is sealed, free the rest."""
        self.settled = True
        for slot in self.files.all():
            page = slot.page
            # The trainer does not wait for this: a capture of this start may be there already.
            if page is None or page.state != control.SEALED or page.incarnation == self.incarnation:
                continue
            if page.key != keep:
                slot.move(control.FREE)
            elif page.key not in self.captures:
                self._take_on(Held(page, self._attempt(page), sealing=Sealing(slot)), durable=page.durable)
            failpoint("agent.settled")
        if keep is not None and keep not in self.captures and tier == "local":
            for part in self.storage.parts():
                page = part.report.page
                if page.key == keep and keep not in self.captures and page.world == self.world:
                    self._take_on(Held(page, self._attempt(page), part=part), durable=False)

    def _take_on(self, held: Held, *, durable: bool) -> None:
        """Go on with a capture of an earlier start."""
        self.captures.add(held)
        if durable:
            held.outcome = agent_captures.DURABLE
            return
        self._report({"op": "captured", "key": list(held.key), "adopted": True})
        self._report({"op": "sealed", "key": list(held.key)})

    def _attempt(self, page: Page) -> str:
        """The attempt that this start writes a capture to: all its agents name it alike, and no earlier start did."""
        return str(layout.AttemptName(page.seq, page.step, page.epoch, self.incarnation))

    # --- the trainer --------------------------------------------------------------------------------------------

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
            self._settle(_key(message["keep"]) if message["keep"] else None, str(message.get("tier", "memory")))
        elif op == "captured":
            self._capture(self.files.get(int(message["slot"])))
        elif op == "skipped":
            self._report({"op": "skipped", "key": message["key"], "why": message["why"]})
        elif op == "which":
            self.asked.answer(_key(message["key"]), message["tensors"])
        elif op == "release":
            self._make_room()
        elif op == "close":
            self.closing = True
            self._end()

    def _capture(self, slot: arena.Slot) -> None:
        page = slot.page
        if page is None or page.state != control.CAPTURED or page.key in self.captures:
            return
        failpoint("agent.captured")
        sealing = Sealing(slot)
        held = self.captures.add(Held(page, self._attempt(page), sealing=sealing))
        held.jobs.add("seal")
        self.sealer.submit("sealed", page.key, sealing.run)
        self._report({"op": "captured", "key": list(page.key), "replicas": replicas.of_slot(slot)})

    def _make_room(self) -> None:
        held = self.captures.make_room()
        number = None
        if held is not None and held.sealing is not None:
            number = held.sealing.slot.name.slot
            self._report({"op": "skipped", "key": list(held.key), "why": losses.REPLACED})
        self.trainer.send({"ev": "released", "slot": number})

    def _on_gone(self) -> None:
        """The trainer is gone: look for a capture that it did not get to announce, free its half copy."""
        self.asked.gone()
        if self.gone_at is not None:
            return
        link = self.head.hub if self.head is not None else self.uplink
        if link is not None:
            link.patience(fabric.HURRY)
        for slot in self.files.all():
            page = slot.page
            if page is not None and page.state == control.WRITING and not alive(page.trainer):
                slot.move(control.FREE)
            self._capture(slot)
        self._end()

    def _end(self) -> None:
        """No capture will come any more."""
        self.gone_at = time.monotonic()
        self.storage.hurry()
        self._report({"op": "done"})

    def _on_stop(self) -> None:
        self.stop = True

    def _on_hurry(self) -> None:
        """The machine or the job is about to go: storage first, training's comfort second."""
        self.storage.hurry()

    def _on_orphaned(self) -> None:
        """Rank 0's agent is gone: nothing can be committed any more, so nothing is waited for once training ends."""
        self.orphaned = True
        if self.gone_at is None:
            self.trainer.send({"ev": "fatal", "why": "rank 0's agent is gone"})

    # --- the workers --------------------------------------------------------------------------------------------

    def _on_sealed(self, key: Key, page: Optional[Page], why: str) -> None:
        held = self.captures.get(key)
        assert held is not None, "what is being sealed is held"
        held.jobs.discard("seal")
        if page is None:
            self._report({"op": "skipped", "key": list(key), "why": why})
        else:
            self._report({"op": "sealed", "key": list(key)})
        self.captures.release()

    def _on_localized(self, key: Key, report: Optional[Report], why: str) -> None:
        held = self.captures.get(key)
        if held is not None:
            held.jobs.discard("write")
            held.part = Part(held.attempt, report) if report is not None else None
        if report is None:
            print(f"capture {key}: not on the node's disk: {why}", file=sys.stderr, flush=True)
        failpoint("agent.localized")
        self._report({"op": "local", "key": list(key), "there": report is not None})
        self.captures.release()

    def _on_pruned(self, key: Key, _: None, why: str) -> None:
        if why:
            print(f"old local checkpoints stay: {why}", file=sys.stderr, flush=True)

    def _on_written(self, key: Key, report: Optional[Report], why: str) -> None:
        held = self.captures.get(key)
        if held is not None:
            held.jobs -= {"write", "upload"}
            held.written = report is not None
        if report is None:
            self._report({"op": "failed", "key": list(key), "why": why})
        else:
            failpoint("agent.written")
            news = report.page.layout != self.told_layout
            self.told_layout = report.page.layout
            self._report({"op": "persisted", "key": list(key), "report": report.to_json(pieces=news)})
        self.captures.release()

    def _on_looked(self, key: Key, attempt: Optional[str], why: str) -> None:
        assert self.head is not None
        self.head.looked(key, attempt, why)

    def _on_committed(self, key: Key, attempt: Optional[str], why: str) -> None:
        assert self.head is not None
        self.head.committed(key, attempt, why)

    def _on_kept(self, _: Key, left: Optional[List[str]], why: str) -> None:
        assert self.head is not None
        self.head.kept(left, why)

    def _on_swept(self, _: Key, runs: Optional[List[str]], why: str) -> None:
        if why:
            print(f"segments of dead runs stay: {why}", file=sys.stderr, flush=True)

    def _on_peer(self, rank: int, message: Optional[Message]) -> None:
        assert self.head is not None
        self.head.peer(rank, message)

    def _report(self, message: Message) -> None:
        """Tell the coordinator, which may be here."""
        if self.head is not None:
            self.head.peer(0, message)
        elif self.uplink is not None:
            self.uplink.send(message)

    # --- orders -------------------------------------------------------------------------------------------------

    def _on_order(self, message: Message) -> None:
        op, note = message["op"], message["note"]
        if op == coordinator.BYE:
            self.bye = True
            return
        key = _key(message["key"])
        held = self.captures.get(key)
        failpoint("agent.ordered")
        if op == coordinator.PERSIST:
            self._persist(key, held)
        elif op == coordinator.LOCAL:
            self._localized(key, held)
        elif op == coordinator.UPLOAD:
            self._upload(key, held)
        elif op == coordinator.WHICH:
            self.asked.ask(key, note, message["ranks"])
        elif op == coordinator.SEALED:
            if held is not None:
                held.full = True
            self.trainer.send({"ev": "sealed", "key": list(key)})
        elif op == coordinator.COMMITTED:
            if held is not None and held.slot is not None:
                held.slot.move(control.SEALED, durable=True)
            self._finish(key, agent_captures.DURABLE, note)
        else:
            self._finish(key, op, note)
        self.captures.release()

    def _persist(self, key: Key, held: Optional[Held]) -> None:
        if held is not None and held.part is not None:
            self._report({"op": "local", "key": list(key), "there": True})
        elif held is None or held.slot is None:
            self._report({"op": "failed", "key": list(key), "why": "it is not in memory any more"})
        else:
            held.jobs.add("write")
            event, job = (("written", self.storage.write) if self.storage.local is None else
                          ("localized", self.storage.write_local))
            self.writer.submit(event, key, job(held))

    def _upload(self, key: Key, held: Optional[Held]) -> None:
        if held is None:
            self._report({"op": "failed", "key": list(key), "why": "it is not here any more"})
            return
        held.jobs.add("upload")
        self.uploader.submit("written", key, self.storage.write(held, upload=True))

    def _localized(self, key: Key, held: Optional[Held]) -> None:
        """Every rank has it on its node's disk."""
        if held is not None and not held.ended:
            held.outcome = agent_captures.LOCAL
        self.trainer.send({"ev": agent_captures.LOCAL, "key": list(key)})
        if held is not None and held.part is not None:
            busy = self.captures.unended_parts()
            self.writer.submit("pruned", key, self.storage.prune_local(held.part.attempt, busy))

    def _finish(self, key: Key, outcome: str, note: str) -> None:
        """An end of no use overrides `failed`: what some rank cannot seal is of no use in memory either."""
        held = self.captures.get(key)
        if held is not None and (not held.ended or outcome in agent_captures.USELESS):
            held.outcome = outcome
        kind = agent_captures.SAID.get(outcome, outcome)
        self.trainer.send({"ev": kind, "key": list(key), "note": note, "was": outcome})
