"""What could be restored, newest first, and on which tiers each rank finds its shard of it."""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hyperpod_kit.checkpoint import values
from hyperpod_kit.checkpoint.agent import local, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.repository import commit_records, layout, rollbacks, selection, tombstone, verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_CHECKPOINT_ROOT, HPK_FRESH, HPK_RESUME_FROM, HPK_RESUME_MEMORY
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.slurm import undecided

MEMORY, LOCAL, STORAGE = "memory", "local", "storage"
TIERS = (MEMORY, LOCAL, STORAGE)
"""Cheapest first."""


@values.carried
@dataclass(frozen=True)
class HeldShard:
    """One rank's shard of a capture outside the root: what proves it, and what it is a part of."""

    tier: str
    attempt: str
    key: Key
    world: int
    plan: str
    root: str  # digest of the shard
    size: int


class ResumeFrom(NamedTuple):
    """What `job run` said. `first`: the newest attempt of the root that may be tried, beside what the job's attempt
    `own` has committed; without `near` only the root is looked at. `fresh`: without `job run`, a person wants to begin
    at step 0 where nothing can be restored. `undecided`: why nothing is restored, because nobody has said it who
    should have."""

    first: str | None = None
    near: bool = True
    own: str | None = None
    fresh: bool = False
    undecided: str = ""

    @classmethod
    def read(cls, env: Mapping[str, str], root: str) -> ResumeFrom:
        """From the environment of a rank that trains with the checkpoints of `root`."""
        first = env.get(HPK_RESUME_FROM) or None
        own = env.get(HPK_ATTEMPT) or None
        fresh = own is None and env.get(HPK_FRESH) == "1"
        own_root = env.get(HPK_CHECKPOINT_ROOT, "")
        is_jobs = bool(own_root) and os.path.realpath(own_root) == os.path.realpath(root)
        why = undecided.explain_undecided(env) if is_jobs and undecided.is_undecided(env) else ""
        return cls(None if first == "none" else first, env.get(HPK_RESUME_MEMORY) != "0", own, fresh, why)


NOTHING_TOLD = ResumeFrom()


def from_attempt(attempt: str, *, near: bool) -> ResumeFrom:
    """A program has named the checkpoint, which counts more than what `job run` said. `near`: also where it is nearer
    than the root."""
    return ResumeFrom(first=attempt, near=near)


@values.carried
@dataclass
class Candidate:
    """An attempt. `held[rank]` are the tiers besides the root on which that rank has its shard.

    `passed`: why it is passed over: a tombstone (it comes again when nothing else is left), or not every rank has it.
    `lost`: it has no manifest any more, and other records say that it was committed.
    """

    attempt: str
    name: layout.CheckpointId
    committed: bool
    held: list[dict[str, HeldShard]] = field(default_factory=list)
    passed: str = ""
    lost: bool = False

    @property
    def order(self) -> tuple[int, int, str]:
        """(epoch, seq), never the step; the nonce only makes the order total."""
        return (self.name.epoch, self.name.seq, self.name.nonce)

    @property
    def key(self) -> Key | None:
        """Of the capture in memory or on the local disk that this attempt was made from, on any rank."""
        return next((one.key for tiers in self.held for one in tiers.values()), None)


def sealed_pages(slots: Sequence[shm_slots.Slot], run_id: str, rank: int) -> list[Page]:
    """What this rank has sealed, of its slots in this node's shared memory."""
    pages = [slot.page for slot in slots]
    return [
        page
        for page in pages
        if page is not None
        and page.state == SlotState.SEALED
        and page.origin.run_id == run_id
        and page.origin.rank == rank
    ]


def attempt_of(page: Page) -> str:
    """The attempt that the agents make of a capture."""
    return page.checkpoint_id(page.origin.incarnation)


def of_page(page: Page) -> HeldShard:
    return HeldShard(
        MEMORY, attempt_of(page), page.key, page.origin.world, page.shard.plan, page.shard.root, page.shard.size
    )


def here(slots: Sequence[shm_slots.Slot], directory: str | None, run_id: str, rank: int) -> list[HeldShard]:
    """What this rank has besides the root: in its slots, and on the node's own disk (a disk that fails has nothing)."""
    found = [of_page(page) for page in sealed_pages(slots, run_id, rank)]
    if directory is not None:
        with contextlib.suppress(OSError):
            found += [
                HeldShard(
                    LOCAL,
                    part.checkpoint_id,
                    part.report.page.key,
                    part.report.page.origin.world,
                    part.report.page.shard.plan,
                    part.report.record.root,
                    part.report.record.size,
                )
                for part in local.list_parts(directory, shm_slots.run_hash(run_id), rank)
            ]
    return found


def outside(held: Sequence[Sequence[HeldShard]]) -> dict[str, list[dict[str, HeldShard]]]:
    """Attempt -> per rank, tier -> shard; from what every rank has."""
    found: dict[str, list[dict[str, HeldShard]]] = {}
    for rank, own in enumerate(held):
        for one in own:
            tiers = found.setdefault(one.attempt, [{} for _ in held])
            tiers[rank].setdefault(one.tier, one)
    return found


def agree_on_name(ranks: Ranks, attempt: str | None) -> None:
    """Raises CheckpointError, on all ranks, unless all of them name the same attempt, or none. A collective."""
    names = ranks.gather(attempt)
    if len(set(names)) > 1:
        other = next(rank for rank, name in enumerate(names) if name != names[0])
        raise CheckpointError(
            f"rank 0 restores {names[0] or 'the newest checkpoint'}, and rank {other} {names[other] or 'the newest'}",
            hint="give the same attempt on all ranks",
        )


def newest_first(
    ranks: Ranks, store: Store, held: Sequence[Sequence[HeldShard]], told: ResumeFrom, only: str | None = None
) -> Iterator[Candidate]:
    """Candidates, the same on all ranks, which step through them together. `only`: this attempt, and no other.

    A capture that is not committed counts when every rank has its shard of it, else it is `passed`. Raises
    CheckpointError when the root cannot be read, or does not have the attempt that was `told`, or nobody has told what
    this step was to be told, or ranks differ in `only`.
    """
    agree_on_name(ranks, only)
    candidates = _all_newest_first(ranks, store, held, told)
    yield from (one for one in candidates if only is None or one.attempt == only)


def _all_newest_first(
    ranks: Ranks, store: Store, held: Sequence[Sequence[HeldShard]], told: ResumeFrom
) -> Iterator[Candidate]:
    everywhere = outside(held)
    known = everywhere if told.near else {}
    listing: Iterator[Candidate] | None = _merged(store, known, told) if ranks.rank == 0 else None
    while True:
        found: Candidate | None = None
        problem: CheckpointError | None = None
        if listing is not None and told.undecided:
            problem = CheckpointError(told.undecided, hint=undecided.HINT)
        elif listing is not None:
            try:
                found = next(listing, None)
            except (OSError, CheckpointError) as err:
                problem = CheckpointError(
                    f"cannot list {store.url}: {verify.describe_failure(err)}",
                    hint=f"hyperpod-kit checkpoint ls {store.url}",
                )
        # Who has what is known to all, and may be long: rank 0 says whether it counts.
        counts = found is not None and bool(found.held)
        found, counts, problem = ranks.broadcast((replace(found, held=[]) if found else None, counts, problem))
        if problem is not None:
            raise problem
        if found is None:
            return
        yield replace(found, held=everywhere.get(found.attempt, [])) if counts else found


def _merged(store: Store, known: dict[str, list[dict[str, HeldShard]]], told: ResumeFrom) -> Iterator[Candidate]:
    """Rank 0's view: the listing of the root, and the captures that are nowhere else, in one order."""
    taken: set[str] = set()
    gone_back = rollbacks.read_records(store)

    def committed() -> Iterator[Candidate]:
        for number, entry in enumerate(selection.walk(store, first=told.first, attempt=told.own)):
            if number == 0 and told.first is None:
                for lost in selection.lost_before(store, entry.name):
                    name = layout.parse_checkpoint_id(lost.checkpoint_id)
                    assert name is not None
                    yield Candidate(lost.checkpoint_id, name, True, [], lost.reason, lost=True)
            why = tombstone.read(store, entry.attempt) if entry.marked else None
            if why is None:
                taken.add(entry.attempt)
            yield Candidate(
                entry.attempt,
                entry.name,
                True,
                known.get(entry.attempt, []),
                "" if why is None else f"marked as damaged: {why}",
            )

    def captured() -> Iterator[Candidate]:
        found = []
        for attempt, tiers in known.items():
            name = layout.parse_checkpoint_id(attempt)
            if name is not None:
                passed = rollbacks.reason_left(gone_back, name)
                if not passed:
                    passed = _incomplete(tiers)
                    if passed and told.first is not None and store.exists(f"{attempt}/{layout.MANIFEST_FILE}"):
                        passed = f"newer than {told.first}, which this run was told of, and not saved by this attempt"
                found.append(Candidate(attempt, name, False, tiers, passed))
        yield from sorted(found, key=lambda candidate: candidate.order, reverse=True)

    # At equal order the committed one comes first, so that it is known when its capture is passed over.
    passed = []
    for candidate in heapq.merge(committed(), captured(), key=lambda c: (c.order, c.committed), reverse=True):
        if candidate.committed or candidate.attempt not in taken:
            yield candidate
        if candidate.passed and candidate.committed and not candidate.lost:
            passed.append(replace(candidate, passed=""))
    # A tombstone may be wrong (bad memory in the machine that wrote it); it must not be what ends a run.
    yield from passed
    # That something was committed must be known, or the run would start from scratch; none of these is tried.
    known_commits = bool(taken or passed)
    for attempt, why in selection.left_on_purpose(store):
        name = layout.parse_checkpoint_id(attempt)
        if name is not None and attempt not in taken:
            known_commits = True
            yield Candidate(attempt, name, True, [], why)
    if not known_commits:
        yield from _lost(store)


def _lost(store: Store) -> Iterator[Candidate]:
    """What was committed and has no manifest any more: none of these is tried, and the run must not start from
    scratch."""
    nameless = layout.CheckpointId(0, 0, 0, "")
    for attempt, why in commit_records.reasons(selection.lost_commits(store)):
        yield Candidate(attempt, layout.parse_checkpoint_id(attempt) or nameless, True, [], why, lost=True)


def _incomplete(tiers: Sequence[dict[str, HeldShard]]) -> str:
    """Why a capture that was never committed cannot be put together from these parts; "" when it can."""
    world = next(one.world for parts in tiers for one in parts.values())
    if world != len(tiers):
        return f"never committed, and captured by {world} ranks: this run has {len(tiers)}"
    missing = [rank for rank, parts in enumerate(tiers) if not parts]
    return f"never committed, and gone or never whole on rank {missing[0]}" if missing else ""
