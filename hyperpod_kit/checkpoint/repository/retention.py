"""What is deleted, and in which order: a pure plan over facts, then its execution, which looks again before each step.

Never deleted: the newest valid checkpoint and whatever is newer than it (a save under way, or the only evidence of a
damage), what is pinned, what somebody reads, what could not be judged, what is not ours by its name, what lies behind
a link, what another run or another beginning of this run has written, and anything once the root is another run's.

What a checkpoint could be made of is deleted only while a newer one stays that was *proved*: of which every byte was
read from storage, see `read_back`. Sizes alone prove nothing: a disk that drops a write says so to nobody.

The manifest goes first: from then on the rest is data of no checkpoint, whenever this is interrupted. The tombstone
goes last.
"""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository import (
    catalog,
    identity,
    layout,
    lease,
    leftovers,
    manifest,
    pins,
    proofs,
    tombstone,
    verify,
)
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.leftovers import Leftover
from hyperpod_kit.checkpoint.repository.policy import CheckpointFacts, Policy
from hyperpod_kit.checkpoint.repository.read_back import Prover, ReadBack, ReadBackOutcome
from hyperpod_kit.checkpoint.repository.store.base import Store, Unsupported
from hyperpod_kit.errors import CheckpointError, RunIsOwned

VALID, DAMAGED, UNCOMMITTED, UNKNOWN = "valid", "damaged", "uncommitted", "unknown"
SAMPLE = 8
"""One deletion of so many has the newest checkpoint read back though an older one that stays was proved already."""

_READERS = 8
_NOTHING: FrozenSet[str] = frozenset()
UNPROVED = "no newer checkpoint that stays was read back yet"


class Item(NamedTuple):
    """An attempt as retention sees it. `note`: why it is damaged or cannot be judged. `link`: where its directory
    leads to, when that is a link. `proved`: every byte was read from storage once. `marked`: its bytes were
    proved to be others than were committed. `line`: of a valid one, see Manifest. `leftover`: of one without a manifest
    that counts."""

    facts: CheckpointFacts
    state: str
    leased: bool = False
    note: str = ""
    link: str = ""
    proved: bool = False
    marked: bool = False
    line: int = 0
    leftover: Leftover = Leftover.PARTIAL

    @property
    def is_worth_something(self) -> bool:
        """Whether a checkpoint is there, or could be made of what is."""
        return not self.marked and (self.state == VALID or self.leftover is Leftover.WHOLE)


class RetentionPlan(NamedTuple):
    """(attempt, why) each, newest first."""

    keep: Tuple[Tuple[str, str], ...]
    delete: Tuple[Tuple[str, str], ...]


class Applied(NamedTuple):
    """What was deleted, and what was not: (attempt, why). `damaged`: what a read-back has found to be so."""

    deleted: Tuple[str, ...]
    left: Tuple[Tuple[str, str], ...]
    damaged: Tuple[Tuple[str, str], ...] = ()


def survey(store: Store, *, run_id: str = "", sound: Optional[Callable[[Store, str], bool]] = None) -> List[Item]:
    """All attempts, newest first, judged by their manifests and tombstones. Raises CheckpointError, OSError.

    With `run_id` the checkpoints of other runs are not judged. The newest that counts as valid is `sound` too: by
    default all its files are there with their sizes, no data read. The newest that counts as proved is whole as well.
    """
    sound = sound or whole
    pinned, leased, proved = pins.pinned(store), lease.held(store), proofs.recorded(store)
    entries = catalog.attempts(store)
    with ThreadPoolExecutor(1 if store.capabilities.local else _READERS) as pool:
        judged = list(pool.map(lambda entry: _judge(store, entry, run_id), entries))
    items: List[Item] = []
    for entry, (state, body, note, marked) in zip(entries, judged):
        facts = CheckpointFacts(
            entry.attempt,
            entry.order,
            entry.name.step,
            manifest.seconds(body.time) if body else None,
            body.metrics if body else {},
            entry.attempt in pinned,
        )
        above = [item for item in items if item.state == VALID]
        if state == VALID and not above and not sound(store, entry.attempt):
            state, note = UNKNOWN, "not whole"
        item = Item(
            facts,
            state,
            entry.attempt in leased,
            note,
            store.linked(entry.attempt) or "",
            marked=marked,
            line=(body.line or 0) if body else 0,
        )
        if state == VALID and entry.attempt in proved:
            known = any(one.proved for one in above) or not above or whole(store, entry.attempt)
            item = item._replace(proved=known)
        elif state == UNCOMMITTED and entry.attempt in proved:
            item = item._replace(state=UNKNOWN, note="it was committed, and its manifest is gone")
        elif above and state in (UNCOMMITTED, DAMAGED) and not marked:
            item = _looked_at(store, item, run_id)
        items.append(item)
    return items


class _Judged(NamedTuple):
    """What a manifest and a tombstone say of an attempt. `marked`: the tombstone is why."""

    state: str
    body: Optional[manifest.Manifest] = None
    note: str = ""
    marked: bool = False


def _judge(store: Store, entry: catalog.AttemptEntry, run_id: str) -> _Judged:
    if not entry.committed:
        return _Judged(UNCOMMITTED)
    try:
        data = store.read(f"{entry.attempt}/{layout.MANIFEST_FILE}")
        reason = tombstone.read(store, entry.attempt) if entry.marked else None
        if reason is not None:
            return _Judged(DAMAGED, None, reason, True)
        try:
            manifest.open_json(data, layout.MANIFEST_FILE)
        except CheckpointError as err:
            return _Judged(DAMAGED, None, str(err))
        body = verify.parse_manifest(data, entry.attempt)
        if run_id not in ("", body.run_id):
            return _Judged(UNKNOWN, None, f"of another run, {body.run!r} ({body.run_id})")
        return _Judged(VALID, body)
    except (CheckpointError, OSError) as err:
        # Whole but not understood, or not readable now: another version or another day may judge it.
        return _Judged(UNKNOWN, None, verify.reason_of(err))
    except Exception as err:  # of one checkpoint; the others are judged
        return _Judged(UNKNOWN, None, verify.unforeseen(err))


def _looked_at(store: Store, item: Item, run_id: str) -> Item:
    """With what lies there without a manifest that counts."""
    try:
        found = leftovers.judge(store, item.facts.attempt, run_id)
    except (CheckpointError, OSError) as err:
        return item._replace(state=UNKNOWN, note=verify.reason_of(err))
    if found is Leftover.FOREIGN:
        return item._replace(state=UNKNOWN, note=found.value)
    return item._replace(leftover=found)


def plan(
    items: Sequence[Item],
    policy: Policy,
    *,
    coming: Optional[CheckpointFacts] = None,
    abandoned: FrozenSet[str] = _NOTHING,
) -> RetentionPlan:
    """What `policy` lets go of `items`, which are newest first.

    `coming`: a checkpoint that is being saved and has no room: what the policy would let go with it goes, and what is
    known to be damaged even where it is the newest. `abandoned`: attempts of this start whose saves came to nothing.
    """
    valid = [item for item in items if item.state == VALID]
    newest = valid[0] if valid else None
    line = newest.line if newest is not None else 0
    own = [item.facts for item in valid if item.facts.order[0] >= line]
    kept = policy.keeps([*([coming] if coming is not None else []), *own]) if own else set()
    keep: List[Tuple[str, str]] = []
    delete: List[Tuple[str, str]] = []
    for item in items:
        attempt = item.facts.attempt
        if attempt in abandoned and item.state == UNCOMMITTED and not (item.link or item.leased):
            delete.append((attempt, "its save came to nothing"))
            continue
        why = _protected(item, newest, line, in_need=coming is not None)
        if why is None and attempt in kept:
            why = "kept by the policy"
        if why is not None:
            keep.append((attempt, why))
        else:
            delete.append(
                (
                    attempt,
                    {
                        VALID: "not kept by the policy",
                        DAMAGED: f"damaged: {item.note}",
                        UNCOMMITTED: "never committed, and newer starts have committed since",
                    }[item.state],
                )
            )
    return RetentionPlan(tuple(keep), tuple(delete))


def _protected(item: Item, newest: Optional[Item], line: int, *, in_need: bool) -> Optional[str]:
    """Why no policy may delete it."""
    if newest is None:
        return "nothing here is valid"
    if item.facts.attempt == newest.facts.attempt:
        return "the newest valid one"
    if item.facts.order > newest.facts.order and not (in_need and item.marked):
        return "newer than the newest valid one"
    if item.link:
        return f"a symbolic link to {item.link}: nothing is deleted through a link"
    if item.facts.pinned:
        return "pinned"
    if item.leased:
        return "being read"
    if item.state == UNKNOWN:
        return f"cannot be judged: {item.note}"
    if item.state == UNCOMMITTED and item.facts.order[0] >= newest.facts.order[0]:
        return "never committed, but of a start that may still do so"
    if item.facts.order[0] < line and item.is_worth_something:
        return "of an earlier beginning of this run, from which this one does not descend"
    return None


def unassured(items: Sequence[Item], planned: RetentionPlan) -> List[Item]:
    """Of what is to be deleted, what is worth something and newer than every proved checkpoint that stays."""
    going = {attempt for attempt, _ in planned.delete}
    proved = [item.facts.order for item in items if _assures(item) and item.facts.attempt not in going]
    newest = max(proved, default=None)
    return [
        item
        for item in items
        if item.facts.attempt in going and item.is_worth_something and (newest is None or item.facts.order > newest)
    ]


def _assures(item: Item) -> bool:
    return item.state == VALID and item.proved


def next_to_prove(items: Sequence[Item], planned: RetentionPlan) -> Optional[str]:
    """The checkpoint to read back before anything of this plan is deleted; None when nothing needs to be.

    It is the newest valid one: it stays, and no other will for as long.
    """
    newest = next((item for item in items if item.state == VALID), None)
    if newest is None or newest.proved or not planned.delete:
        return None
    if unassured(items, planned) or any(_is_sampled(attempt) for attempt, _ in planned.delete):
        return newest.facts.attempt
    return None


def _is_sampled(attempt: str) -> bool:
    """By the name, so that whoever asks again gets the same answer."""
    return zlib.crc32(attempt.encode()) % SAMPLE == 0


def with_finding(items: Sequence[Item], attempt: str, finding: ReadBack) -> List[Item]:
    """`items`, after that one was read back."""
    changes: Dict[ReadBackOutcome, Dict[str, Any]] = {
        ReadBackOutcome.PROVED: {"proved": True},
        ReadBackOutcome.DAMAGED: {"state": DAMAGED, "note": finding.reason, "proved": False, "marked": True},
        ReadBackOutcome.DOUBTFUL: {"state": UNKNOWN, "note": finding.reason, "proved": False},
        ReadBackOutcome.GIVEN_UP: {},
    }
    return [item._replace(**changes[finding.outcome]) if item.facts.attempt == attempt else item for item in items]


def without(planned: RetentionPlan, items: Sequence[Item], why: str) -> RetentionPlan:
    """The plan with `items` kept after all."""
    names = {item.facts.attempt for item in items}
    keep = [*planned.keep, *((attempt, why) for attempt, _ in planned.delete if attempt in names)]
    return RetentionPlan(
        tuple(sorted(keep, key=_order_of, reverse=True)),
        tuple(pair for pair in planned.delete if pair[0] not in names),
    )


def _order_of(pair: Tuple[str, str]) -> Tuple[int, int, str]:
    name = layout.parse_attempt(pair[0])
    return catalog.order(name) if name is not None else (0, 0, "")


def worthless_first(planned: RetentionPlan, items: Sequence[Item]) -> RetentionPlan:
    """The plan for who deletes no more than there must be room for: at its end, where deleting begins, lies what no
    checkpoint could be made of."""
    worth = {item.facts.attempt for item in items if item.is_worth_something}
    return planned._replace(delete=tuple(sorted(planned.delete, key=lambda pair: pair[0] not in worth)))


class Assured(NamedTuple):
    """A plan of which nothing is the last proved one. `items`: with what was found by then. `damaged`: what was found
    to be so, with the reason."""

    planned: RetentionPlan
    items: Sequence[Item]
    damaged: Tuple[Tuple[str, str], ...]


def assured(
    items: Sequence[Item],
    prover: Prover,
    policy: Policy,
    *,
    coming: Optional[CheckpointFacts] = None,
    abandoned: FrozenSet[str] = _NOTHING,
) -> Assured:
    """`plan`, with checkpoints read back until a proved one stays that is newer than all that goes.

    One that is found to be damaged does not count from then on: the policy keeps an older one in its place. What a
    read-back that was given up was for stays.
    """
    known = prover.proved()
    items = [item._replace(proved=item.proved or item.facts.attempt in known) for item in items]
    damaged: List[Tuple[str, str]] = []
    while True:
        planned = plan(items, policy, coming=coming, abandoned=abandoned)
        attempt = next_to_prove(items, planned)
        if attempt is None:
            return Assured(planned, items, tuple(damaged))
        finding = prover.prove(attempt)
        if finding.outcome is ReadBackOutcome.GIVEN_UP:
            return Assured(without(planned, unassured(items, planned), UNPROVED), items, tuple(damaged))
        if finding.outcome is not ReadBackOutcome.PROVED:
            damaged.append((attempt, finding.reason))
        items = with_finding(items, attempt, finding)


def whole(store: Store, attempt: str) -> bool:
    """Whether all files of a checkpoint are there with their sizes. Reads the manifest, opens nothing else."""
    try:
        body = verify.read_manifest(store, attempt)
        records = [body.extra, *([body.index] if body.index else []), *body.shards]
        sizes = store.sizes(attempt)
        return all(sizes.get(record.file) == record.size for record in records)
    except (CheckpointError, OSError):
        return False


def apply(
    store: Store,
    planned: RetentionPlan,
    whose: Optional[identity.RunIdentity],
    *,
    now: Optional[lease.Moment] = None,
    most: Optional[int] = None,
) -> Applied:
    """Delete what is planned, the oldest first, as long as the root is `whose` it was; `most`: so many of them.

    A storage that does not let us delete is asked once: everything else is left with that reason. Raises OSError only
    where leases and pins cannot be listed.
    """
    left: Dict[str, str] = {}
    deleted: List[str] = []
    failpoint("retention.before")
    for attempt, _ in reversed(planned.delete):
        if most is not None and len(deleted) >= most:
            break
        try:
            # Somebody may have begun to read it, or pinned it, since the plan was made.
            if attempt in pins.pinned(store) or attempt in lease.held(store, now=now):
                left[attempt] = "pinned or being read"
                continue
            if whose is not None:
                identity.confirm(store, whose)
            strange = remove(store, attempt)
            if strange:
                left[attempt] = f"not deleted, because no checkpoint has such files: {', '.join(strange)}"
            else:
                deleted.append(attempt)
        except (Unsupported, RunIsOwned) as err:
            left.update({name: str(err) for name, _ in planned.delete if name not in deleted and name not in left})
            break
        except (CheckpointError, OSError) as err:
            left[attempt] = verify.reason_of(err)
    failpoint("retention.done")
    return Applied(tuple(deleted), tuple(left.items()))


def remove(store: Store, attempt: str) -> List[str]:
    """Delete one attempt: its proof, its manifest, then its data, then its tombstone. Returns the names that are not
    ours; they stay, and so does the directory.

    The proof goes first: one of an attempt without a manifest says that somebody else took that away.

    Raises Unsupported, CheckpointError when its directory is a link, OSError.
    """
    if layout.parse_attempt(attempt) is None:
        raise ValueError(f"{attempt!r} is no attempt")
    proofs.forget(store, attempt)
    store.delete(f"{attempt}/{layout.MANIFEST_FILE}")
    failpoint("retention.manifest_deleted")
    there = store.list(attempt)
    ours = [f"{attempt}/{name}" for name in there if layout.is_ours(name)]
    store.delete_all(ours)
    failpoint("retention.files_deleted")
    # NFS keeps a deleted file under such a name while somebody has it open.
    strange = [name for name in there if not layout.is_ours(name) and not name.startswith(".nfs")]
    if not strange:
        store.delete(f"{attempt}/")
    store.delete(layout.tombstone_file(attempt))
    return strange


def run(
    store: Store,
    policy: Policy,
    whose: identity.RunIdentity,
    *,
    prover: Optional[Prover] = None,
    coming: Optional[CheckpointFacts] = None,
    abandoned: FrozenSet[str] = _NOTHING,
) -> Applied:
    """Survey, plan, prove what is needed, delete; then leases that have ended. See `plan`; with `coming` only the
    oldest goes, and whoever needs more room asks again.

    Raises CheckpointError when the root is another run's, or cannot be judged, OSError where it cannot be listed.
    """
    identity.confirm(store, whose)
    prover = prover or Prover(store)
    items: Sequence[Item] = survey(store, run_id=whose.run_id)
    planned, items, damaged = assured(items, prover, policy, coming=coming, abandoned=abandoned)
    if coming is not None:
        planned = worthless_first(planned, items)
    done = apply(store, planned, whose, most=None if coming is None else 1)._replace(damaged=damaged)
    prover.record()
    if store.capabilities.delete:
        try:
            lease.sweep(store)
        except (CheckpointError, OSError) as err:
            return done._replace(left=(*done.left, (layout.LEASES, verify.reason_of(err))))
    return done
