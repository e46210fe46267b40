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
import threading
import time
from typing import List, Optional, Tuple

from hyperpod_kit import __version__
from hyperpod_kit.checkpoint.agent import (
    adopt,
    agent_events,
    lock,
    losses,
    places,
    replicas,
    rpc,
    saves_note,
    shm_gc,
    shm_slots,
    worker,
)
from hyperpod_kit.checkpoint.agent.agent_asked import Asked
from hyperpod_kit.checkpoint.agent.agent_captures import Captures, HeldCapture, SlotFiles
from hyperpod_kit.checkpoint.agent.agent_orders import Orders
from hyperpod_kit.checkpoint.agent.agent_pulse import Pulse
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.channel import Channel, Message
from hyperpod_kit.checkpoint.agent.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.agent.leader import Head
from hyperpod_kit.checkpoint.agent.protocol import rank_channel, trainer_channel
from hyperpod_kit.checkpoint.agent.protocol.message import CaptureOutcome, never
from hyperpod_kit.checkpoint.agent.saves_counted import Counted
from hyperpod_kit.checkpoint.agent.seal import Sealing
from hyperpod_kit.checkpoint.repository import identity, layout
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.environment import HPK_AGENT_LINGER
from hyperpod_kit.system.process import Process, alive

_TICK = 0.25


class Agent(Orders):
    """One rank's agent. `run()` returns when the trainer is gone and nothing is left to do."""

    def __init__(self, trainer: Channel, setup: Message) -> None:
        """Raises RunIsOwned, CheckpointError, OSError."""
        self.trainer = trainer
        self.rank: int = setup["rank"]
        self.world: int = setup["world"]
        self.incarnation: str = setup["incarnation"]
        self.token: str = setup["token"]
        self.owner = Process(*setup["owner"])
        self.folder = setup.get("folder") or places.mine()
        self.run_hash = shm_slots.run_hash(setup["run_id"])
        self.linger = float(os.environ.get(HPK_AGENT_LINGER, "600"))
        self.events: queue.SimpleQueue[agent_events.Event] = queue.SimpleQueue()
        self.files = SlotFiles(self.folder, self.run_hash, self.rank)
        self.captures = Captures()
        self.again = bool(setup.get("again"))
        """This agent takes the place of one that died under the same trainer."""
        self.addresses: List[Tuple[str, int]] = []
        self.rejoining = False
        self.told_layout = self.told_local = ""
        self.asked = Asked(self.rank, trainer, self._report)
        self.head: Optional[Head] = None
        self.uplink: Optional[Channel] = None
        self.gone_at: Optional[float] = None
        self.closing = self.bye = self.stop = self.settled = self.orphaned = False
        lock_path = os.path.join(self.folder, shm_slots.lock_file(places.node_uid(), self.run_hash, self.rank))
        self.lock = lock.take_over(lock_path, self.owner)
        adopt.adopt(self.folder, self.run_hash, self.rank, self.owner)
        versions = {**setup.get("versions", {}), "hyperpod_kit": __version__}
        whose = identity.RunIdentity(setup.get("run", ""), setup["run_id"])
        self.storage = Storage(
            setup["root"],
            directory=setup.get("local"),
            rank=self.rank,
            versions=versions,
            whose=whose,
            rate_limit=setup.get("rate_limit"),
            keep=setup.get("keep"),
            stopped=lambda: self.stop,
        )
        self.chores = worker.Worker("chores", self.events.put)
        if self.rank == 0:
            hub = rpc.Hub(
                self.token,
                self._heard_rank,
                peers=self.world - 1,
                addresses=setup.get("addresses", ()),
                port=int(setup.get("port", 0)),
            )
            if not self.again:
                saves_note.remove(self.folder, places.node_uid(), self.run_hash)
            counted = Counted(self.folder, setup["root"], whose, self.incarnation, self.storage, self.chores)
            self.head = Head(
                self.world, hub, self.captures, self.storage, self.events.put, self._on_order, self.chores, counted
            )

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the end."""
        signal.signal(lock.STOP, lambda *_: self.events.put(agent_events.StopAsked()))
        for number in (signal.SIGTERM, signal.SIGUSR1):
            # Slurm signals every process of a step. The agent must outlive the trainer to save its captures.
            signal.signal(number, lambda *_: self.events.put(agent_events.HurryAsked()))
        self.files.recover(but=self.incarnation if self.again else "")
        self.sealer = worker.Worker("seal", self.events.put)
        self.writer = worker.Worker("write", self.events.put)
        self.uploader = worker.Worker("upload", self.events.put)
        self.trainer.listen(self._heard_trainer, lambda: self.events.put(agent_events.TrainerGone()))
        self.chores.submit(
            agent_events.SweepResult, (0, 0, ""), lambda: shm_gc.sweep(*places.of_mine(), but=self.run_hash)
        )
        self._tell(trainer_channel.Ready(self.head.hub.port if self.head else 0))
        pulse = Pulse(self._tell, [self.sealer, self.writer, self.uploader], self.head.worker if self.head else None)
        while not self._finished():
            pulse.beat()
            if self.head is not None:
                self.head.look_round()
            try:
                event = self.events.get(timeout=_TICK)
            except queue.Empty:
                if self.gone_at is None and not alive(self.owner):
                    self._on_gone()
                continue
            self.handle(event)
        self._leave()

    def handle(self, event: agent_events.Event) -> None:
        """What one event changes."""
        if isinstance(event, agent_events.FromTrainer):
            self._on_trainer(event.message)
        elif isinstance(event, agent_events.FromHead):
            self._on_order(event.order)
        elif isinstance(event, agent_events.FromRank):
            assert self.head is not None
            self.head.heard(event.rank, event.report)
        elif isinstance(event, agent_events.RankGone):
            assert self.head is not None
            self.head.lost(event.rank)
        elif isinstance(event, agent_events.TrainerGone):
            self._on_gone()
        elif isinstance(event, agent_events.HeadGone):
            self._on_orphaned()
        elif isinstance(event, agent_events.HeadSought):
            self._on_rejoined(event.uplink)
        elif isinstance(event, agent_events.StopAsked):
            self.stop = True
        elif isinstance(event, agent_events.HurryAsked):
            # Storage first, training's comfort second.
            self.storage.hurry()
        else:
            self._on_result(event)

    # --- the threads that listen --------------------------------------------------------------------------------

    def _heard_trainer(self, said: Message) -> None:
        message = trainer_channel.trainer_message(said)
        if message is not None:
            self.events.put(agent_events.FromTrainer(message))

    def _heard_head(self, said: Message) -> None:
        order = rank_channel.order_of(said)
        if order is not None:
            self.events.put(agent_events.FromHead(order))

    def _heard_rank(self, rank: int, said: Optional[Message]) -> None:
        report = rank_channel.rank_report(said) if said is not None else None
        if report is not None:
            self.events.put(agent_events.FromRank(rank, report))
        elif said is None:
            self.events.put(agent_events.RankGone(rank))

    def _finished(self) -> bool:
        if self.stop:
            return True
        if self.captures.busy("seal"):
            return False
        if self.bye and self.head is not None and self.head.keeping:
            return False
        if self.bye or (self.gone_at is not None and (self.orphaned or (self.rejoining and not self.closing))):
            return True
        # What is being written is worth any time; only what nobody works at any more is not waited for.
        at_work = any(self.captures.busy(job) for job in ("write", "upload", "commit"))
        return self.gone_at is not None and not at_work and time.monotonic() - self.gone_at > self.linger

    def _leave(self) -> None:
        """After a normal end nothing stays in shared memory, unless it is the only copy of something."""
        log = os.path.join(self.folder, shm_slots.log_file(places.node_uid(), self.run_hash, self.rank))
        unsaved = self.captures.unsaved()
        for held in unsaved:
            print(f"capture {held.key}: {held.state}, left in {self.folder}", file=sys.stderr, flush=True)
        if self.closing and self.bye and self.settled and not unsaved:
            for name in self.files.names():
                shm_slots.remove(self.folder, name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(log)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(log).st_size == 0:
                os.unlink(log)
        if self.head is not None and not unsaved:
            saves_note.remove(self.folder, places.node_uid(), self.run_hash)
        failpoint("agent.before_unlock")
        self.lock.release()

    # --- what a predecessor left --------------------------------------------------------------------------------

    def _settle(self, keep: Optional[Key], tier: str) -> None:
        """The run has restored: keep the capture that it came from until a newer one is sealed, free the rest."""
        self.settled = True
        for slot in self.files.all():
            page = slot.page
            # The trainer does not wait for this: a capture of this start may be there already.
            if page is None or page.state != SlotState.SEALED or page.origin.incarnation == self.incarnation:
                continue
            if page.key != keep:
                slot.move(SlotState.FREE)
            elif page.key not in self.captures:
                self._take_on(HeldCapture(page, self._attempt(page), sealing=Sealing(slot)), durable=page.durable)
            failpoint("agent.settled")
        if keep is not None and keep not in self.captures and tier == "local":
            for part in self.storage.parts():
                page = part.report.page
                if page.key == keep and keep not in self.captures and page.origin.world == self.world:
                    self._take_on(HeldCapture(page, self._attempt(page), part=part), durable=False)

    def _take_on(self, held: HeldCapture, *, durable: bool) -> None:
        """Go on with a capture of an earlier start."""
        self.captures.add(held)
        if durable:
            held.outcome = CaptureOutcome.DURABLE
            return
        same = replicas.of_slot(held.slot) if held.slot is not None and self.again else None
        self._report(rank_channel.RankCaptured(held.key, True, same))
        self._report(rank_channel.RankSealed(held.key))

    def _take_over(self) -> None:
        """Go on with what this start has captured and a dead agent of it did not bring to its end."""
        parts = self.storage.parts()
        for slot in sorted(self.files.all(), key=lambda slot: slot.page.seq if slot.page is not None else 0):
            page = slot.page
            if page is None or page.origin.incarnation != self.incarnation or page.key in self.captures:
                continue
            if page.state == SlotState.SEALED:
                part = next((part for part in parts if part.report.page.key == page.key), None)
                self._take_on(
                    HeldCapture(page, self._attempt(page), sealing=Sealing(slot), part=part), durable=page.durable
                )
            else:
                self._capture(slot)

    def _report_again(self) -> None:
        """Say once more what is held and has had no end: whoever decides has forgotten it, or never knew."""
        self.told_layout = ""
        for held in sorted(self.captures, key=lambda held: held.key):
            if held.ended:
                continue
            same = replicas.of_slot(held.slot) if held.slot is not None else None
            self._report(rank_channel.RankCaptured(held.key, True, same))
            if "seal" not in held.jobs:
                self._report(rank_channel.RankSealed(held.key))
        if self.gone_at is not None:
            self._report(rank_channel.RankDone())

    def _attempt(self, page: Page) -> str:
        """The attempt that this start writes a capture to: all its agents name it alike, and no earlier start did."""
        return str(layout.AttemptName(page.seq, page.step, page.epoch, self.incarnation))

    # --- the trainer --------------------------------------------------------------------------------------------

    def _on_trainer(self, message: trainer_channel.TrainerMessage) -> None:
        if isinstance(message, trainer_channel.Connect):
            self._connect(message)
        elif isinstance(message, trainer_channel.TakeOver):
            self._take_over()
        elif isinstance(message, trainer_channel.Settle):
            self._settle(message.keep, message.tier)
        elif isinstance(message, trainer_channel.SlotCaptured):
            self._capture(self.files.get(message.slot))
        elif isinstance(message, trainer_channel.SaveSkipped):
            self._report(rank_channel.RankSkipped(message.key, message.why))
        elif isinstance(message, trainer_channel.TensorDigests):
            self.asked.answer(message.key, message.tensors)
        elif isinstance(message, trainer_channel.MakeRoom):
            self._make_room()
        elif isinstance(message, trainer_channel.Close):
            self.closing = True
            self._end()
        else:
            never(message)

    def _connect(self, message: trainer_channel.Connect) -> None:
        if self.rank == 0:
            return
        self.addresses = list(message.addresses)
        self._linked(rpc.join(self.addresses, self.token, self.rank, again=self.again))
        if self.uplink is None:
            where = ", ".join(f"{host} port {port}" for host, port in self.addresses)
            self._tell(trainer_channel.Fatal(f"no answer from rank 0's agent at {where}"))
            self.stop = True

    def _linked(self, uplink: Optional[Channel]) -> None:
        self.uplink = uplink
        if uplink is not None:
            uplink.listen(self._heard_head, lambda: self.events.put(agent_events.HeadGone()))

    def _capture(self, slot: shm_slots.Slot) -> None:
        page = slot.page
        if page is None or page.state != SlotState.CAPTURED or page.key in self.captures:
            return
        failpoint("agent.captured")
        sealing = Sealing(slot)
        held = self.captures.add(HeldCapture(page, self._attempt(page), sealing=sealing))
        held.jobs.add("seal")
        self.sealer.submit(agent_events.SealResult, page.key, sealing.run)
        self._report(rank_channel.RankCaptured(page.key, False, replicas.of_slot(slot)))

    def _make_room(self) -> None:
        held = self.captures.make_room()
        number = None
        if held is not None and held.sealing is not None:
            number = held.sealing.slot.name.slot
            self._report(rank_channel.RankSkipped(held.key, losses.REPLACED))
        self._tell(trainer_channel.SlotReleased(number))

    def _on_gone(self) -> None:
        """The trainer is gone: look for a capture that it did not get to announce, free its half copy."""
        self.asked.gone()
        if self.gone_at is not None:
            return
        link = self.head.hub if self.head is not None else self.uplink
        if link is not None:
            link.patience(rpc.HURRY)
        if self.head is not None:
            self.head.hurried = True
        for slot in self.files.all():
            page = slot.page
            if page is not None and page.state == SlotState.WRITING and not alive(page.origin.trainer):
                slot.move(SlotState.FREE)
            self._capture(slot)
        self._end()

    def _end(self) -> None:
        """No capture will come any more."""
        self.gone_at = time.monotonic()
        self.storage.hurry()
        self._report(rank_channel.RankDone())

    def _on_orphaned(self) -> None:
        """Rank 0's agent is gone. While training runs its trainer starts another one, which listens at the same place;
        without it nothing can be committed, so nothing is waited for once training ends."""
        if self.bye:
            return
        if not self.addresses or (self.gone_at is not None and not self.closing):
            self._on_rejoined(None)
            return
        self.rejoining = True
        self._tell(trainer_channel.AgentTrouble("rank 0's agent is gone; another one is waited for"))
        threading.Thread(target=self._seek_head, daemon=True).start()

    def _seek_head(self) -> None:
        found = rpc.join(self.addresses, self.token, self.rank, again=True, deadline=rpc.REJOIN)
        self.events.put(agent_events.HeadSought(found))

    def _on_rejoined(self, uplink: Optional[Channel]) -> None:
        self.rejoining = False
        self._linked(uplink)
        if uplink is not None:
            self._report_again()
            return
        self.orphaned = True
        if self.gone_at is None or self.closing:
            self._tell(trainer_channel.Fatal("rank 0's agent is gone"))

    def _report(self, report: rank_channel.RankReport) -> None:
        """Tell the coordinator, which may be here."""
        if self.head is not None:
            self.head.heard(0, report)
        elif self.uplink is not None:
            self.uplink.send(report.to_json())
