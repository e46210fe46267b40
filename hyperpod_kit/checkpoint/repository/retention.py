"""What is deleted, and in which order: a pure plan over facts, then its execution, which looks again before each step.

Never deleted: the newest valid checkpoint and whatever is newer than it (a save under way, or the only evidence of a
damage), what is pinned, what somebody reads, what could not be judged, what is not ours by its name, what lies behind
a link, and anything once the root is another run's. The manifest goes first: from then on the rest
is data of no checkpoint, whenever this is interrupted. The tombstone goes last.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository import catalog, identity, layout, lease, manifest, pins, tombstone, verify
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.policy import CheckpointFacts, Policy
from hyperpod_kit.checkpoint.repository.store.base import Store, Unsupported
from hyperpod_kit.errors import CheckpointError, RunIsOwned

VALID, DAMAGED, UNCOMMITTED, UNKNOWN = "valid", "damaged", "uncommitted", "unknown"
_READERS = 8


class Item(NamedTuple):
    """An attempt as retention sees it. `note`: why it is damaged or cannot be judged. `link`: where its directory
    leads to, when that is a link."""

    facts: CheckpointFacts
    state: str
    leased: bool = False
    note: str = ""
    link: str = ""


class RetentionPlan(NamedTuple):
    """(attempt, why) each, newest first."""

    keep: Tuple[Tuple[str, str], ...]
    delete: Tuple[Tuple[str, str], ...]


class Applied(NamedTuple):
    """What was deleted, and what was not: (attempt, why)."""

    deleted: Tuple[str, ...]
    left: Tuple[Tuple[str, str], ...]


def survey(store: Store, *, run_id: str = "", sound: Optional[Callable[[Store, str], bool]] = None) -> List[Item]:
    """All attempts, newest first, judged by their manifests and tombstones. Raises CheckpointError, OSError.

    With `run_id` the checkpoints of other runs are not judged. The newest that counts as valid is `sound` too: by
    default all its files are there with their sizes, no data read.
    """
    sound = sound or whole
    pinned, leased = pins.pinned(store), lease.held(store)
    entries = catalog.attempts(store)
    with ThreadPoolExecutor(1 if store.capabilities.local else _READERS) as pool:
        judged = list(pool.map(lambda entry: _judge(store, entry, run_id), entries))
    items: List[Item] = []
    for entry, (state, body, note) in zip(entries, judged):
        facts = CheckpointFacts(
            entry.attempt,
            entry.order,
            entry.name.step,
            manifest.seconds(body.time) if body else None,
            body.metrics if body else {},
            entry.attempt in pinned,
        )
        if state == VALID and not any(item.state == VALID for item in items) and not sound(store, entry.attempt):
            state, note = UNKNOWN, "not whole"
        items.append(Item(facts, state, entry.attempt in leased, note, store.linked(entry.attempt) or ""))
    return items


def _judge(store: Store, entry: catalog.AttemptEntry, run_id: str) -> Tuple[str, Optional[manifest.Manifest], str]:
    if not entry.committed:
        return UNCOMMITTED, None, ""
    try:
        data = store.read(f"{entry.attempt}/{layout.MANIFEST_FILE}")
        try:
            manifest.open_json(data, layout.MANIFEST_FILE)
        except CheckpointError as err:
            return DAMAGED, None, str(err)
        reason = tombstone.read(store, entry.attempt) if entry.marked else None
        if reason is not None:
            return DAMAGED, None, reason
        body = verify.parse_manifest(data, entry.attempt)
        if run_id not in ("", body.run_id):
            return UNKNOWN, None, f"of another run, {body.run!r} ({body.run_id})"
        return VALID, body, ""
    except (CheckpointError, OSError) as err:
        # Whole but not understood, or not readable now: another version or another day may judge it.
        return UNKNOWN, None, verify.reason_of(err)
    except Exception as err:  # of one checkpoint; the others are judged
        return UNKNOWN, None, verify.unforeseen(err)


def plan(items: Sequence[Item], policy: Policy) -> RetentionPlan:
    """What `policy` lets go of `items`, which are newest first."""
    valid = [item.facts for item in items if item.state == VALID]
    kept = policy.keeps(valid) if valid else set()
    keep: List[Tuple[str, str]] = []
    delete: List[Tuple[str, str]] = []
    for item in items:
        why = _protected(item, valid[0] if valid else None)
        if why is None and item.facts.attempt in kept:
            why = "kept by the policy"
        if why is not None:
            keep.append((item.facts.attempt, why))
        else:
            delete.append(
                (
                    item.facts.attempt,
                    {
                        VALID: "not kept by the policy",
                        DAMAGED: f"damaged: {item.note}",
                        UNCOMMITTED: "never committed, and newer starts have committed since",
                    }[item.state],
                )
            )
    return RetentionPlan(tuple(keep), tuple(delete))


def _protected(item: Item, newest: Optional[CheckpointFacts]) -> Optional[str]:
    """Why no policy may delete it."""
    if newest is None:
        return "nothing here is valid"
    if item.facts.attempt == newest.attempt:
        return "the newest valid one"
    if item.facts.order > newest.order:
        return "newer than the newest valid one"
    if item.link:
        return f"a symbolic link to {item.link}: nothing is deleted through a link"
    if item.facts.pinned:
        return "pinned"
    if item.leased:
        return "being read"
    if item.state == UNKNOWN:
        return f"cannot be judged: {item.note}"
    if item.state == UNCOMMITTED and item.facts.order[0] >= newest.order[0]:
        return "never committed, but of a start that may still do so"
    return None


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
    store: Store, planned: RetentionPlan, whose: Optional[identity.RunIdentity], *, now: Optional[float] = None
) -> Applied:
    """Delete what is planned, the oldest first, as long as the root is `whose` it was.

    A storage that does not let us delete is asked once: everything else is left with that reason. Raises OSError only
    where leases and pins cannot be listed.
    """
    left: Dict[str, str] = {}
    deleted: List[str] = []
    failpoint("retention.before")
    for attempt, _ in reversed(planned.delete):
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
    """Delete one attempt: its manifest, then its data, then its tombstone. Returns the names that are not ours; they
    stay, and so does the directory.

    Raises Unsupported, CheckpointError when its directory is a link, OSError.
    """
    if layout.parse_attempt(attempt) is None:
        raise ValueError(f"{attempt!r} is no attempt")
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


def run(store: Store, policy: Policy, whose: identity.RunIdentity) -> Applied:
    """Survey, plan, delete; then leases that have ended.

    Raises CheckpointError when the root is another run's, or cannot be judged, OSError where it cannot be listed.
    """
    identity.confirm(store, whose)
    done = apply(store, plan(survey(store, run_id=whose.run_id), policy), whose)
    if store.capabilities.delete:
        try:
            lease.sweep(store)
        except (CheckpointError, OSError) as err:
            return done._replace(left=(*done.left, (layout.LEASES, verify.reason_of(err))))
    return done
