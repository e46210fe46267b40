"""One candidate of a restore: its tiers from the cheapest to the dearest, and its beginning, proved by all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from hyperpod_kit.checkpoint.agent.reports import extra_state, replicas
from hyperpod_kit.checkpoint.agent.reports.name_coverage import combine_plans as one_plan
from hyperpod_kit.checkpoint.agent.shm.node_tiers import STORAGE
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason, Verdict
from hyperpod_kit.checkpoint.repository.format import digest, non_tensor_state
from hyperpod_kit.checkpoint.repository.format.manifest import Manifest
from hyperpod_kit.checkpoint.repository.read import rank_extra_state, verify
from hyperpod_kit.checkpoint.repository.records import lease
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.restore.agreement import Agreement
from hyperpod_kit.checkpoint.restore.candidate_rejected import CandidateRejected, write_tombstone_if_damaged_again
from hyperpod_kit.checkpoint.restore.candidates import Candidate
from hyperpod_kit.checkpoint.tiers import TIERS
from hyperpod_kit.checkpoint.tiers.base import HeldShard, Tier, Tree
from hyperpod_kit.environment import HPK_RESUME_FROM
from hyperpod_kit.errors import CheckpointError, StorageUnreadable

Used = TypeVar("Used")

_LEASE = 900.0
"""Seconds for which a checkpoint that is read is safe from retention."""


class NearerTiers(NamedTuple):
    """What this rank has besides the root: its tiers of the run, the cheapest first. It may use `threads` cores."""

    run_id: str
    tiers: Sequence[Tier]
    threads: int

    def list_copies(self) -> list[HeldShard]:
        """Return this rank's shards on all of these tiers."""
        return [shard_copy for tier in self.tiers for shard_copy in tier.list_copies()]

    def tier(self, name: str) -> Tier:
        """Return the tier of that name. Raises CheckpointError where this rank has none."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise CheckpointError(f"this rank has nothing in {name}")


class ProvedHeader(NamedTuple):
    """The proved beginning of a candidate: where each rank takes its shard from, and its tree."""

    body: Manifest | None  # None: the candidate is not committed, or nothing of the root is needed
    tiers: tuple[str, ...]
    world: int
    plan: str
    algorithm: str
    tree: Tree


class CandidateRun:
    """One candidate, tried from its cheapest tiers to its dearest."""

    def __init__(self, ranks: Ranks, store: Store, nearer: NearerTiers, candidate: Candidate) -> None:
        self._ranks = ranks
        self._store = store
        self._nearer = nearer
        self._candidate = candidate
        self._agreement = Agreement(ranks, candidate.checkpoint_id)
        self._lease: lease.KeptLease | None = None
        # Per rank the tiers that are left; the same on all ranks.
        self._remaining_tiers = [
            {
                tier
                for tier in TIERS
                if (tier == STORAGE and candidate.committed)
                or (rank < len(candidate.copies) and tier in candidate.copies[rank])
            }
            for rank in range(ranks.world)
        ]

    def close(self) -> None:
        """Release the lease on the candidate, if one was taken."""
        if self._lease is not None:
            self._lease.release()

    def try_tiers(self, rejected: list[tuple[str, str]], use: Callable[[ProvedHeader], Used]) -> Used | None:
        """Call `use` with the proved header of the candidate from ever dearer tiers, and return its
        result; None when no tier remains.

        `use` raises CandidateRejected where the rest is not good. Reasons are added to `rejected`, and
        a checkpoint on storage that is damaged gets a tombstone. Raises StorageUnreadable, what `use`
        raises.
        """
        while all(self._remaining_tiers):
            tiers = tuple(next(tier for tier in TIERS if tier in remaining) for remaining in self._remaining_tiers)
            try:
                return use(self._read_proved_header(tiers))
            except CandidateRejected as err:
                reason = f"in {'+'.join(sorted(set(tiers)))}: {err.reason}"
                rejected.append((self._candidate.checkpoint_id, reason))
                if err.reason.verdict is Verdict.UNREAD and (err.rank is None or tiers[err.rank] == STORAGE):
                    # No verdict, so no reason to take an older one. A node's own disk that fails is a copy less.
                    raise StorageUnreadable(
                        self._candidate.checkpoint_id,
                        reason,
                        hint=f"restart the run when storage responds, or set {HPK_RESUME_FROM} to an older "
                        f"checkpoint: hyperpod-kit checkpoint ls {self._store.url}",
                    ) from None
                damaged = err.reason.verdict is Verdict.DAMAGED
                if damaged and err.rank == self._ranks.rank and tiers[err.rank] == STORAGE:
                    write_tombstone_if_damaged_again(
                        self._store, self._candidate.checkpoint_id, err.rank, err.reason.text
                    )
                self._drop_failed_tier(tiers, err)
        return None

    def _drop_failed_tier(self, tiers: tuple[str, ...], err: CandidateRejected) -> None:
        """Remove from the remaining tiers the one that failed on its rank, or, when the rank is not known,
        all that were tried outside of storage; remove every tier where storage itself failed."""
        bad = err.rank
        if bad is not None and tiers[bad] != STORAGE:
            self._remaining_tiers[bad].discard(tiers[bad])
            return
        outside = [rank for rank, tier in enumerate(tiers) if tier != STORAGE]
        if not outside or bad is not None:
            self._remaining_tiers = [set() for _ in self._remaining_tiers]
        for rank in outside:
            self._remaining_tiers[rank].discard(tiers[rank])

    # --- the proved beginning -----------------------------------------------------------------------------------

    def _copy_of(self, rank: int, tier: str) -> HeldShard:
        return self._candidate.copies[rank][tier]

    def _read_proved_header(self, tiers: tuple[str, ...]) -> ProvedHeader:
        """Read and prove everything of the candidate but its tensors, from memory or disk where all ranks
        have it there, else from the root. Raises CandidateRejected, DigestUnavailable."""
        if STORAGE not in tiers:
            header = self._read_header_outside_root_if_same_world(tiers)
            if header is not None:
                return header
        return self._read_header_from_root(tiers)

    def _read_header_outside_root_if_same_world(self, tiers: tuple[str, ...]) -> ProvedHeader | None:
        """Read and prove the header from memory or local disks alone; return None when the candidate was
        saved by another number of ranks. Raises CandidateRejected."""
        first = self._copy_of(0, tiers[0])
        for rank, tier in enumerate(tiers):
            shard_copy = self._copy_of(rank, tier)
            if (shard_copy.key, shard_copy.world) != (first.key, self._ranks.world):
                if not self._candidate.committed:
                    raise CandidateRejected(Reason("its parts are from different captures"))
                self._remaining_tiers = [remaining & {STORAGE} for remaining in self._remaining_tiers]
                return None
        own_tier = tiers[self._ranks.rank]

        def read() -> tuple[Tree, replicas.Replicas]:
            tree = self._nearer.tier(own_tier).read_proved_tree(self._copy_of(self._ranks.rank, own_tier))
            return tree, replicas.digests_by_holders_in_tree(tree)

        tree, alike = self._agreement.run_and_gather_or_reject(read)
        differ = replicas.find_difference(dict(enumerate(alike)))
        if differ is not None:
            # The agents refused it, or were killed before they could.
            raise CandidateRejected(Reason(replicas.explain_difference(differ)))
        plan = one_plan([self._copy_of(rank, tier).plan for rank, tier in enumerate(tiers)])
        return ProvedHeader(None, tiers, first.world, plan, first.root.partition(":")[0], tree)

    def _read_header_from_root(self, tiers: tuple[str, ...]) -> ProvedHeader:
        checkpoint_id = self._candidate.checkpoint_id

        def read() -> tuple[Manifest, bytes, list[tuple[Tree, list[Any] | None]]]:
            # From here on the root is read: nobody deletes the candidate, where the root can be written. Not earlier,
            # because making a lease durable takes longer than reading a small state from memory.
            self._lease = self._lease or lease.acquire_lease_if_writable(self._store, checkpoint_id, _LEASE)
            body = verify.read_manifest(self._store, checkpoint_id)
            if body.run_id != self._nearer.run_id:
                raise CheckpointError(f"it belongs to another run, {body.run}")
            extra = verify.read_verified_small_file(self._store, checkpoint_id, body.extra)
            if body.index is not None:
                # Not needed for the same topology; but a checkpoint that is damaged anywhere is not handed on.
                verify.read_verified_small_file(self._store, checkpoint_id, body.index)
            shared, parts = extra_state.split_shared_and_rank_parts(extra, self._ranks.world)
            return (
                body,
                shared,
                [(part.parts, None if part.location is None else list(part.location)) for part in parts],
            )

        contents = self._agreement.run_or_reject(read if self._ranks.rank == 0 else lambda: None)
        body, shared = self._ranks.broadcast(contents and contents[:2])
        local_parts, tree_location = self._ranks.scatter(contents and contents[2])

        def parse() -> Tree:
            digest.algorithm(body.digest)
            tree = {**json.loads(shared), **local_parts}
            if tree_location is not None:
                tree.update(
                    rank_extra_state.read(
                        self._store, checkpoint_id, self._ranks.rank, rank_extra_state.parse_location(tree_location)
                    )
                )
            non_tensor_state.require_known_records_well_formed(tree)
            if self._ranks.rank >= body.world:
                # Two ranks with one stream of random numbers would be worse than a new stream.
                tree.pop("rng", None)
            return tree

        tree = self._agreement.run_or_reject(parse)
        # A copy outside the root is as good as the root's when it has the same digest.
        good = tuple(self._tier_or_storage_if_different(rank, tier, body) for rank, tier in enumerate(tiers))
        return ProvedHeader(body, good, body.world, body.plan, body.digest, tree)

    def _tier_or_storage_if_different(self, rank: int, tier: str, body: Manifest) -> str:
        """Return `tier` if the rank's shard there has the digest of the committed one, else storage."""
        if tier == STORAGE or body.world != self._ranks.world:
            return STORAGE
        if self._copy_of(rank, tier).root == body.shards[rank].root:
            return tier
        return STORAGE
