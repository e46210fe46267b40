"""What could be restored, newest first, and on which tiers each rank finds its shard of it."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import commit_records, rollbacks, tombstone
from hyperpod_kit.checkpoint.repository.records.catalog import CheckpointEntry
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.tiers.base import HeldShard
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_CHECKPOINT_ROOT, HPK_FRESH, HPK_RESUME_FROM, HPK_RESUME_MEMORY
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.slurm import undecided
from hyperpod_kit.untrusted.text import counted


class ResumeFrom(NamedTuple):
    """The decision of `job run`. `first`: the newest checkpoint of the root that may be tried, beside what the job's
    attempt `job_attempt` has committed; without `near` only the root is read. `fresh`: without `job run`, a person
    wants to begin at step 0 where nothing can be restored. `undecided`: why nothing is restored where no decision was
    made."""

    first: str | None = None
    near: bool = True
    job_attempt: str | None = None
    fresh: bool = False
    undecided: str = ""

    @classmethod
    def from_environment(cls, env: Mapping[str, str], root: str) -> ResumeFrom:
        """Return the decision of `job run` from the environment of a rank that trains with the checkpoints
        of `root`."""
        first = env.get(HPK_RESUME_FROM) or None
        job_attempt = env.get(HPK_ATTEMPT) or None
        fresh = job_attempt is None and env.get(HPK_FRESH) == "1"
        own_root = env.get(HPK_CHECKPOINT_ROOT, "")
        is_jobs = bool(own_root) and os.path.realpath(own_root) == os.path.realpath(root)
        undecided_reason = ""
        if is_jobs and undecided.lacks_checkpoint_decision(env):
            undecided_reason = undecided.explain_missing_checkpoint_decision(env)
        if first == "none":
            first = None
        return cls(first, env.get(HPK_RESUME_MEMORY) != "0", job_attempt, fresh, undecided_reason)


NO_DECISION = ResumeFrom()


def resume_from_checkpoint_id(checkpoint_id: str, *, allow_local_copies: bool) -> ResumeFrom:
    """Return the decision to restore one named checkpoint, in the place of that of `job run`; with
    `allow_local_copies` also from memory or the node's disk."""
    return ResumeFrom(first=checkpoint_id, near=allow_local_copies)


@wire_values.register_type
@dataclass
class Candidate:
    """A checkpoint to try. `copies[rank]` are the tiers besides the root on which that rank has its shard.

    `skip_reason`: why it is passed over: a tombstone (it comes again when nothing else is left), or not every rank has
    it. `lost`: it has no manifest any more, and other records say that it was committed.
    """

    checkpoint_id: str
    name: layout.CheckpointId
    committed: bool
    copies: list[dict[str, HeldShard]] = field(default_factory=list)
    skip_reason: str = ""
    lost: bool = False

    @property
    def sort_key(self) -> tuple[int, int, str]:
        """Return (epoch, seq, nonce), by which candidates are sorted: never the step; the nonce only makes
        the order total."""
        return (self.name.epoch, self.name.seq, self.name.nonce)

    @property
    def snapshot_key(self) -> Key | None:
        """Return the key of the snapshot in memory or on a local disk, on any rank, that this candidate
        was made from; None where there is none."""
        return next((shard_copy.key for tiers in self.copies for shard_copy in tiers.values()), None)


def copies_by_checkpoint(copies_of_ranks: Sequence[Sequence[HeldShard]]) -> dict[str, list[dict[str, HeldShard]]]:
    """Return, by checkpoint id, the copies of each rank by tier."""
    by_checkpoint: dict[str, list[dict[str, HeldShard]]] = {}
    for rank, rank_copies in enumerate(copies_of_ranks):
        for shard_copy in rank_copies:
            tiers = by_checkpoint.setdefault(shard_copy.checkpoint_id, [{} for _ in copies_of_ranks])
            tiers[rank].setdefault(shard_copy.tier, shard_copy)
    return by_checkpoint


def require_same_checkpoint_id(ranks: Ranks, checkpoint_id: str | None) -> None:
    """Raise CheckpointError, on all ranks, unless all of them name the same checkpoint, or none. A
    collective."""
    names = ranks.gather(checkpoint_id)
    if len(set(names)) > 1:
        other = next(rank for rank, name in enumerate(names) if name != names[0])
        raise CheckpointError(
            f"rank 0 restores {names[0] or 'the newest checkpoint'}, and rank {other} {names[other] or 'the newest'}",
            hint="give the same attempt on all ranks",
        )


def iter_candidates_newest_first(
    ranks: Ranks,
    store: Store,
    copies_of_ranks: Sequence[Sequence[HeldShard]],
    resume_from: ResumeFrom,
    only_checkpoint_id: str | None = None,
) -> Iterator[Candidate]:
    """Yield the candidates newest first, the same on all ranks, which step through them together; with
    `only_checkpoint_id` that one alone.

    A snapshot that is not committed counts when every rank has its shard of it, else it has a
    `skip_reason`. Raises CheckpointError when the root cannot be read, or does not have the
    checkpoint of `resume_from`, or the decision that this job step needs was not made, or ranks
    differ in `only_checkpoint_id`.
    """
    require_same_checkpoint_id(ranks, only_checkpoint_id)
    candidates = _broadcast_candidates_newest_first(ranks, store, copies_of_ranks, resume_from)
    yield from (
        candidate
        for candidate in candidates
        if only_checkpoint_id is None or candidate.checkpoint_id == only_checkpoint_id
    )


def _broadcast_candidates_newest_first(
    ranks: Ranks, store: Store, copies_of_ranks: Sequence[Sequence[HeldShard]], resume_from: ResumeFrom
) -> Iterator[Candidate]:
    everywhere = copies_by_checkpoint(copies_of_ranks)
    usable_copies = {}
    if resume_from.near:
        usable_copies = everywhere
    listing: Iterator[Candidate] | None = None
    if ranks.rank == 0:
        listing = _merge_committed_and_uncommitted(store, usable_copies, resume_from)
    while True:
        candidate: Candidate | None = None
        problem: CheckpointError | None = None
        if listing is not None and resume_from.undecided:
            problem = CheckpointError(resume_from.undecided, hint=undecided.HINT)
        elif listing is not None:
            candidate, problem = _next_candidate_or_error(store, listing)
        # Who has what is known to all, and may be long: rank 0 says whether it counts.
        counts = candidate is not None and bool(candidate.copies)
        if candidate is not None:
            candidate = replace(candidate, copies=[])
        candidate, counts, problem = ranks.broadcast((candidate, counts, problem))
        if problem is not None:
            raise problem
        if candidate is None:
            return
        if counts:
            candidate = replace(candidate, copies=everywhere.get(candidate.checkpoint_id, []))
        yield candidate


def _next_candidate_or_error(
    store: Store, listing: Iterator[Candidate]
) -> tuple[Candidate | None, CheckpointError | None]:
    """Return the next candidate of `listing`, None at the end, or the error that ends the listing."""
    try:
        return next(listing, None), None
    except (OSError, CheckpointError) as err:
        return None, CheckpointError(
            f"cannot list {store.url}: {verify.describe_failure(err)}", hint=f"hyperpod-kit checkpoint ls {store.url}"
        )


def _merge_committed_and_uncommitted(
    store: Store, copies_by_id: dict[str, list[dict[str, HeldShard]]], resume_from: ResumeFrom
) -> Iterator[Candidate]:
    """Yield, on rank 0, the committed checkpoints of the root and the snapshots that are nowhere else,
    newest first; then those with a tombstone once more, and what is lost."""
    taken: set[str] = set()
    rollback_records = rollbacks.read_active_records(store)

    def committed() -> Iterator[Candidate]:
        for number, entry in enumerate(
            selection.iter_committed_not_excluded_newest_first(
                store, start_at=resume_from.first, also_saved_by_job_attempt=resume_from.job_attempt
            )
        ):
            if number == 0 and resume_from.first is None:
                for lost in selection.lost_commit_named_by_latest(store, entry.name):
                    name = layout.parse_checkpoint_id(lost.checkpoint_id)
                    assert name is not None
                    yield Candidate(lost.checkpoint_id, name, True, [], lost.reason, lost=True)
            skip_reason = _damage_recorded_in_tombstone(store, entry)
            if not skip_reason:
                taken.add(entry.checkpoint_id)
            yield Candidate(
                entry.checkpoint_id, entry.name, True, copies_by_id.get(entry.checkpoint_id, []), skip_reason
            )

    def captured() -> Iterator[Candidate]:
        snapshots = []
        for checkpoint_id, tiers in copies_by_id.items():
            name = layout.parse_checkpoint_id(checkpoint_id)
            if name is not None:
                skip_reason = rollbacks.exclusion_reason(rollback_records, name)
                if not skip_reason:
                    skip_reason = _describe_world_mismatch_or_missing_rank(tiers)
                    if (
                        skip_reason
                        and resume_from.first is not None
                        and store.exists(f"{checkpoint_id}/{layout.MANIFEST_FILE}")
                    ):
                        skip_reason = (
                            f"newer than {resume_from.first}, the checkpoint given to this run, and not saved by this "
                            "attempt"
                        )
                snapshots.append(Candidate(checkpoint_id, name, False, tiers, skip_reason))
        yield from sorted(snapshots, key=lambda candidate: candidate.sort_key, reverse=True)

    # At equal order the committed one comes first, so that it is known when its capture is passed over.
    skipped = []
    for candidate in heapq.merge(committed(), captured(), key=lambda c: (c.sort_key, c.committed), reverse=True):
        if candidate.committed or candidate.checkpoint_id not in taken:
            yield candidate
        if candidate.skip_reason and candidate.committed and not candidate.lost:
            skipped.append(replace(candidate, skip_reason=""))
    # A tombstone may be wrong (bad memory in the machine that wrote it); it must not be what ends a run.
    yield from skipped
    # That something was committed must be known, or the run would start from scratch; none of these is tried.
    known_commits = bool(taken or skipped)
    for checkpoint_id, reason in selection.excluded_by_rollback(store):
        name = layout.parse_checkpoint_id(checkpoint_id)
        if name is not None and checkpoint_id not in taken:
            known_commits = True
            yield Candidate(checkpoint_id, name, True, [], reason)
    if not known_commits:
        yield from _candidates_of_lost_commits(store)


def _damage_recorded_in_tombstone(store: Store, entry: CheckpointEntry) -> str:
    """Return what the checkpoint's tombstone says; "" where there is none."""
    if not entry.marked:
        return ""
    damage = tombstone.read_damage_reason(store, entry.checkpoint_id)
    if damage is None:
        return ""
    return f"marked as damaged: {damage}"


def _candidates_of_lost_commits(store: Store) -> Iterator[Candidate]:
    """Yield what was committed and has no manifest any more: none of these is tried, and the run must
    not start from scratch."""
    nameless = layout.CheckpointId(0, 0, 0, "")
    for checkpoint_id, reason in commit_records.summarize_lost_commits(
        selection.lost_commits_assuming_no_manifests(store)
    ):
        yield Candidate(
            checkpoint_id, layout.parse_checkpoint_id(checkpoint_id) or nameless, True, [], reason, lost=True
        )


def _describe_world_mismatch_or_missing_rank(tiers: Sequence[dict[str, HeldShard]]) -> str:
    """Return why a snapshot that was never committed cannot be put together from these parts; "" when
    it can."""
    world = next(shard_copy.world for parts in tiers for shard_copy in parts.values())
    if world != len(tiers):
        return f"never committed, and captured by {counted(world, 'rank')}: this run has {len(tiers)}"
    missing = [rank for rank, parts in enumerate(tiers) if not parts]
    if missing:
        return f"never committed, and gone or incomplete on rank {missing[0]}"
    return ""
