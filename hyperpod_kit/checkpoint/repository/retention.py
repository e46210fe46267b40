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
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.policy import CheckpointFacts, Policy
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.read_back import Prover, ReadBack, ReadBackOutcome
from hyperpod_kit.checkpoint.repository.records import catalog, identity, lease, leftovers, pins, proofs, tombstone
from hyperpod_kit.checkpoint.repository.records.leftovers import Leftover
from hyperpod_kit.checkpoint.repository.store.base import Store, Unsupported
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import CheckpointError, RunIsOwned

VALID, DAMAGED, UNCOMMITTED, UNJUDGED = "valid", "damaged", "uncommitted", "unknown"
SAMPLE = 8
"""One deletion of so many has the newest checkpoint read back though an older one that stays was proved already."""

_READERS = 8
_NOTHING: FrozenSet[str] = frozenset()
UNPROVED = "no newer checkpoint that is kept has been read back yet"


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
    def is_valid_or_rebuildable(self) -> bool:
        """Whether a checkpoint is there, or could be made of what is."""
        return not self.marked and (self.state == VALID or self.leftover is Leftover.COMPLETE)


class RetentionPlan(NamedTuple):
    """(attempt, why) each, newest first."""

    keep: Tuple[Tuple[str, str], ...]
    delete: Tuple[Tuple[str, str], ...]


class Applied(NamedTuple):
    """What was deleted, and what was not: (attempt, why). `damaged`: what a read-back has found to be so."""

    deleted: Tuple[str, ...]
    remaining: Tuple[Tuple[str, str], ...]
    damaged: Tuple[Tuple[str, str], ...] = ()


def judge_all_checkpoints(
    store: Store, *, run_id: str = "", is_complete: Optional[Callable[[Store, str], bool]] = None
) -> List[Item]:
    """Return all checkpoints, newest first, judged by their manifests and tombstones. Raise CheckpointError,
    OSError.

    With `run_id` the checkpoints of other runs are not judged. The newest that counts as valid must satisfy
    `is_complete` too: by default all its files are there with their sizes, no data read. The newest that
    counts as proved has all its files as well.
    """
    from concurrent.futures import ThreadPoolExecutor  # not at the start of each program: it brings logging

    is_complete = is_complete or has_all_files
    pinned, leased, proved = (
        pins.pinned_checkpoints(store),
        lease.leased_checkpoints(store),
        proofs.proved_checkpoints(store),
    )
    entries = catalog.list_checkpoints(store)
    with ThreadPoolExecutor(1 if store.capabilities.local else _READERS) as pool:
        judged = list(pool.map(lambda entry: _judge(store, entry, run_id), entries))
    items: List[Item] = []
    for entry, (state, body, note, marked) in zip(entries, judged):
        facts = CheckpointFacts(
            entry.checkpoint_id,
            entry.order,
            entry.name.step,
            manifest.parse_time(body.time) if body else None,
            body.metrics if body else {},
            entry.checkpoint_id in pinned,
        )
        newer_valid = [item for item in items if item.state == VALID]
        if state == VALID and not newer_valid and not is_complete(store, entry.checkpoint_id):
            state, note = UNJUDGED, "not whole"
        item = Item(
            facts,
            state,
            entry.checkpoint_id in leased,
            note,
            store.link_target(entry.checkpoint_id) or "",
            marked=marked,
            line=(body.line or 0) if body else 0,
        )
        if state == VALID and entry.checkpoint_id in proved:
            is_proved = (
                any(newer.proved for newer in newer_valid)
                or not newer_valid
                or has_all_files(store, entry.checkpoint_id)
            )
            item = item._replace(proved=is_proved)
        elif state == UNCOMMITTED and entry.checkpoint_id in proved:
            item = item._replace(state=UNJUDGED, note="it was committed, but its manifest is gone")
        elif newer_valid and state in (UNCOMMITTED, DAMAGED) and not marked:
            item = _judge_leftover(store, item, run_id)
        items.append(item)
    return items


class _Judged(NamedTuple):
    """What a manifest and a tombstone say of an attempt. `marked`: the tombstone is why."""

    state: str
    body: Optional[manifest.Manifest] = None
    note: str = ""
    marked: bool = False


def _judge(store: Store, entry: catalog.CheckpointEntry, run_id: str) -> _Judged:
    if not entry.committed:
        return _Judged(UNCOMMITTED)
    try:
        data = store.read(f"{entry.checkpoint_id}/{layout.MANIFEST_FILE}")
        reason = None
        if entry.marked:
            reason = tombstone.read_damage_reason(store, entry.checkpoint_id)
        if reason is not None:
            return _Judged(DAMAGED, None, reason, True)
        try:
            manifest.parse_sealed_json(data, layout.MANIFEST_FILE)
        except CheckpointError as err:
            return _Judged(DAMAGED, None, str(err))
        body = verify.parse_manifest(data, entry.checkpoint_id)
        if run_id not in ("", body.run_id):
            return _Judged(UNJUDGED, None, f"of another run, {body.run!r} ({body.run_id})")
        return _Judged(VALID, body)
    except (CheckpointError, OSError) as err:
        # Whole but not understood, or not readable now: another version or another day may judge it.
        return _Judged(UNJUDGED, None, verify.describe_failure(err))
    except Exception as err:  # of one checkpoint; the others are judged
        return _Judged(UNJUDGED, None, verify.describe_unforeseen(err))


def _judge_leftover(store: Store, item: Item, run_id: str) -> Item:
    """Return the item with its leftover files classified: what lies there without a manifest that counts."""
    try:
        leftover = leftovers.classify_leftover(store, item.facts.checkpoint_id, run_id)
    except (CheckpointError, OSError) as err:
        return item._replace(state=UNJUDGED, note=verify.describe_failure(err))
    if leftover is Leftover.FOREIGN:
        return item._replace(state=UNJUDGED, note=leftover.value)
    return item._replace(leftover=leftover)


def plan(
    items: Sequence[Item],
    policy: Policy,
    *,
    save_lacking_room: Optional[CheckpointFacts] = None,
    abandoned: FrozenSet[str] = _NOTHING,
) -> RetentionPlan:
    """Return which of `items`, which are newest first, `policy` keeps and which are to be deleted.

    `save_lacking_room`: a checkpoint that is being saved and has no room: what the policy would drop together
    with it goes, and what is known to be damaged even where it is the newest. `abandoned`: attempts of this
    start whose saves came to nothing.
    """
    valid = [item for item in items if item.state == VALID]
    newest = None
    if valid:
        newest = valid[0]
    if newest is not None:
        line = newest.line
    else:
        line = 0
    current_line = [item.facts for item in valid if item.facts.order[0] >= line]
    if current_line:
        kept = policy.keeps([*([save_lacking_room] if save_lacking_room is not None else []), *current_line])
    else:
        kept = set()
    keep: List[Tuple[str, str]] = []
    delete: List[Tuple[str, str]] = []
    for item in items:
        checkpoint_id = item.facts.checkpoint_id
        if checkpoint_id in abandoned and item.state == UNCOMMITTED and not (item.link or item.leased):
            delete.append((checkpoint_id, "its save failed"))
            continue
        reason = _protection_reason(item, newest, line, needs_room=save_lacking_room is not None)
        if reason is None and checkpoint_id in kept:
            reason = "kept by the policy"
        if reason is not None:
            keep.append((checkpoint_id, reason))
        else:
            delete.append(
                (
                    checkpoint_id,
                    {
                        VALID: "not kept by the policy",
                        DAMAGED: f"damaged: {item.note}",
                        UNCOMMITTED: "never committed, and newer starts have committed since",
                    }[item.state],
                )
            )
    return RetentionPlan(tuple(keep), tuple(delete))


def _protection_reason(
    item: Item, newest: Optional[Item], lineage_start_epoch: int, *, needs_room: bool
) -> Optional[str]:
    """Return why no policy may delete the item; None when one may."""
    if newest is None:
        return "no checkpoint is valid"
    if item.facts.checkpoint_id == newest.facts.checkpoint_id:
        return "the newest valid one"
    if item.facts.order > newest.facts.order and not (needs_room and item.marked):
        return "newer than the newest valid one"
    if item.link:
        return f"a symbolic link to {item.link}: nothing is deleted through a link"
    if item.facts.pinned:
        return "pinned"
    if item.leased:
        return "being read"
    if item.state == UNJUDGED:
        return f"cannot be judged: {item.note}"
    if item.state == UNCOMMITTED and item.facts.order[0] >= newest.facts.order[0]:
        return "never committed, but its start may still commit it"
    if item.facts.order[0] < lineage_start_epoch and item.is_valid_or_rebuildable:
        return "of an earlier line of this run, from which this start does not continue"
    return None


def deletions_without_newer_proof(items: Sequence[Item], planned: RetentionPlan) -> List[Item]:
    """Return, of what is to be deleted, the items that are valid or rebuildable and newer than every proved
    checkpoint that stays."""
    going = {checkpoint_id for checkpoint_id, _ in planned.delete}
    proved = [
        item.facts.order for item in items if _is_valid_and_proved(item) and item.facts.checkpoint_id not in going
    ]
    newest = max(proved, default=None)
    return [
        item
        for item in items
        if item.facts.checkpoint_id in going
        and item.is_valid_or_rebuildable
        and (newest is None or item.facts.order > newest)
    ]


def _is_valid_and_proved(item: Item) -> bool:
    return item.state == VALID and item.proved


def next_to_prove(items: Sequence[Item], planned: RetentionPlan) -> Optional[str]:
    """The checkpoint to read back before anything of this plan is deleted; None when nothing needs to be.

    It is the newest valid one: it stays, and no other will for as long.
    """
    newest = next((item for item in items if item.state == VALID), None)
    if newest is None or newest.proved or not planned.delete:
        return None
    if deletions_without_newer_proof(items, planned) or any(
        _is_deletion_sampled_for_proof(checkpoint_id) for checkpoint_id, _ in planned.delete
    ):
        return newest.facts.checkpoint_id
    return None


def _is_deletion_sampled_for_proof(checkpoint_id: str) -> bool:
    """Return whether the deletion of this checkpoint is one of the sample; decided by its name, so that every
    call gives the same result."""
    return zlib.crc32(checkpoint_id.encode()) % SAMPLE == 0


def items_with_read_back_finding(items: Sequence[Item], checkpoint_id: str, finding: ReadBack) -> List[Item]:
    """Return `items` with the outcome of the read-back of that checkpoint applied."""
    changes: Dict[ReadBackOutcome, Dict[str, Any]] = {
        ReadBackOutcome.PROVED: {"proved": True},
        ReadBackOutcome.DAMAGED: {"state": DAMAGED, "note": finding.reason, "proved": False, "marked": True},
        ReadBackOutcome.DOUBTFUL: {"state": UNJUDGED, "note": finding.reason, "proved": False},
        ReadBackOutcome.GIVEN_UP: {},
    }
    return [
        item._replace(**changes[finding.outcome]) if item.facts.checkpoint_id == checkpoint_id else item
        for item in items
    ]


def plan_keeping_items(planned: RetentionPlan, items: Sequence[Item], reason: str) -> RetentionPlan:
    """Return the plan with `items` kept after all, for `reason`."""
    names = {item.facts.checkpoint_id for item in items}
    keep = [*planned.keep, *((checkpoint_id, reason) for checkpoint_id, _ in planned.delete if checkpoint_id in names)]
    return RetentionPlan(
        tuple(sorted(keep, key=_sort_key_of_pair, reverse=True)),
        tuple(pair for pair in planned.delete if pair[0] not in names),
    )


def _sort_key_of_pair(pair: Tuple[str, str]) -> Tuple[int, int, str]:
    name = layout.parse_checkpoint_id(pair[0])
    if name is not None:
        return catalog.sort_key(name)
    return (0, 0, "")


def order_worthless_deleted_first(planned: RetentionPlan, items: Sequence[Item]) -> RetentionPlan:
    """Return the plan for a caller that deletes no more than it needs room for: at its end, where deleting
    begins, lies what no checkpoint could be made of."""
    worth = {item.facts.checkpoint_id for item in items if item.is_valid_or_rebuildable}
    return planned._replace(delete=tuple(sorted(planned.delete, key=lambda pair: pair[0] not in worth)))


class Assured(NamedTuple):
    """A plan of which nothing is the last proved one. `items`: with what was found by then. `damaged`: what was found
    to be so, with the reason."""

    planned: RetentionPlan
    items: Sequence[Item]
    damaged: Tuple[Tuple[str, str], ...]


def prove_and_plan(
    items: Sequence[Item],
    prover: Prover,
    policy: Policy,
    *,
    save_lacking_room: Optional[CheckpointFacts] = None,
    abandoned: FrozenSet[str] = _NOTHING,
) -> Assured:
    """Return a `plan` after reading checkpoints back until a proved one stays that is newer than all that are
    deleted.

    One that is found to be damaged does not count from then on: the policy keeps an older one in its place.
    Where a read-back was given up, what it was needed for stays.
    """
    proved_ids = prover.proved_checkpoints()
    items = [item._replace(proved=item.proved or item.facts.checkpoint_id in proved_ids) for item in items]
    damaged: List[Tuple[str, str]] = []
    while True:
        planned = plan(items, policy, save_lacking_room=save_lacking_room, abandoned=abandoned)
        checkpoint_id = next_to_prove(items, planned)
        if checkpoint_id is None:
            return Assured(planned, items, tuple(damaged))
        finding = prover.read_back_and_record(checkpoint_id)
        if finding.outcome is ReadBackOutcome.GIVEN_UP:
            return Assured(
                plan_keeping_items(planned, deletions_without_newer_proof(items, planned), UNPROVED),
                items,
                tuple(damaged),
            )
        if finding.outcome is not ReadBackOutcome.PROVED:
            damaged.append((checkpoint_id, finding.reason))
        items = items_with_read_back_finding(items, checkpoint_id, finding)


def has_all_files(store: Store, checkpoint_id: str) -> bool:
    """Whether all files of a checkpoint are there with their sizes. Reads the manifest, opens nothing else."""
    try:
        body = verify.read_manifest(store, checkpoint_id)
        records = [body.extra, *([body.index] if body.index else []), *body.shards]
        sizes = store.sizes(checkpoint_id)
        return all(sizes.get(record.file) == record.size for record in records)
    except (CheckpointError, OSError):
        return False


def delete_planned(
    store: Store,
    planned: RetentionPlan,
    run_identity: Optional[identity.RunIdentity],
    *,
    now: Optional[lease.Moment] = None,
    max_deletions: Optional[int] = None,
) -> Applied:
    """Delete what is planned, the oldest first, as long as the root is that of `run_identity`; at most
    `max_deletions`. What has been pinned or leased since stays.

    After a storage has refused to delete once, everything else stays with that reason. Raise OSError only
    where leases and pins cannot be listed.
    """
    remaining: Dict[str, str] = {}
    deleted: List[str] = []
    failpoint("retention.before")
    for checkpoint_id, _ in reversed(planned.delete):
        if max_deletions is not None and len(deleted) >= max_deletions:
            break
        try:
            # Somebody may have begun to read it, or pinned it, since the plan was made.
            if checkpoint_id in pins.pinned_checkpoints(store) or checkpoint_id in lease.leased_checkpoints(
                store, now=now
            ):
                remaining[checkpoint_id] = "pinned or being read"
                continue
            if run_identity is not None:
                identity.require_run_identity(store, run_identity)
            foreign_files = delete_checkpoint_except_foreign_files(store, checkpoint_id)
            if foreign_files:
                remaining[checkpoint_id] = (
                    f"not deleted, because no checkpoint has such files: {', '.join(foreign_files)}"
                )
            else:
                deleted.append(checkpoint_id)
        except (Unsupported, RunIsOwned) as err:
            remaining.update(
                {name: str(err) for name, _ in planned.delete if name not in deleted and name not in remaining}
            )
            break
        except (CheckpointError, OSError) as err:
            remaining[checkpoint_id] = verify.describe_failure(err)
    failpoint("retention.done")
    return Applied(tuple(deleted), tuple(remaining.items()))


def delete_checkpoint_except_foreign_files(store: Store, checkpoint_id: str) -> List[str]:
    """Delete one checkpoint: its proof, its manifest, then its data, then its tombstone. Return the names of
    files that are not the kit's; they stay, and so does the directory.

    The proof goes first: one of an attempt without a manifest says that somebody else took that away.

    Raise Unsupported, CheckpointError when its directory is a link, OSError.
    """
    if layout.parse_checkpoint_id(checkpoint_id) is None:
        raise ValueError(f"{checkpoint_id!r} is not an attempt")
    proofs.delete_proof(store, checkpoint_id)
    store.delete(f"{checkpoint_id}/{layout.MANIFEST_FILE}")
    failpoint("retention.manifest_deleted")
    present_names = store.list(checkpoint_id)
    kit_files = [f"{checkpoint_id}/{name}" for name in present_names if layout.is_kit_checkpoint_file(name)]
    store.delete_all(kit_files)
    failpoint("retention.files_deleted")
    # NFS keeps a deleted file under such a name while somebody has it open.
    foreign_files = [
        name for name in present_names if not layout.is_kit_checkpoint_file(name) and not name.startswith(".nfs")
    ]
    if not foreign_files:
        store.delete(f"{checkpoint_id}/")
    store.delete(layout.tombstone_file(checkpoint_id))
    return foreign_files


def enforce(
    store: Store,
    policy: Policy,
    run_identity: identity.RunIdentity,
    *,
    prover: Optional[Prover] = None,
    save_lacking_room: Optional[CheckpointFacts] = None,
    abandoned: FrozenSet[str] = _NOTHING,
) -> Applied:
    """Apply the policy to the root: judge, plan, prove what is needed and delete; then delete expired leases.
    See `plan`; with `save_lacking_room` only the oldest is deleted, and a caller that needs more room calls
    again.

    Raise CheckpointError when the root is another run's, or cannot be judged, OSError where it cannot be
    listed.
    """
    identity.require_run_identity(store, run_identity)
    prover = prover or Prover(store)
    items: Sequence[Item] = judge_all_checkpoints(store, run_id=run_identity.run_id)
    planned, items, damaged = prove_and_plan(
        items, prover, policy, save_lacking_room=save_lacking_room, abandoned=abandoned
    )
    if save_lacking_room is not None:
        planned = order_worthless_deleted_first(planned, items)
    applied = delete_planned(
        store, planned, run_identity, max_deletions=None if save_lacking_room is None else 1
    )._replace(damaged=damaged)
    prover.record_pending_proofs()
    if store.capabilities.delete:
        try:
            lease.remove_expired(store)
        except (CheckpointError, OSError) as err:
            return applied._replace(remaining=(*applied.remaining, (layout.LEASES, verify.describe_failure(err))))
    return applied
