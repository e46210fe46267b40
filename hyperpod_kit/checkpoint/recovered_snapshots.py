"""What earlier starts of the run have left beside the root: restored from, or given up, once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hyperpod_kit.checkpoint import candidates, peek, restore, restore_report, shm_capacity, tiers
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import RestoreCompleted
from hyperpod_kit.checkpoint.agent_supervisor import AgentSupervisor
from hyperpod_kit.checkpoint.candidate_run import NearerTiers
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.repository import catalog, proofs, selection
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.restore_progress import ProgressCallback
from hyperpod_kit.checkpoint.results import CheckpointInfo, Fresh, Restored
from hyperpod_kit.checkpoint.slots import SlotPool
from hyperpod_kit.checkpoint.startup import StartIdentity
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.checkpoint.tiers.base import STORAGE
from hyperpod_kit.errors import CheckpointError, HyperpodKitError


class RecoveredSnapshots:
    """The captures of all ranks in memory and in `local` on their nodes' disks; a restore may take `threads` cores.

    Whoever settles what becomes of them tells the agent, which frees all but the one that was restored from.
    """

    def __init__(
        self,
        ranks: Ranks,
        start: StartIdentity,
        agent: AgentSupervisor,
        pool: SlotPool,
        *,
        local: str | None,
        threads: int,
    ) -> None:
        """A collective."""
        self._ranks, self._start, self._agent, self._pool = ranks, start, agent, pool
        self._local, self._threads = local, threads
        self._copies = ranks.gather(self._nearer.list_copies())
        self._is_settled = False

    @property
    def is_fate_of_snapshots_decided(self) -> bool:
        """Return whether a restore or a save has already decided what becomes of the snapshots."""
        return self._is_settled

    @property
    def keys_of_all_ranks(self) -> list[Key]:
        return [shard_copy.key for rank_copies in self._copies for shard_copy in rank_copies]

    def restore_and_free_other_snapshots(
        self, state: State, progress: ProgressCallback | None, epoch: int, checkpoint_id: str | None = None
    ) -> Restored | Fresh:
        """Restore `state` as Manager.restore, report the outcome to `job run` and let the agent free all
        snapshots but the restored one. `epoch`: that of this start."""
        with self._report_failures_to_job_run():
            outcome = restore.restore(
                self._ranks,
                open_store(self._start.root),
                state,
                nearer=self._nearer,
                copies_of_ranks=self._copies,
                resume_from=self._resume_from(checkpoint_id),
                only_checkpoint_id=checkpoint_id,
                before_fill=lambda: shm_capacity.require_room_for_slots(
                    self._ranks, self._pool.folder, state.model, self._pool.count
                ),
                progress=progress,
                epoch=epoch,
            )
        if self._ranks.rank == 0:
            restore_report.report_restored_to_job_run(self._start.root, outcome.got)
            if isinstance(outcome.got, Restored) and outcome.got.tier == STORAGE:
                proofs.record_proof_if_owner(open_store(self._start.root), outcome.got.checkpoint_id, "restore")
        self._mark_decided_and_send_restore_completed(outcome.keep)
        return outcome.got

    def peek(self, only_checkpoint_id: str | None) -> CheckpointInfo | None:
        """Read the newest checkpoint's header, see Manager.peek; errors are reported to `job run`."""
        with self._report_failures_to_job_run():
            return peek.peek(
                self._ranks,
                open_store(self._start.root),
                nearer=self._nearer,
                copies_of_ranks=self._copies,
                resume_from=self._resume_from(only_checkpoint_id),
                only_checkpoint_id=only_checkpoint_id,
            )

    def _resume_from(self, checkpoint_id: str | None) -> candidates.ResumeFrom:
        resume_from = candidates.ResumeFrom.from_environment(os.environ, self._start.root)
        if checkpoint_id is None:
            return resume_from
        return candidates.resume_from_checkpoint_id(
            checkpoint_id, allow_local_copies=resume_from.near and not self._is_settled
        )

    @property
    def _nearer(self) -> NearerTiers:
        run_id = self._start.run.run_id
        rank_tiers = tiers.of_rank(run_id, self._ranks.rank, slots=self._pool.slots, local=self._local)
        return NearerTiers(run_id, rank_tiers, self._threads)

    @contextlib.contextmanager
    def _report_failures_to_job_run(self) -> Iterator[None]:
        """Report an error of the block to `job run` before it is raised."""
        try:
            yield
        except HyperpodKitError as err:
            if self._ranks.rank == 0:
                restore_report.report_failure_to_job_run(self._start.root, err)
            if isinstance(err, restore_report.ERRORS_ON_ALL_RANKS):
                # Slurm kills a step whose first rank fails: rank 0 must have said why before any of them does.
                self._ranks.gather(None)
            raise

    def require_nothing_to_restore_and_free_snapshots(self) -> None:
        """Raise CheckpointError before a save where nothing was restored and there is something to
        restore; else let the agent free all snapshots."""
        if self._is_settled:
            return
        root = self._start.root
        store = open_store(root)
        if (
            any(self._copies)
            or catalog.newest_committed(store) is not None
            or selection.lost_commits_assuming_no_manifests(store)
        ):
            raise CheckpointError(f"{root} holds checkpoints of this run", hint="call restore() before save()")
        self._mark_decided_and_send_restore_completed(None)

    def _mark_decided_and_send_restore_completed(self, keep: Key | None) -> None:
        self._is_settled = True
        last_tier = self._nearer.tiers[-1].name
        self._agent.send(RestoreCompleted(keep, last_tier))
