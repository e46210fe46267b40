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
from typing import List, Optional

from hyperpod_kit.checkpoint.agent import (
    abandoned,
    adopt,
    agent_events,
    lock,
    places,
    rpc,
    saves_note,
    shm_gc,
    shm_slots,
)
from hyperpod_kit.checkpoint.agent.agent_captures import Captures
from hyperpod_kit.checkpoint.agent.agent_orders import Orders
from hyperpod_kit.checkpoint.agent.agent_pulse import Pulse
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.channel import Channel, Message
from hyperpod_kit.checkpoint.agent.intake import Intake
from hyperpod_kit.checkpoint.agent.leader import Leader
from hyperpod_kit.checkpoint.agent.leader_link import LeaderLink
from hyperpod_kit.checkpoint.agent.lifetime import Lifetime
from hyperpod_kit.checkpoint.agent.partner_copies import PartnerCopies
from hyperpod_kit.checkpoint.agent.protocol import rank_channel, trainer_channel
from hyperpod_kit.checkpoint.agent.protocol.message import never
from hyperpod_kit.checkpoint.agent.saves_counted import Counted
from hyperpod_kit.checkpoint.agent.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.worker import Worker, Workers
from hyperpod_kit.checkpoint.repository import identity
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.system.process import is_alive
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.version import version

_TICK = 0.25


class Agent:
    """One rank's agent. `run()` returns when the trainer is gone and nothing is left to do.

    Its parts: `intake` takes captures on, `orders` does with them what rank 0's agent wants, `link` is the way to that
    one (or the `Leader` itself, at rank 0), `life` says how near the end is.
    """

    def __init__(self, trainer: Channel, setup: AgentSetup) -> None:
        """Raises RunIsOwned, CheckpointError, OSError."""
        self.trainer, self.setup = trainer, setup
        self.events: queue.SimpleQueue[agent_events.Event] = queue.SimpleQueue()
        self.captures = Captures()
        self.life = Lifetime()
        self.lock = lock.take_over(setup.lock_path, setup.owner)
        adopt.adopt(setup.folder, setup.run_hash, setup.rank, setup.owner)
        whose = identity.RunIdentity(setup.run, setup.run_id)
        self.storage = Storage(
            setup.root,
            directory=setup.local,
            rank=setup.rank,
            versions={**setup.versions, "hyperpod_kit": version()},
            whose=whose,
            rate_limit=setup.rate_limit,
            keep=setup.keep,
            stopped=lambda: self.life.stop,
        )
        self.workers = Workers.start(self.events.put)
        self.link = LeaderLink(setup, self.events.put)
        self.copies = PartnerCopies(setup)
        self.intake = Intake(setup, self.captures, self.storage, self.workers.sealer, self.copies, self.link.report)
        self.orders = Orders(setup.rank, trainer, self.captures, self.storage, self.workers, self.link.report)
        if setup.rank == 0:
            self.link.leader = self._make_leader(whose)

    def _make_leader(self, whose: identity.RunIdentity) -> Leader:
        setup = self.setup
        hub = rpc.Hub(setup.token, self._heard_rank, peers=setup.world - 1, addresses=setup.addresses, port=setup.port)
        if not setup.again:
            saves_note.remove(setup.folder, places.node_uid(), setup.run_hash)
        counted = Counted(setup.folder, setup.root, whose, setup.incarnation, self.storage, self.workers.chores)
        return Leader(
            setup,
            hub,
            self.captures,
            self.storage,
            self.events.put,
            self._on_order,
            self._tell,
            counted,
            is_heard=lambda: not self.life.abandoned,
        )

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the end."""
        signal.signal(lock.STOP, lambda *_: self.events.put(agent_events.StopAsked()))
        for number in (signal.SIGTERM, signal.SIGUSR1):
            # Slurm signals every process of a step. The agent must outlive the trainer to save its captures.
            signal.signal(number, lambda *_: self.events.put(agent_events.HurryAsked()))
        self.intake.recover()
        self.trainer.listen(self._heard_trainer, lambda: self.events.put(agent_events.TrainerGone()))
        self.workers.chores.submit(agent_events.SweepResult, (0, 0, ""), self._see_to_dead_runs)
        leader = self.link.leader
        self._tell(trainer_channel.Ready(leader.hub.port if leader is not None else 0, self.copies.port))
        sealer, writer, uploader, _ = self.workers
        pulse = Pulse(
            self._tell, [sealer, writer, uploader], leader.worker if leader is not None else None, self.lock.renew
        )
        while not self._finished():
            pulse.beat()
            if leader is not None:
                leader.look_round()
            try:
                event = self.events.get(timeout=_TICK)
            except queue.Empty:
                if not self.life.alone and not is_alive(self.setup.owner):
                    self._on_trainer_gone()
                continue
            self.handle(event)
        self._leave()

    def _see_to_dead_runs(self) -> List[str]:
        """Free what they hold for nothing; what nobody came for is flushed beside everything else. Raises OSError."""
        folders = places.of_mine()
        shm_gc.sweep(*folders, but=self.setup.run_hash)
        if abandoned.are_here(folders, but=self.setup.run_hash):
            Worker("abandoned", self.events.put).submit(agent_events.SweepResult, (0, 0, ""), abandoned.flushed)
        return []

    def handle(self, event: agent_events.Event) -> None:
        """What one event changes."""
        if isinstance(event, agent_events.FromTrainer):
            self._on_trainer(event.message)
        elif isinstance(event, agent_events.FromLeader):
            self._on_order(event.order)
        elif isinstance(event, agent_events.TrainerGone):
            self._on_trainer_gone()
        elif isinstance(event, agent_events.LeaderGone):
            self._on_leader_gone()
        elif isinstance(event, agent_events.LeaderSought):
            self._on_leader_sought(event.uplink)
        elif isinstance(event, agent_events.StopAsked):
            self.life.stop = True
        elif isinstance(event, agent_events.HurryAsked):
            # Storage first, training's comfort second.
            self.storage.hurry()
            self.link.report(rank_channel.RankHurried())
        elif isinstance(
            event,
            (
                agent_events.SealResult,
                agent_events.LocalResult,
                agent_events.WriteResult,
                agent_events.PruneResult,
                agent_events.SweepResult,
            ),
        ):
            self.orders.on_result(event)
        else:
            self._on_leader_event(event)

    def _on_leader_event(self, event: agent_events.LeaderEvent) -> None:
        leader = self.link.leader
        assert leader is not None
        if isinstance(event, agent_events.FromRank):
            leader.heard(event.rank, event.report)
        elif isinstance(event, agent_events.RankGone):
            leader.lost(event.rank)
        else:
            leader.on_result(event)

    def _on_order(self, order: rank_channel.Order) -> None:
        if order.kind is rank_channel.OrderKind.BYE:
            self.life.bye = True
        elif order.kind is rank_channel.OrderKind.AGAIN:
            self._report_again()
        elif order.kind is rank_channel.OrderKind.TAKEN:
            self._tell(trainer_channel.RootTaken(order.note))
        else:
            self.orders.on_order(order)

    def _report_again(self) -> None:
        self.orders.report_again()
        if self.life.alone:
            self.link.report(rank_channel.RankDone())

    def _tell(self, event: trainer_channel.AgentEvent) -> None:
        """Tell the trainer, if it is there."""
        self.trainer.send(event.to_json())

    # --- the threads that listen --------------------------------------------------------------------------------

    def _heard_trainer(self, said: Message) -> None:
        message = trainer_channel.trainer_message(said)
        if message is not None:
            self.events.put(agent_events.FromTrainer(message))

    def _heard_rank(self, rank: int, said: Optional[Message]) -> None:
        report = rank_channel.rank_report(said) if said is not None else None
        if report is not None:
            self.events.put(agent_events.FromRank(rank, report))
        elif said is None:
            self.events.put(agent_events.RankGone(rank))

    # --- the trainer --------------------------------------------------------------------------------------------

    def _on_trainer(self, message: trainer_channel.TrainerMessage) -> None:
        if isinstance(message, trainer_channel.Connect):
            nobody_at = self.link.connect(message.addresses)
            if nobody_at:
                self._tell(trainer_channel.Fatal(f"no answer from rank 0's agent at {nobody_at}"))
                self.life.stop = True
        elif isinstance(message, trainer_channel.PartnerAt):
            self.copies.use(message.addresses)
        elif isinstance(message, trainer_channel.TakeOver):
            self.intake.take_over()
        elif isinstance(message, trainer_channel.Settle):
            self.intake.settle(message.keep, local=message.tier == "local")
        elif isinstance(message, trainer_channel.SlotCaptured):
            self.intake.captured(message.slot)
        elif isinstance(message, trainer_channel.SaveSkipped):
            self.link.report(rank_channel.RankSkipped(message.key, message.why))
        elif isinstance(message, trainer_channel.TensorDigests):
            self.orders.asked.answer(message.key, message.tensors)
        elif isinstance(message, trainer_channel.MakeRoom):
            self._tell(trainer_channel.SlotReleased(self.intake.make_room()))
        elif isinstance(message, trainer_channel.Close):
            self.life.closing = True
            self._no_more_captures()
        else:
            never(message)

    def _on_trainer_gone(self) -> None:
        self.orders.asked.gone()
        if self.life.alone:
            return
        self.link.hurry()
        self.copies.hurry()
        self.intake.collect()
        self._no_more_captures()

    def _no_more_captures(self) -> None:
        self.life.trainer_gone()
        self.storage.hurry()
        self.link.report(rank_channel.RankDone())

    # --- rank 0's agent -----------------------------------------------------------------------------------------

    def _on_leader_gone(self) -> None:
        """While training runs its trainer starts another one, which listens at the same place; without it nothing can
        be committed, so nothing is waited for once training ends."""
        if self.life.bye:
            return
        if not self.link.known or self.life.abandoned:
            self._on_leader_sought(None)
            return
        self._tell(trainer_channel.AgentTrouble("rank 0's agent is gone; another one is waited for"))
        self.link.seek()

    def _on_leader_sought(self, uplink: Optional[Channel]) -> None:
        self.link.sought(uplink)
        if uplink is not None:
            self._report_again()
        elif not self.life.abandoned:
            self._tell(trainer_channel.Fatal("rank 0's agent is gone"))

    # --- the end ------------------------------------------------------------------------------------------------

    def _finished(self) -> bool:
        life, link = self.life, self.link
        if life.stop:
            return True
        if self.captures.busy("seal"):
            return False
        if life.bye and link.leader is not None and link.leader.upkeep.busy:
            return False
        if life.bye or (life.alone and link.orphaned) or (life.abandoned and link.seeking):
            return True
        # What is being written is worth any time; only what nobody works at any more is not waited for.
        at_work = any(self.captures.busy(job) for job in ("write", "upload", "commit"))
        return not at_work and life.lingered

    def _leave(self) -> None:
        """After a normal end nothing stays in shared memory, unless it is the only copy of something."""
        folder, log = self.setup.folder, self.setup.log_path
        unsaved = self.captures.unsaved()
        for capture in unsaved:
            print(f"capture {capture.key}: {capture.state}, left in {folder}", file=sys.stderr, flush=True)
        if self.life.closing and self.life.bye and self.intake.settled and not unsaved:
            for name in self.intake.files.names():
                shm_slots.remove(folder, name)
            self.copies.remove()
            by_descriptor.unlink(log, missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(log).st_size == 0:
                by_descriptor.unlink(log)
        if self.link.leader is not None and not unsaved:
            saves_note.remove(folder, places.node_uid(), self.setup.run_hash)
        failpoint("agent.before_unlock")
        self.lock.release()
