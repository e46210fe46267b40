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

from hyperpod_kit.checkpoint.agent.flush import abandoned, shm_cleanup
from hyperpod_kit.checkpoint.agent.leader.failure_counter import FailureCounter
from hyperpod_kit.checkpoint.agent.leader.leader import Leader
from hyperpod_kit.checkpoint.agent.leader.leader_link import LeaderLink
from hyperpod_kit.checkpoint.agent.partner.partner_copies import PartnerCopies
from hyperpod_kit.checkpoint.agent.process import agent_events, slot_recovery
from hyperpod_kit.checkpoint.agent.process.agent_captures import Captures
from hyperpod_kit.checkpoint.agent.process.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.process.heartbeat import Heartbeat
from hyperpod_kit.checkpoint.agent.process.lifetime import Lifetime
from hyperpod_kit.checkpoint.agent.process.order_executor import OrderExecutor
from hyperpod_kit.checkpoint.agent.process.snapshot_registry import SnapshotRegistry
from hyperpod_kit.checkpoint.agent.process.worker import Worker, Workers
from hyperpod_kit.checkpoint.agent.protocol import rank_channel, trainer_channel
from hyperpod_kit.checkpoint.agent.protocol.message import assert_never
from hyperpod_kit.checkpoint.agent.protocol.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.shm import failure_note, lock, node_tiers, shm_paths
from hyperpod_kit.checkpoint.agent.wire import rpc
from hyperpod_kit.checkpoint.agent.wire.channel import Channel, JsonMessage
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.system.process import is_alive
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.version import version

_TICK = 0.25


class Agent:
    """One rank's agent. `run()` returns when the trainer is gone and nothing is left to do.

    Its parts: `registry` takes captures on, `orders` does with them what rank 0's agent wants, `link` is the way to
    that one (or the `Leader` itself, at rank 0), `lifetime` says how near the end is.
    """

    def __init__(self, trainer: Channel, setup: AgentSetup) -> None:
        """Raises RunIsOwned, CheckpointError, OSError."""
        self.trainer, self.setup = trainer, setup
        self.events: queue.SimpleQueue[agent_events.Event] = queue.SimpleQueue()
        self.captures = Captures()
        self.lifetime = Lifetime()
        self.lock = lock.acquire_ending_stale_agent(setup.lock_path, setup.owner)
        slot_recovery.move_slots_from_other_directories(setup.folder, setup.run_hash, setup.rank, setup.owner)
        run_identity = identity.RunIdentity(setup.run, setup.run_id)
        self.storage = Storage(
            setup.root,
            directory=setup.local,
            rank=setup.rank,
            versions={**setup.versions, "hyperpod_kit": version()},
            run_identity=run_identity,
            rate_limit=setup.rate_limit,
            keep=setup.keep,
            stopped=lambda: self.lifetime.is_stop_requested,
        )
        self.workers = Workers.start(self.events.put)
        self.link = LeaderLink(setup, self.events.put)
        self.copies = PartnerCopies(setup)
        self.registry = SnapshotRegistry(
            setup, self.captures, self.storage, self.workers.sealer, self.copies, self.link.report
        )
        self.orders = OrderExecutor(setup.rank, trainer, self.captures, self.storage, self.workers, self.link.report)
        if setup.rank == 0:
            self.link.leader = self._start_leader_and_remove_old_failure_note(run_identity)

    def _start_leader_and_remove_old_failure_note(self, run_identity: identity.RunIdentity) -> Leader:
        setup = self.setup
        hub = rpc.Hub(
            setup.token, self._queue_rank_report, peers=setup.world - 1, addresses=setup.addresses, port=setup.port
        )
        if not setup.again:
            failure_note.remove(setup.folder, shm_paths.node_uid(), setup.run_hash)
        failure_counter = FailureCounter(
            setup.folder, setup.root, run_identity, setup.incarnation, self.storage, self.workers.chores
        )
        return Leader(
            setup,
            hub,
            self.captures,
            self.storage,
            self.events.put,
            self._on_order,
            self._send_event,
            failure_counter,
            is_trainer_alive=lambda: not self.lifetime.has_trainer_died,
        )

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the end."""
        signal.signal(lock.STOP, lambda *_: self.events.put(agent_events.StopRequested()))
        for number in (signal.SIGTERM, signal.SIGUSR1):
            # Slurm signals every process of a step. The agent must outlive the trainer to save its captures.
            signal.signal(number, lambda *_: self.events.put(agent_events.HurryRequested()))
        self.registry.seal_or_free_leftover_slots()
        self.trainer.start_receiving(
            self._queue_trainer_message, lambda: self.events.put(agent_events.TrainerDisconnected())
        )
        self.workers.chores.submit(
            agent_events.SweepResult, (0, 0, ""), self._remove_empty_dead_segments_start_expired_flush
        )
        leader = self.link.leader
        self._send_event(trainer_channel.Ready(leader.hub.port if leader is not None else 0, self.copies.port))
        sealer, writer, uploader, _ = self.workers
        pulse = Heartbeat(
            self._send_event,
            [sealer, writer, uploader],
            leader.worker if leader is not None else None,
            self.lock.touch_lock_file,
        )
        while not self._is_ready_to_exit():
            pulse.send_signs_of_life_if_due()
            if leader is not None:
                leader.expire_missing_ranks()
            try:
                event = self.events.get(timeout=_TICK)
            except queue.Empty:
                if not self.lifetime.has_trainer_ended and not is_alive(self.setup.owner):
                    self._on_trainer_gone()
                continue
            self.handle(event)
        self._remove_own_slots_if_saved_and_unlock()

    def _remove_empty_dead_segments_start_expired_flush(self) -> List[str]:
        """Remove the empty segments of dead runs, and start a flush of expired snapshots in a thread of its own.

        Returns an empty list. Raises OSError.
        """
        folders = shm_paths.own_directories_and_shm_root()
        shm_cleanup.remove_empty_segments_of_dead_runs(*folders, excluded_run=self.setup.run_hash)
        if abandoned.has_expired_or_undated_snapshots(folders, excluded_run=self.setup.run_hash):
            Worker("abandoned", self.events.put).submit(
                agent_events.SweepResult, (0, 0, ""), abandoned.flush_expired_in_child_returning_losses
            )
        return []

    def handle(self, event: agent_events.Event) -> None:
        """Dispatch one event from the queue to its handler."""
        self.lifetime.record_event()
        if isinstance(event, agent_events.FromTrainer):
            self._on_trainer_message(event.message)
        elif isinstance(event, agent_events.FromLeader):
            self._on_order(event.order)
        elif isinstance(event, agent_events.TrainerDisconnected):
            self._on_trainer_gone()
        elif isinstance(event, agent_events.LeaderDisconnected):
            self._on_leader_gone()
        elif isinstance(event, agent_events.LeaderSearchEnded):
            self._on_leader_search_ended(event.uplink)
        elif isinstance(event, agent_events.StopRequested):
            self.lifetime.is_stop_requested = True
        elif isinstance(event, agent_events.HurryRequested):
            # Storage first, training's comfort second.
            self.storage.lift_rate_limits()
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
            leader.on_report(event.rank, event.report)
        elif isinstance(event, agent_events.RankDisconnected):
            leader.on_disconnected(event.rank)
        else:
            leader.on_result(event)

    def _on_order(self, order: rank_channel.Order) -> None:
        if order.kind is rank_channel.OrderKind.SHUTDOWN:
            self.lifetime.is_shutdown_ordered = True
        elif order.kind is rank_channel.OrderKind.RESYNC:
            self._resend_capture_reports()
        elif order.kind is rank_channel.OrderKind.TAKEN:
            self._send_event(trainer_channel.RootTaken(order.note))
        else:
            self.orders.on_order(order)

    def _resend_capture_reports(self) -> None:
        self.orders.resend_capture_reports()
        if self.lifetime.has_trainer_ended:
            self.link.report(rank_channel.RankDone())

    def _send_event(self, event: trainer_channel.AgentEvent) -> None:
        """Tell the trainer, if it is there."""
        self.trainer.send(event.to_json())

    # --- the threads that listen --------------------------------------------------------------------------------

    def _queue_trainer_message(self, body: JsonMessage) -> None:
        message = trainer_channel.parse_trainer_message_if_known(body)
        if message is not None:
            self.events.put(agent_events.FromTrainer(message))

    def _queue_rank_report(self, rank: int, body: Optional[JsonMessage]) -> None:
        report = None
        if body is not None:
            report = rank_channel.parse_rank_report_if_known(body)
        if report is not None:
            self.events.put(agent_events.FromRank(rank, report))
        elif body is None:
            self.events.put(agent_events.RankDisconnected(rank))

    # --- the trainer --------------------------------------------------------------------------------------------

    def _on_trainer_message(self, message: trainer_channel.TrainerMessage) -> None:
        if isinstance(message, trainer_channel.Connect):
            unreachable = self.link.connect_or_describe_failure(message.addresses)
            if unreachable:
                self._send_event(trainer_channel.Fatal(f"rank 0's agent does not answer at {unreachable}"))
                self.lifetime.is_stop_requested = True
        elif isinstance(message, trainer_channel.PartnerAt):
            self.copies.set_partner(message.addresses)
        elif isinstance(message, trainer_channel.TakeOver):
            self.registry.resume_captures()
        elif isinstance(message, trainer_channel.RestoreCompleted):
            from_local_disk = message.tier == node_tiers.LOCAL_DISK.name
            self.registry.resume_restored_and_free_other_captures(message.keep, from_local_disk=from_local_disk)
        elif isinstance(message, trainer_channel.SlotCaptured):
            self.registry.register_and_seal_slot(message.slot)
        elif isinstance(message, trainer_channel.SaveSkipped):
            self.link.report(rank_channel.RankSkipped(message.key, message.reason))
        elif isinstance(message, trainer_channel.TensorDigests):
            self.orders.tensor_queries.report_tensors_if_pending(message.key, message.tensors)
        elif isinstance(message, trainer_channel.FreeSlot):
            self._send_event(trainer_channel.SlotReleased(self.registry.give_up_oldest_superseded()))
        elif isinstance(message, trainer_channel.Close):
            self.lifetime.is_closing = True
            self._set_trainer_ended_lift_limits_report_done()
        else:
            assert_never(message)

    def _on_trainer_gone(self) -> None:
        self.orders.tensor_queries.report_none_for_all_pending()
        if self.lifetime.has_trainer_ended:
            return
        self.link.shorten_peer_timeouts()
        self.copies.stop_copying()
        self.registry.register_unannounced_and_free_partial()
        self._set_trainer_ended_lift_limits_report_done()

    def _set_trainer_ended_lift_limits_report_done(self) -> None:
        self.lifetime.set_trainer_ended()
        self.storage.lift_rate_limits()
        self.link.report(rank_channel.RankDone())

    # --- rank 0's agent -----------------------------------------------------------------------------------------

    def _on_leader_gone(self) -> None:
        """While training runs its trainer starts another one, which listens at the same place; without it nothing can
        be committed, so nothing is waited for once training ends."""
        if self.lifetime.is_shutdown_ordered:
            return
        if not self.link.has_leader_addresses or self.lifetime.has_trainer_died:
            self._on_leader_search_ended(None)
            return
        self._send_event(trainer_channel.AgentTrouble("rank 0's agent is gone; waiting for another agent"))
        self.link.start_search()

    def _on_leader_search_ended(self, uplink: Optional[Channel]) -> None:
        self.link.end_search(uplink)
        if uplink is not None:
            self._resend_capture_reports()
        elif not self.lifetime.has_trainer_died:
            self._send_event(trainer_channel.Fatal("rank 0's agent is gone"))

    # --- the end ------------------------------------------------------------------------------------------------

    def _is_ready_to_exit(self) -> bool:
        lifetime, link = self.lifetime, self.link
        if lifetime.is_stop_requested:
            return True
        if self.captures.is_any_busy_with("seal"):
            return False
        if lifetime.is_shutdown_ordered and link.leader is not None and link.leader.upkeep.busy:
            return False
        if (
            lifetime.is_shutdown_ordered
            or (lifetime.has_trainer_ended and link.orphaned)
            or (lifetime.has_trainer_died and link.seeking)
        ):
            return True
        # What is worked at is worth any time; only what nobody works at any more is not waited for.
        return not self.captures.is_any_worked_at and lifetime.is_linger_over

    def _remove_own_slots_if_saved_and_unlock(self) -> None:
        """After a normal end nothing stays in shared memory, unless it is the only copy of something."""
        folder, log = self.setup.folder, self.setup.log_path
        unsaved = self.captures.captures_only_in_memory()
        for capture in unsaved:
            print(f"capture {capture.key}: {capture.state_text}, left in {folder}", file=sys.stderr, flush=True)
        if self.lifetime.is_closing and self.lifetime.is_shutdown_ordered and self.registry.is_restored and not unsaved:
            self.registry.remove_all_held()
            by_descriptor.unlink(log, missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(log).st_size == 0:
                by_descriptor.unlink(log)
        if self.link.leader is not None and not unsaved:
            failure_note.remove(folder, shm_paths.node_uid(), self.setup.run_hash)
        failpoint("agent.before_unlock")
        self.lock.release()
