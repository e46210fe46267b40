"""What earlier starts of the run have left beside the root: restored from, or given up, once.

Before that `inspect` may ask what the newest checkpoint says (`peek`), and the first rank tells the `job run` above it
what all ranks restored.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hyperpod_kit.checkpoint import tiers
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import RestoreCompleted
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.shm.node_tiers import STORAGE
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentSupervisor
from hyperpod_kit.checkpoint.agent_client.startup import StartIdentity
from hyperpod_kit.checkpoint.capture import shm_capacity
from hyperpod_kit.checkpoint.capture.slots import SlotPool
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import manifest
from hyperpod_kit.checkpoint.repository.records import catalog, commit_records, proofs
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.retrying import with_read_retries
from hyperpod_kit.checkpoint.restore import candidates, restore
from hyperpod_kit.checkpoint.restore.candidate_run import CandidateRun, NearerTiers
from hyperpod_kit.checkpoint.restore.candidates import ResumeFrom
from hyperpod_kit.checkpoint.restore.results import CheckpointInfo, Fresh, Restored
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.checkpoint.tiers.base import HeldShard, RankSite
from hyperpod_kit.checkpoint.tiers.local_disk import LocalDiskTier
from hyperpod_kit.checkpoint.tiers.memory import MemoryTier
from hyperpod_kit.checkpoint.transfer.restore_progress import ProgressCallback
from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT
from hyperpod_kit.errors import (
    CheckpointError,
    DigestUnavailable,
    HyperpodKitError,
    NotEnoughSharedMemory,
    NoValidCheckpoint,
    StorageUnreadable,
)
from hyperpod_kit.slurm import verdict
from hyperpod_kit.slurm.verdict import RestoreVerdict

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.agent_client.partner_link import PartnerLink


class RecoveredSnapshots:
    """The captures of all ranks on the tiers besides the root; a restore may take `threads` cores.

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
        partners: PartnerLink | None,
        threads: int,
    ) -> None:
        """Map the slots of `pool` that are there. A collective."""
        self._ranks, self._start, self._agent, self._pool = ranks, start, agent, pool
        self._local, self._partners, self._threads = local, partners, threads
        for tier in self._nearer.tiers:
            tier.fetch_lost_snapshot()
        pool.map_existing_slots_and_prefault_newest()
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
            report_restored_to_job_run(self._start.root, outcome.got)
            if isinstance(outcome.got, Restored) and outcome.got.tier == STORAGE:
                proofs.record_proof_if_owner(open_store(self._start.root), outcome.got.checkpoint_id, "restore")
        self._mark_decided_and_send_restore_completed(outcome.keep)
        return outcome.got

    def peek(self, only_checkpoint_id: str | None) -> CheckpointInfo | None:
        """Read the newest checkpoint's header, see Manager.peek; errors are reported to `job run`."""
        with self._report_failures_to_job_run():
            return peek(
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
        site = RankSite(run_id, self._ranks.rank, self._pool.slots, self._local, self._partners)
        return NearerTiers(run_id, tiers.of_rank(site), self._threads)

    @contextlib.contextmanager
    def _report_failures_to_job_run(self) -> Iterator[None]:
        """Report an error of the block to `job run` before it is raised."""
        try:
            yield
        except HyperpodKitError as err:
            if self._ranks.rank == 0:
                report_failure_to_job_run(self._start.root, err)
            if isinstance(err, ERRORS_ON_ALL_RANKS):
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
        tier = MemoryTier.name
        if self._local is not None:
            tier = LocalDiskTier.name
        self._agent.send(RestoreCompleted(keep, tier))


# What the newest checkpoint says beside its tensors, before there is a state to restore.
#
# A framework asks for its own counters before it makes an optimizer. Only the beginning of each candidate is proved,
# so a restore that follows may still go back to an older one: who peeked compares the two.


def peek(
    ranks: Ranks,
    store: Store,
    *,
    nearer: NearerTiers,
    copies_of_ranks: Sequence[Sequence[HeldShard]],
    resume_from: ResumeFrom,
    only_checkpoint_id: str | None = None,
) -> CheckpointInfo | None:
    """Read what rank 0 saved besides tensors in the newest candidate whose header all ranks can prove,
    the same on all ranks; None where nothing was ever committed, or the restore that follows begins
    anew.

    `only_checkpoint_id`: this checkpoint and no other. A collective. Raises NoValidCheckpoint,
    DigestUnavailable, StorageUnreadable, CheckpointError.
    """
    store = with_read_retries(store)
    rejected: list[tuple[str, str]] = []
    committed = lost = False
    for candidate in candidates.iter_candidates_newest_first(
        ranks, store, copies_of_ranks, resume_from, only_checkpoint_id
    ):
        committed = committed or candidate.committed
        lost = lost or candidate.lost
        if candidate.skip_reason:
            rejected.append((candidate.checkpoint_id, candidate.skip_reason))
            continue
        with contextlib.closing(CandidateRun(ranks, store, nearer, candidate)) as run:
            tree = run.try_tiers(rejected, lambda header: header.tree)
        if tree is not None:
            extra, save_record = ranks.broadcast((tree["extra"], tree.get("save") or {}))
            name = candidate.name
            return CheckpointInfo(
                name.step,
                name.epoch,
                name.seq,
                candidate.checkpoint_id,
                codec.decode(extra, lambda _: None, plain=True),  # type: ignore[arg-type, return-value]  # a place is all it is
                manifest.decode_numbers(save_record.get("metrics") or {}),
                tuple(rejected),
            )
    if committed and not ranks.broadcast(resume_from.fresh):
        hint = None
        if lost:
            hint = commit_records.repair_hint(store.url)
        raise NoValidCheckpoint(store.url, rejected, hint=hint)
    return None


# The first rank tells the `job run` above it what all ranks restored, or why they could not (slurm/verdict.py).

ERRORS_ON_ALL_RANKS = (DigestUnavailable, NotEnoughSharedMemory, NoValidCheckpoint, StorageUnreadable)
"""Errors of a restore that all ranks raise together."""


def report_restored_to_job_run(root: str, got: Restored | Fresh, env: Mapping[str, str] = os.environ) -> None:
    """Write for `job run` what was restored, on the first rank; nothing for another root than the
    job's own."""
    if isinstance(got, Fresh):
        _write_verdict_for_job_root(root, RestoreVerdict(verdict.NONE, rejected=got.rejected), env)
    else:
        _write_verdict_for_job_root(
            root, RestoreVerdict(got.checkpoint_id, got.step, (got.epoch, got.seq), got.tier, got.rejected), env
        )


def report_failure_to_job_run(root: str, err: HyperpodKitError, env: Mapping[str, str] = os.environ) -> None:
    """Write for `job run` why no checkpoint could be restored, on the first rank; nothing for another
    root than the job's own."""
    reasons: tuple[tuple[str, str], ...] = ()
    if isinstance(err, NoValidCheckpoint):
        reasons = err.reasons
    elif isinstance(err, StorageUnreadable):
        reasons = ((err.attempt, err.message),)
    # What to type is for whoever starts the job, and is no command on this node.
    explanation = err.message
    if isinstance(err, NotEnoughSharedMemory):
        explanation = f"{err.message}: {err.hint}"
    _write_verdict_for_job_root(
        root, RestoreVerdict("", rejected=reasons, error=type(err).__name__, why=explanation), env
    )


def _write_verdict_for_job_root(root: str, report: RestoreVerdict, env: Mapping[str, str]) -> None:
    job_root = env.get(HPK_CHECKPOINT_ROOT)
    if not job_root or os.path.realpath(job_root) != os.path.realpath(root):
        return
    try:
        verdict.write_verdict_if_under_job_run(env, report)
    except OSError as err:
        # Without it the budgets of the job count from what `job run` chose, which may be newer.
        warnings.warn(
            f"the restored checkpoint could not be reported to `job run`: {err}", RuntimeWarning, stacklevel=2
        )
