"""Which checkpoint a run resumes from: the newest one of which every byte is proved.

Newest is by (epoch, seq): after a deliberate step back to step 100, the new step 110 is newer than the abandoned 200.

`newest_valid` and `newest_complete` are for tools and scripts; a restore steps through `walk` or `newest` with a check
of its own.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Generic, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, commit_records, latest, rollbacks, tombstone
from hyperpod_kit.checkpoint.repository.records.rollbacks import FreshStart
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.checkpoint.repository.store.retrying import without_read_retries
from hyperpod_kit.errors import (
    CheckpointError,
    DigestUnavailable,
    HyperpodKitError,
    NoCheckpoint,
    NoSuchCheckpoint,
    NoValidCheckpoint,
    StorageUnreadable,
)
from hyperpod_kit.renamed import renamed_fields

T = TypeVar("T")
_NOTHING: Mapping[str, str] = {}
_WALKS = 3
"""How often a walk that has listed no manifest is repeated where a job commits one at the same time."""


@renamed_fields(attempt="checkpoint_id")
class Selection(NamedTuple):
    """The newest valid checkpoint, and why newer ones were rejected.

    Attributes:
        checkpoint_id: The name of the checkpoint.
        epoch: The number of the run's start that saved it.
        seq: The number of the save over the whole life of the root.
        step: The last completed step.
        rejected: The name of every newer checkpoint, and the reason against it.
        unread: Those of them that could not be read from storage (an I/O error): they may be good, and readable later.
    """

    checkpoint_id: str
    epoch: int
    seq: int
    step: int
    rejected: Tuple[Tuple[str, str], ...]
    unread: Tuple[str, ...] = ()


def iter_committed_not_excluded_newest_first(
    store_or_root: StoreOrRoot, *, start_at: Optional[str] = None, also_saved_by_job_attempt: Optional[str] = None
) -> Iterator[catalog.CheckpointEntry]:
    """Yield the committed checkpoints, newest first; with `start_at`, that one and the older ones only.

    `saved_by_attempt` names a job's attempt: what it has committed itself is yielded too when it is newer
    than `start_at`, and `start_at` may be gone then (retention). HyperPod's step retry starts the ranks of an
    attempt again with the environment of its beginning, and so does torchrun with --max-restarts. What the
    job passed over stays passed over. What was left on purpose (`rollbacks`) is not among them, unless it is
    `start_at` itself. Each is looked up only when the iteration reaches it. Raise OSError; CheckpointError
    when `start_at` is not there.
    """
    store = as_store(store_or_root)
    rollback_records = rollbacks.read_active_records(store)
    if start_at is None:
        limit = None
    else:
        limit = layout.parse_checkpoint_id(start_at)
    has_passed_first = start_at is None
    for entry in catalog.iter_checkpoints_newest_first(store):
        if entry.checkpoint_id == start_at and not entry.committed:
            break
        if entry.checkpoint_id != start_at and rollbacks.exclusion_reason(rollback_records, entry.name):
            continue
        below = (
            start_at is None
            or entry.checkpoint_id == start_at
            or (has_passed_first and limit is not None and entry.order < catalog.sort_key(limit))
        )
        if entry.committed and (
            below
            or (
                also_saved_by_job_attempt is not None
                and saving_job_attempt(store, entry.checkpoint_id) == also_saved_by_job_attempt
            )
        ):
            has_passed_first = True
            yield entry
    if not has_passed_first:
        raise NoSuchCheckpoint(
            f"{start_at} is not a committed checkpoint below {store.url}",
            hint=f"hyperpod-kit checkpoint ls {store.url}",
        )


def saving_job_attempt(store_or_root: StoreOrRoot, checkpoint_id: str) -> Optional[str]:
    """Return the job's attempt (HPK_ATTEMPT) that saved a checkpoint; None when its manifest does not say, is
    damaged, or is another user's.

    Raise OSError when storage cannot read it: to treat it as a stranger's would leave what this very attempt
    has saved.
    """
    try:
        return verify.read_manifest(store_or_root, checkpoint_id).job.get("attempt")
    except (CheckpointError, FileNotFoundError, PermissionError):
        return None


def load_newest_accepted(
    store_or_root: StoreOrRoot,
    load: Callable[[str], T],
    tried_last_reasons: Mapping[str, str] = _NOTHING,
    *,
    skip_unreadable: bool = False,
) -> Tuple[T, Selection]:
    """Return what `load` makes of the newest checkpoint that it does not reject, and which one that is.

    `load` gets a checkpoint's name and rejects it with CheckpointError or OSError. What has a tombstone or is
    in `passed_over` (name -> why) comes last, when nothing else is left: a tombstone may be wrong (bad memory
    in the machine that wrote it), and must not be what ends a run. Raise NoCheckpoint when nothing was ever
    committed, NoValidCheckpoint when nothing of what was committed is there or can be trusted,
    DigestUnavailable when this interpreter cannot check the digests and StorageUnreadable when storage cannot
    read a checkpoint (both prove nothing against it, so they must not lead to an older one; with
    `skip_unreadable` they do, and the caller finds it in `Selection.unread`), OSError when the root cannot be
    read.
    """
    store = as_store(store_or_root)
    for _ in range(_WALKS):
        try:
            return _load_newest_of_one_walk(store, load, tried_last_reasons, skip_unreadable)
        except NoValidCheckpoint as err:
            if err.reasons or not _was_committed_meanwhile(store):
                raise no_checkpoint_error(store, err.reasons) from None
    raise no_checkpoint_error(store, ())


def _load_newest_of_one_walk(
    store: Store, load: Callable[[str], T], tried_last_reasons: Mapping[str, str], skip_unreadable: bool
) -> Tuple[T, Selection]:
    """Walk the checkpoints once, as `load_newest_accepted`. Raise NoValidCheckpoint with a reason for each
    candidate; with none where no manifest was listed."""
    walked = _Walk(store, load, skip_unreadable)
    marked: List[catalog.CheckpointEntry] = []
    for number, entry in enumerate(iter_committed_not_excluded_newest_first(store)):
        if number == 0:
            walked.rejected += [
                (lost.checkpoint_id, lost.reason) for lost in lost_commit_named_by_latest(store, entry.name)
            ]
        reason = tried_last_reasons.get(entry.checkpoint_id)
        damage = None
        if entry.marked and reason is None:
            damage = tombstone.read_damage_reason(store, entry.checkpoint_id)
        if damage is not None:
            reason = f"marked as damaged: {damage}"
        if reason is not None:
            marked.append(entry)
            walked.rejected.append((entry.checkpoint_id, reason))
        elif walked.try_load(entry.checkpoint_id):
            return walked.taken[0], walked.selection(entry)
    for entry in marked:
        earlier = list(walked.rejected)
        if walked.try_load(entry.checkpoint_id):
            return walked.taken[0], walked.selection(entry)
        walked.rejected = earlier
    raise NoValidCheckpoint(store.url, [*walked.rejected, *excluded_by_rollback(store)])


def _was_committed_meanwhile(store: Store) -> bool:
    """Return whether the records name a commit whose manifest exists although the walk before has listed no
    manifest: a running job has committed it since, and it is not lost."""
    return any(
        commit.checkpoint_id and store.exists(f"{commit.checkpoint_id}/{layout.MANIFEST_FILE}")
        for commit in lost_commits_assuming_no_manifests(store)
    )


def excluded_by_rollback(store: Store) -> List[Tuple[str, str]]:
    """Return the committed checkpoints that the run left by going back on purpose, and since when; not those
    that it left to begin anew, after which nothing was ever committed. Raise CheckpointError, OSError."""
    rollback_records = rollbacks.read_active_records(store)
    reasons: List[Tuple[str, str]] = []
    for entry in catalog.iter_checkpoints_newest_first(store) if rollback_records else ():
        record = None
        if entry.committed:
            record = rollbacks.find_excluding_record(rollback_records, entry.name)
        if record is not None and not isinstance(record, FreshStart):
            reasons.append((entry.checkpoint_id, f"left on purpose: {record.description}"))
    return reasons


def newest_valid(store_or_root: StoreOrRoot, passed_over: Mapping[str, str] = _NOTHING) -> Selection:
    """Find the newest checkpoint of which every byte is what was committed.

    It reads and compares all data of the checkpoints that it looks at. One with a tombstone comes last, when nothing
    else is left.

    Args:
        store_or_root: A directory, `s3://BUCKET/PREFIX`, or an open store.
        passed_over: The names of checkpoints to take only when nothing else is left, and why. Default: none.

    Returns:
        The checkpoint, and why newer ones were rejected; `unread` names those that could not be read.

    Raises:
        NoCheckpoint: Nothing was ever committed.
        NoValidCheckpoint: Checkpoints were committed, and none of them is there or can be trusted.
        DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
        CheckpointError: No region of S3 is known, or the root's records cannot be read.
        OSError: The root cannot be read.

    Example:
        With the `root` of a run that has saved:

            from hyperpod_kit.checkpoint import newest_valid

            checkpoint = newest_valid(root)
            print(checkpoint.step, checkpoint.checkpoint_id)
    """
    store = as_store(store_or_root)
    return load_newest_accepted(
        store, lambda checkpoint_id: verify.verify_checkpoint(store, checkpoint_id), passed_over, skip_unreadable=True
    )[1]


def newest_complete(store_or_root: StoreOrRoot, passed_over: Mapping[str, str] = _NOTHING) -> Selection:
    """Find the newest checkpoint whose manifest proves itself and whose files are all there, by their names.

    No data is read, so it costs the same at any size; the restore that follows proves every byte. One with a tombstone
    comes last, when nothing else is left.

    Args:
        store_or_root: A directory, `s3://BUCKET/PREFIX`, or an open store.
        passed_over: The names of checkpoints to take only when nothing else is left, and why. Default: none.

    Returns:
        The checkpoint, and why newer ones were rejected; `unread` names those that could not be read.

    Raises:
        NoCheckpoint: Nothing was ever committed.
        NoValidCheckpoint: Checkpoints were committed, and none of them is there or can be trusted.
        DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
        CheckpointError: No region of S3 is known, or the root's records cannot be read.
        OSError: The root cannot be read.

    Example:
        With the `root` of a run that has saved:

            from hyperpod_kit.checkpoint import newest_complete

            checkpoint = newest_complete(root)
            print(checkpoint.step, checkpoint.checkpoint_id)
    """
    store = as_store(store_or_root)
    return load_newest_accepted(
        store,
        lambda checkpoint_id: verify.verify_file_names_present(store, checkpoint_id),
        passed_over,
        skip_unreadable=True,
    )[1]


class _Walk(Generic[T]):
    """Candidates of one walk: what was taken, and why others were not."""

    def __init__(self, store: Store, take: Callable[[str], T], past_unread: bool) -> None:
        self._store, self._take, self._past_unread = store, take, past_unread
        self.taken: List[T] = []
        self.rejected: List[Tuple[str, str]] = []
        self.unread: List[str] = []

    def try_load(self, checkpoint_id: str) -> bool:
        """Load a checkpoint and return whether that worked; if not, the reason is added to `rejected`. Raise
        DigestUnavailable, StorageUnreadable."""
        try:
            self.taken.append(self._take(checkpoint_id))
            return True
        except (DigestUnavailable, StorageUnreadable):
            raise
        except (CheckpointError, OSError) as err:
            reason = verify.describe_failure(err)
            if verify.is_storage_failure(err):
                if not self._past_unread:
                    raise StorageUnreadable(
                        checkpoint_id, reason, hint=f"hyperpod-kit checkpoint ls {self._store.url}"
                    ) from err
                self.unread.append(checkpoint_id)
            self.rejected.append((checkpoint_id, reason))
            return False
        except (HyperpodKitError, MemoryError):
            raise
        except Exception as err:  # what nobody foresaw must not hide an older one that is valid
            self.rejected.append((checkpoint_id, verify.describe_unforeseen(err)))
            return False

    def selection(self, entry: catalog.CheckpointEntry) -> Selection:
        rejected = tuple(pair for pair in self.rejected if pair[0] != entry.checkpoint_id)
        return Selection(
            entry.checkpoint_id, entry.name.epoch, entry.name.seq, entry.name.step, rejected, tuple(self.unread)
        )


def no_checkpoint_error(store: Store, rejected: Sequence[Tuple[str, str]]) -> CheckpointError:
    """Return the error for a walk that found no checkpoint: NoCheckpoint when nothing was ever committed, which
    every record has to confirm (`commit_records`), NoValidCheckpoint when nothing of it is there or can be
    trusted. Raise CheckpointError, OSError."""
    if rejected:
        return NoValidCheckpoint(store.url, rejected)
    lost = lost_commits_assuming_no_manifests(store)
    if lost:
        return NoValidCheckpoint(
            store.url, commit_records.summarize_lost_commits(lost), hint=commit_records.repair_hint(store.url)
        )
    return NoCheckpoint(f"no checkpoint was ever committed below {store.url}")


def lost_commits_assuming_no_manifests(store: Store) -> List[commit_records.LostCommit]:
    """Return what was committed under a root that has no manifest of it any more. Only for a caller that has
    found no manifest. Raise CheckpointError, OSError."""
    return commit_records.lost_commits_assuming_no_manifests(commit_records.collect_commit_evidence(store))


def lost_commit_named_by_latest(store: Store, newest_present: layout.CheckpointId) -> List[commit_records.LostCommit]:
    """Return the commit that LATEST names, as a list of at most one, where it has no manifest any more and is
    newer than `newest_present`, which has one: the run resumes from that, and people are told why. Raise
    CheckpointError, OSError."""
    hint = None
    with contextlib.suppress(OSError):  # what is read for people alone ends no restore
        hint = latest.read(without_read_retries(store))
    if hint is None or catalog.sort_key(hint) <= catalog.sort_key(newest_present):
        return []
    if store.exists(f"{hint}/{layout.MANIFEST_FILE}") or rollbacks.exclusion_reason(
        rollbacks.read_active_records(store), hint
    ):
        return []
    return [commit_records.LostCommit(str(hint), (layout.LATEST_FILE,), bool(store.list(str(hint))))]


def require_no_lost_commits(store: Store) -> None:
    """Raise NoValidCheckpoint if something was committed under the root, for a caller that has found no commit
    and goes on as if there never was one; CheckpointError, OSError."""
    error = no_checkpoint_error(store, ())
    if not isinstance(error, NoCheckpoint):
        raise error
