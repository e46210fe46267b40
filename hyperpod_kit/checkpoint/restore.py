"""Find the newest checkpoint that every rank can prove, and bring the live state to it.

For each candidate: its tree is proved, the state says which live tensors it fills, and every rank streams into them
what it needs, each chunk checked before it is handed on. A candidate counts when every rank has all of it; a rank's
error is a reason that all ranks hear of, and the next tier or the next candidate overwrites what was filled so far.
When the state does not fit, or its memory cannot be filled, no older candidate is tried: that is the program's error.
What does not fit is found before a live tensor is written to.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hyperpod_kit.checkpoint import candidates, codec, load, local_tiers, positions, replicate, stages
from hyperpod_kit.checkpoint.agent import assemble, replicas, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.held import plan_of as one_plan
from hyperpod_kit.checkpoint.agreement import Agreement
from hyperpod_kit.checkpoint.candidates import LOCAL, MEMORY, STORAGE, TIERS, Candidate, HeldShard, ResumeFrom
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp import reshard, slices
from hyperpod_kit.checkpoint.reason import Reason, Verdict
from hyperpod_kit.checkpoint.rejected import Rejected, mark
from hyperpod_kit.checkpoint.repository import digest, lease, verify
from hyperpod_kit.checkpoint.repository.manifest import Manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.results import Fresh, Restored
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.checkpoint.tensors import StateTensors
from hyperpod_kit.environment import HPK_RESUME_FROM, HPK_RESUME_MEMORY
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint, StorageUnreadable

Tree = dict[str, Any]

_LEASE = 3600.0
"""Seconds for which a checkpoint that is read is safe from retention."""


@dataclass(frozen=True)
class RestoreOutcome:
    """What was found, and the capture that it came from, which the agents are to keep."""

    got: Restored | Fresh
    keep: Key | None


@dataclass(frozen=True)
class _LocalTiers:
    """What this rank has besides the root."""

    run_id: str
    slots: Sequence[shm_slots.Slot]
    local: str | None
    threads: int


@dataclass(frozen=True)
class _Header:
    """The proved beginning of a candidate: where each rank takes its shard from, and its tree."""

    body: Manifest | None  # None: the candidate is not committed, or nothing of the root is needed
    tiers: tuple[str, ...]
    world: int
    plan: str
    algorithm: str
    tree: Tree


def restore(
    ranks: Ranks,
    store: Store,
    state: State,
    *,
    run_id: str,
    held: Sequence[Sequence[HeldShard]],
    slots: Sequence[shm_slots.Slot],
    threads: int = 1,
    local: str | None = None,
    told: ResumeFrom = candidates.NOTHING_TOLD,
) -> RestoreOutcome:
    """Bring `state` to the newest checkpoint that all ranks can prove. All ranks call it; all get the same.

    `held` is what each rank has besides the root (`candidates.here`), `slots` are this rank's slots, `threads`
    the cores that it may use, `local` is the directory of the node's own disk that the agents write to. Of `held` and
    `told` rank 0's word counts.
    Raises NoValidCheckpoint, DigestUnavailable, StorageUnreadable when the root does not give up the newest that it
    has, CheckpointError when the state does not fit or cannot be filled, or the root cannot be listed.
    """
    here = _LocalTiers(run_id, slots, local, threads)
    listing = candidates.newest_first(ranks, store, held, told)
    try:
        outcome = _restore(ranks, store, state, here, listing)
    except BaseException:
        state.withdraw()
        raise
    if isinstance(outcome.got, Fresh):
        state.withdraw()
    return outcome


def _restore(
    ranks: Ranks, store: Store, state: State, here: _LocalTiers, listing: Iterator[Candidate]
) -> RestoreOutcome:
    begin = time.monotonic()
    touched = False
    rejected: list[tuple[str, str]] = []
    committed = False
    for candidate in listing:
        committed = committed or candidate.committed
        if candidate.passed:
            rejected.append((candidate.attempt, candidate.passed))
            continue
        with contextlib.closing(_Run(ranks, store, state, here, candidate)) as run:
            found = run.walk(rejected)
        touched = touched or run.touched
        if found is not None:
            tier, size = found
            name = candidate.name
            return RestoreOutcome(
                Restored(
                    name.step,
                    name.epoch,
                    name.seq,
                    candidate.attempt,
                    tier,
                    time.monotonic() - begin,
                    size,
                    tuple(rejected),
                ),
                candidate.key,
            )
    if committed:
        raise NoValidCheckpoint(store.url, rejected)
    if rejected and any(ranks.gather(touched)):
        # Its first tensors were filled before the rest turned out bad: no state to begin from.
        why = "; ".join(f"{name}: {why}" for name, why in rejected)
        raise CheckpointError(
            "nothing was committed, and what was only in memory is damaged, which was seen after "
            f"some tensors were filled: {why}",
            hint=f"start again with {HPK_RESUME_MEMORY}=0, from the beginning",
        )
    stages.agree(ranks, state)
    return RestoreOutcome(Fresh(time.monotonic() - begin, tuple(rejected)), None)


class _Run:
    """One candidate, tried from its cheapest tiers to its dearest."""

    def __init__(self, ranks: Ranks, store: Store, state: State, nearer: _LocalTiers, candidate: Candidate) -> None:
        self._ranks = ranks
        self._store = store
        self._state = state
        self._nearer = nearer
        self._candidate = candidate
        self._all = Agreement(ranks, candidate.attempt)
        self._lease: lease.Lease | None = None
        self.touched = False  # whether a live tensor of this rank was written to
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

    def walk(self, rejected: list[tuple[str, str]]) -> tuple[str, int] | None:
        """(tier, bytes) when the state is that of this candidate. Reasons are added to `rejected`."""
        while all(self._left):
            tiers = tuple(next(tier for tier in TIERS if tier in left) for left in self._left)
            try:
                header = self._header(tiers)
                positions.agree(self._all, self._state.objects, header.tree)
                return "+".join(tier for tier in TIERS if tier in header.tiers), self._fill(header)
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

    def _header(self, tiers: tuple[str, ...]) -> _Header:
        """Everything but the tensors. Raises Rejected, DigestUnavailable."""
        if STORAGE not in tiers:
            header = self._header_outside(tiers)
            if header is not None:
                return header
        return self._header_of_root(tiers)

    def _header_outside(self, tiers: tuple[str, ...]) -> _Header | None:
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
            return tree, replicas.of_tree(tree)

        tree, alike = self._all.prove_and_tell(read)
        differ = replicas.difference(dict(enumerate(alike)))
        if differ is not None:
            # The agents refused it, or were killed before they could.
            raise Rejected(Reason(replicas.explain(differ)))
        plan = one_plan([self._held(rank, tier).plan for rank, tier in enumerate(tiers)])
        return _Header(None, tiers, first.world, plan, first.root.partition(":")[0], tree)

    def _header_of_root(self, tiers: tuple[str, ...]) -> _Header:
        attempt = self._candidate.attempt

        def read() -> tuple[Manifest, bytes]:
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
            return body, extra

        body, extra = self._ranks.broadcast(self._all.prove(read if self._ranks.rank == 0 else lambda: None))

        def parse() -> Tree:
            digest.algorithm(body.digest)
            tree = assemble.tree_of(extra, self._ranks.rank)
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
        return _Header(body, good, body.world, body.plan, body.digest, tree)

    # --- the tensors --------------------------------------------------------------------------------------------

    def _fill(self, header: _Header) -> int:
        """Bring the state to the candidate; how many bytes it has. Raises Rejected, CheckpointError."""
        # Reading needs no plan: it goes on while the state is walked.
        reading = load.Reading(self._own(header), self._nearer.threads) if header.world == self._ranks.world else None
        with contextlib.closing(reading) if reading is not None else contextlib.nullcontext():
            targets, same = self._targets(header, reading)
            if same and reading is not None:
                try:
                    loaded, size = self._same(header, targets, reading)
                finally:
                    self.touched = self.touched or reading.touched
        if not same or reading is None:
            if header.body is None:
                if not self._candidate.committed:
                    # It has no index, so only the same division among the ranks could read it.
                    raise Rejected(
                        Reason(
                            "it was captured with other tensors or another division among the ranks, "
                            "and never committed"
                        )
                    )
                header = self._header_of_root((STORAGE,) * self._ranks.world)
            loaded, size = self._other(header, targets)
        self._all.fit(lambda: self._state.adopt(header.tree, loaded))
        return size

    def _targets(self, header: _Header, reading: load.Reading | None) -> tuple[StateTensors, bool]:
        """(what the state wants filled, whether that is on every rank what it saved)."""

        def walk() -> tuple[StateTensors, str]:
            targets = self._state.targets(self._ranks, header.tree)
            if reading is not None:
                # The plan says nothing of what only this rank has.
                reading.check({piece.spec.name: piece for piece in targets.pieces})
            return targets, targets.plan

        targets, plans = self._all.fit_and_tell(walk)
        if len(set(plans)) > 1 and stages.agree(self._ranks, self._state):
            targets, plans = self._all.fit_and_tell(walk)
        return targets, one_plan(plans) == header.plan

    @contextlib.contextmanager
    def _own(self, header: _Header) -> Iterator[load.ProvedShard]:
        """This rank's own shard, where it is nearest. Raises DigestMismatch, CheckpointError, OSError."""
        nearer, rank = self._nearer, self._ranks.rank
        tier = header.tiers[rank]
        with contextlib.ExitStack() as stack:
            if tier == MEMORY:
                yield stack.enter_context(local_tiers.shard_in_memory(nearer.slots, self._held(rank, tier)))
            elif tier == LOCAL:
                yield stack.enter_context(
                    local_tiers.shard_on_disk(str(nearer.local), nearer.run_id, rank, self._held(rank, tier))
                )
            else:
                assert header.body is not None
                opened = stack.enter_context(reshard.opened(self._store, self._candidate.attempt, header.body))
                yield load.ProvedShard(opened.shard(rank))

    def _same(
        self, header: _Header, targets: StateTensors, reading: load.Reading
    ) -> tuple[Mapping[str, torch.Tensor], int]:
        """Saved by the same ranks: each streams its own shard and shares what others hold too."""
        pieces = {piece.spec.name: piece for piece in targets.pieces}

        def read() -> tuple[load.OwnShard, int]:
            own = reading.into(pieces)
            for piece in targets.pieces:
                if piece.replica[1] == 1 and piece.spec.name not in own.here:
                    raise CheckpointError(f"{piece.spec.name} is not in this rank's shard")
            return own, reading.size

        own, sizes = self._all.prove_and_tell(read)
        self._all.settle(replicate.replicate(self._ranks, targets.pieces, own.here, header.algorithm))
        return own.loaded, sum(sizes)

    def _other(self, header: _Header, targets: StateTensors) -> tuple[Mapping[str, torch.Tensor], int]:
        """Saved by other ranks or with another division: slices of tensors, wherever they lie."""
        assert header.body is not None
        with reshard.opened(self._store, self._candidate.attempt, header.body) as attempt:
            rows = reshard.rows_of(self._ranks, attempt)
            if isinstance(rows, Reason):
                raise Rejected(rows)
            self._all.fit(lambda: slices.check_fit(rows, targets.pieces))
            requests = slices.SliceRequests(rows)

            def want() -> dict[str, torch.Tensor]:
                for piece in targets.pieces:
                    spec = piece.spec
                    wanted = slices.TensorSlice(spec.name, spec.offsets or (0,) * len(spec.shape), spec.shape)
                    requests.add(wanted, piece.tensor)
                here = {piece.spec.name for piece in targets.pieces}.union(targets.absent)
                return {name: requests.add_whole(name) for name in set(codec.tensor_names(header.tree)) - here}

            loaded = self._all.prove(want)
            work = reshard.work_of(self._ranks, requests.freeze(header.body.chunk))
            problem = reshard.carry_out(self._ranks, attempt, work, requests)
            self.touched = self.touched or requests.touched
            if problem is not None and problem.verdict is Verdict.UNFILLED:
                raise self._all.unfit(problem.words)
            if problem is not None:
                raise Rejected(problem)
        return loaded, header.body.total_bytes
