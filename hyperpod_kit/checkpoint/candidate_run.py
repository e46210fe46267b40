"""One candidate of a restore: its tiers from the cheapest to the dearest, and its beginning, proved by all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hyperpod_kit.checkpoint import local_tiers
from hyperpod_kit.checkpoint.agent import extra_state, replicas, shm_slots
from hyperpod_kit.checkpoint.agent.name_coverage import combine_plans as one_plan
from hyperpod_kit.checkpoint.agreement import Agreement
from hyperpod_kit.checkpoint.candidates import MEMORY, STORAGE, TIERS, Candidate, HeldShard
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.reason import Reason, Verdict
from hyperpod_kit.checkpoint.rejected import Rejected, mark
from hyperpod_kit.checkpoint.repository import digest, lease, non_tensor_state, rank_extra_state, verify
from hyperpod_kit.checkpoint.repository.manifest import Manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.environment import HPK_RESUME_FROM
from hyperpod_kit.errors import CheckpointError, StorageUnreadable

Tree = dict[str, Any]
Used = TypeVar("Used")

_LEASE = 900.0
"""Seconds for which a checkpoint that is read is safe from retention."""


@dataclass(frozen=True)
class NearerTiers:
    """What this rank has besides the root: its slots, and `local`, the directory of the node's own disk that the agents
    write to. It may use `threads` cores."""

    run_id: str
    slots: Sequence[shm_slots.Slot]
    local: str | None
    threads: int


@dataclass(frozen=True)
class ProvedHeader:
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
        self._all = Agreement(ranks, candidate.attempt)
        self._lease: lease.KeptLease | None = None
        # Per rank the tiers that are left; the same on all ranks.
        self._left = [
            {
                tier
                for tier in TIERS
                if (tier == STORAGE and candidate.committed)
                or (rank < len(candidate.held) and tier in candidate.held[rank])
            }
            for rank in range(ranks.world)
        ]

    def close(self) -> None:
        """Nothing of the root is read any more."""
        if self._lease is not None:
            self._lease.release()

    def walk(self, rejected: list[tuple[str, str]], use: Callable[[ProvedHeader], Used]) -> Used | None:
        """What `use` made of the proved beginning, None when no tier has what it takes: `use` raises Rejected where
        the rest is not good. Reasons are added to `rejected`. Raises StorageUnreadable, what `use` raises."""
        while all(self._left):
            tiers = tuple(next(tier for tier in TIERS if tier in left) for left in self._left)
            try:
                return use(self._header(tiers))
            except Rejected as err:
                why = f"in {'+'.join(sorted(set(tiers)))}: {err.reason}"
                rejected.append((self._candidate.attempt, why))
                if err.reason.verdict is Verdict.UNREAD and (err.rank is None or tiers[err.rank] == STORAGE):
                    # No verdict, so no reason to take an older one. A node's own disk that fails is a copy less.
                    raise StorageUnreadable(
                        self._candidate.attempt,
                        why,
                        hint=f"start again when storage answers, or name an older one in {HPK_RESUME_FROM}: "
                        f"hyperpod-kit checkpoint ls {self._store.url}",
                    ) from None
                damaged = err.reason.verdict is Verdict.DAMAGED
                if damaged and err.rank == self._ranks.rank and tiers[err.rank] == STORAGE:
                    mark(self._store, self._candidate.attempt, err.rank, err.reason.words)
                self._drop(tiers, err)
        return None

    def _drop(self, tiers: tuple[str, ...], err: Rejected) -> None:
        """Which copy not to try again: that of the rank that failed, or the dearest when that is not known."""
        bad = err.rank
        if bad is not None and tiers[bad] != STORAGE:
            self._left[bad].discard(tiers[bad])
            return
        outside = [rank for rank, tier in enumerate(tiers) if tier != STORAGE]
        if not outside or bad is not None:
            self._left = [set() for _ in self._left]
        for rank in outside:
            self._left[rank].discard(tiers[rank])

    # --- the proved beginning -----------------------------------------------------------------------------------

    def _held(self, rank: int, tier: str) -> HeldShard:
        return self._candidate.held[rank][tier]

    def _header(self, tiers: tuple[str, ...]) -> ProvedHeader:
        """Everything but the tensors. Raises Rejected, DigestUnavailable."""
        if STORAGE not in tiers:
            header = self._header_outside(tiers)
            if header is not None:
                return header
        return self._header_of_root(tiers)

    def _header_outside(self, tiers: tuple[str, ...]) -> ProvedHeader | None:
        """Without the root: every rank has its shard and its tree nearer. None when it is not this topology's."""
        first = self._held(0, tiers[0])
        for rank, tier in enumerate(tiers):
            one = self._held(rank, tier)
            if (one.key, one.world) != (first.key, self._ranks.world):
                if not self._candidate.committed:
                    raise Rejected(Reason("its parts are not of one capture"))
                self._left = [left & {STORAGE} for left in self._left]
                return None
        nearer, tier = self._nearer, tiers[self._ranks.rank]

        def read() -> tuple[Tree, replicas.Replicas]:
            tree = (
                local_tiers.tree_in_memory(nearer.slots, first.key)
                if tier == MEMORY
                else local_tiers.tree_on_disk(
                    str(nearer.local), nearer.run_id, self._ranks.rank, self._candidate.attempt
                )
            )
            return tree, replicas.digests_in_tree(tree)

        tree, alike = self._all.prove_and_tell(read)
        differ = replicas.find_difference(dict(enumerate(alike)))
        if differ is not None:
            # The agents refused it, or were killed before they could.
            raise Rejected(Reason(replicas.explain(differ)))
        plan = one_plan([self._held(rank, tier).plan for rank, tier in enumerate(tiers)])
        return ProvedHeader(None, tiers, first.world, plan, first.root.partition(":")[0], tree)

    def _header_of_root(self, tiers: tuple[str, ...]) -> ProvedHeader:
        attempt = self._candidate.attempt

        def read() -> tuple[Manifest, bytes, list[tuple[Tree, list[Any] | None]]]:
            # From here on the root is read: nobody deletes the candidate, where the root can be written. Not earlier,
            # because making a lease durable takes longer than reading a small state from memory.
            self._lease = self._lease or lease.take(self._store, attempt, _LEASE)
            body = verify.read_manifest(self._store, attempt)
            if body.run_id != self._nearer.run_id:
                raise CheckpointError(f"it belongs to another run, {body.run}")
            extra = verify.read_extra(self._store, attempt, body.extra)
            if body.index is not None:
                # Not needed for the same topology; but a checkpoint that is damaged anywhere is not handed on.
                verify.read_extra(self._store, attempt, body.index)
            shared, own = extra_state.parts_of(extra, self._ranks.world)
            return body, shared, [(one.parts, None if one.location is None else list(one.location)) for one in own]

        found = self._all.prove(read if self._ranks.rank == 0 else lambda: None)
        body, shared = self._ranks.broadcast(found and found[:2])
        own, place = self._ranks.hand_out(found and found[2])

        def parse() -> Tree:
            digest.algorithm(body.digest)
            tree = {**json.loads(shared), **own}
            if place is not None:
                tree.update(
                    rank_extra_state.read(
                        self._store, attempt, self._ranks.rank, rank_extra_state.parse_location(place)
                    )
                )
            non_tensor_state.require_sound(tree)
            if self._ranks.rank >= body.world:
                # Two ranks with one stream of random numbers would be worse than a new stream.
                tree.pop("rng", None)
            return tree

        tree = self._all.prove(parse)
        # A copy outside the root is as good as the root's when it has the same digest.
        good = tuple(
            tier
            if tier == STORAGE
            or (body.world == self._ranks.world and self._held(rank, tier).root == body.shards[rank].root)
            else STORAGE
            for rank, tier in enumerate(tiers)
        )
        return ProvedHeader(body, good, body.world, body.plan, body.digest, tree)
