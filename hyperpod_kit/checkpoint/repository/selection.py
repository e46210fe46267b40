"""Which checkpoint a run resumes from: the newest one of which every byte is proved.

Newest is by (epoch, seq): after a deliberate step back to step 100, the new step 110 is newer than the abandoned 200.

`newest_valid` and `newest_complete` are for tools and scripts; a restore steps through `walk` or `newest` with a check
of its own.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Generic, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from hyperpod_kit.checkpoint.repository import catalog, commit_records, latest, layout, rollbacks, tombstone, verify
from hyperpod_kit.checkpoint.repository.rollbacks import FreshStart
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import Where, as_store
from hyperpod_kit.checkpoint.repository.store.retrying import without_retries
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


def walk(
    where: Where, *, first: Optional[str] = None, attempt: Optional[str] = None
) -> Iterator[catalog.CheckpointEntry]:
    """The committed attempts, newest first; with `first`, that one and the older ones only.

    `attempt` names a job's attempt: what it has committed itself is given too when it is newer than `first`, and
    `first` may be gone then (retention). HyperPod's step retry starts the ranks of an attempt again with the
    environment of its beginning, and so does torchrun with --max-restarts. What the job passed over stays passed over.
    What was left on purpose (`rollbacks`) is not among them, unless it is `first` itself. Each is looked at only when
    it is asked for. Raises OSError; CheckpointError when `first` is not there.
    """
    store = as_store(where)
    rollback_records = rollbacks.read_records(store)
    if first is None:
        limit = None
    else:
        limit = layout.parse_checkpoint_id(first)
    has_passed_first = first is None
    for entry in catalog.newest_first(store):
        if entry.checkpoint_id == first and not entry.committed:
            break
        if entry.checkpoint_id != first and rollbacks.reason_left(rollback_records, entry.name):
            continue
        below = (
            first is None
            or entry.checkpoint_id == first
            or (has_passed_first and limit is not None and entry.order < catalog.sort_key(limit))
        )
        if entry.committed and (below or (attempt is not None and job_attempt(store, entry.checkpoint_id) == attempt)):
            has_passed_first = True
            yield entry
    if not has_passed_first:
        raise NoSuchCheckpoint(
            f"{first} is not a committed checkpoint under {store.url}", hint=f"hyperpod-kit checkpoint ls {store.url}"
        )


def job_attempt(where: Where, checkpoint_id: str) -> Optional[str]:
    """The job's attempt (HPK_ATTEMPT) that saved a checkpoint; None when its manifest does not say, is damaged, or is
    another user's.

    Raises OSError when storage does not give it up: to go on as if it were a stranger's would leave what this very
    attempt has saved.
    """
    try:
        return verify.read_manifest(where, checkpoint_id).job.get("attempt")
    except (CheckpointError, FileNotFoundError, PermissionError):
        return None


def newest(
    where: Where, take: Callable[[str], T], passed_over: Mapping[str, str] = _NOTHING, *, past_unread: bool = False
) -> Tuple[T, Selection]:
    """What `take` makes of the newest attempt that it does not reject, and which one that is.

    `take` gets an attempt's name and rejects it with CheckpointError or OSError. What has a tombstone or is in
    `passed_over` (attempt -> why) comes last, when nothing else is left: a tombstone may be wrong (bad memory in the
    machine that wrote it), and must not be what ends a run.
    Raises NoCheckpoint when nothing was ever committed, NoValidCheckpoint when nothing of what was committed is there
    or can be trusted, DigestUnavailable when this interpreter cannot check the digests and StorageUnreadable when
    storage does not give an attempt up (both prove nothing against it, so they must not lead to an older one; with
    `past_unread` the caller decides, who finds it in `Selection.unread`), OSError when the root cannot be read.
    """
    store = as_store(where)
    for _ in range(_WALKS):
        try:
            return _newest_of_a_walk(store, take, passed_over, past_unread)
        except NoValidCheckpoint as err:
            if err.reasons or not _is_committed_now(store):
                raise no_checkpoint_error(store, err.reasons) from None
    raise no_checkpoint_error(store, ())


def _newest_of_a_walk(
    store: Store, take: Callable[[str], T], passed_over: Mapping[str, str], past_unread: bool
) -> Tuple[T, Selection]:
    """Raises NoValidCheckpoint with a reason for each candidate; with none where no manifest was listed."""
    walked = _Walk(store, take, past_unread)
    marked: List[catalog.CheckpointEntry] = []
    for number, entry in enumerate(walk(store)):
        if number == 0:
            walked.rejected += [(lost.checkpoint_id, lost.reason) for lost in lost_before(store, entry.name)]
        reason = passed_over.get(entry.checkpoint_id)
        damage = None
        if entry.marked and reason is None:
            damage = tombstone.read(store, entry.checkpoint_id)
        if damage is not None:
            reason = f"marked as damaged: {damage}"
        if reason is not None:
            marked.append(entry)
            walked.rejected.append((entry.checkpoint_id, reason))
        elif walked.takes(entry.checkpoint_id):
            return walked.taken[0], walked.selection(entry)
    for entry in marked:
        earlier = list(walked.rejected)
        if walked.takes(entry.checkpoint_id):
            return walked.taken[0], walked.selection(entry)
        walked.rejected = earlier
    raise NoValidCheckpoint(store.url, [*walked.rejected, *left_on_purpose(store)])


def _is_committed_now(store: Store) -> bool:
    """Whether the records name a commit whose manifest is there, although the walk before has listed no manifest: a
    running job has committed it since, and it is not lost."""
    return any(
        commit.checkpoint_id and store.exists(f"{commit.checkpoint_id}/{layout.MANIFEST_FILE}")
        for commit in lost_commits(store)
    )


def left_on_purpose(store: Store) -> List[Tuple[str, str]]:
    """The committed attempts that the run left by going back on purpose, and since when; not those that it left to
    begin anew, after which nothing was ever committed. Raises CheckpointError, OSError."""
    rollback_records = rollbacks.read_records(store)
    reasons: List[Tuple[str, str]] = []
    for entry in catalog.newest_first(store) if rollback_records else ():
        record = None
        if entry.committed:
            record = rollbacks.find_leaving(rollback_records, entry.name)
        if record is not None and not isinstance(record, FreshStart):
            reasons.append((entry.checkpoint_id, f"left on purpose: {record.description}"))
    return reasons


def newest_valid(where: Where, passed_over: Mapping[str, str] = _NOTHING) -> Selection:
    """Find the newest checkpoint of which every byte is what was committed.

    It reads and compares all data of the checkpoints that it looks at. One with a tombstone comes last, when nothing
    else is left.

    Args:
        where: A directory, `s3://BUCKET/PREFIX`, or an open store.
        passed_over: The names of checkpoints to take only when nothing else is left, and why. Default: none.

    Returns:
        The checkpoint, and why newer ones were rejected; `unread` names those that could not be read.

    Raises:
        NoCheckpoint: Nothing was ever committed.
        NoValidCheckpoint: Checkpoints were committed, and none of them is there or can be trusted.
        DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
        CheckpointError: boto3 is needed for S3 and is not installed, or the root's records cannot be read.
        OSError: The root cannot be read.

    Example:
        With the `root` of a run that has saved:

            from hyperpod_kit.checkpoint import newest_valid

            checkpoint = newest_valid(root)
            print(checkpoint.step, checkpoint.checkpoint_id)
    """
    store = as_store(where)
    return newest(
        store, lambda checkpoint_id: verify.verify_checkpoint(store, checkpoint_id), passed_over, past_unread=True
    )[1]


def newest_complete(where: Where, passed_over: Mapping[str, str] = _NOTHING) -> Selection:
    """Find the newest checkpoint whose manifest proves itself and whose files are all there, by their names.

    No data is read, so it costs the same at any size; the restore that follows proves every byte. One with a tombstone
    comes last, when nothing else is left.

    Args:
        where: A directory, `s3://BUCKET/PREFIX`, or an open store.
        passed_over: The names of checkpoints to take only when nothing else is left, and why. Default: none.

    Returns:
        The checkpoint, and why newer ones were rejected; `unread` names those that could not be read.

    Raises:
        NoCheckpoint: Nothing was ever committed.
        NoValidCheckpoint: Checkpoints were committed, and none of them is there or can be trusted.
        DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
        CheckpointError: boto3 is needed for S3 and is not installed, or the root's records cannot be read.
        OSError: The root cannot be read.

    Example:
        With the `root` of a run that has saved:

            from hyperpod_kit.checkpoint import newest_complete

            checkpoint = newest_complete(root)
            print(checkpoint.step, checkpoint.checkpoint_id)
    """
    store = as_store(where)
    return newest(
        store, lambda checkpoint_id: verify.verify_names(store, checkpoint_id), passed_over, past_unread=True
    )[1]


class _Walk(Generic[T]):
    """Candidates of one walk: what was taken, and why others were not."""

    def __init__(self, store: Store, take: Callable[[str], T], past_unread: bool) -> None:
        self._store, self._take, self._past_unread = store, take, past_unread
        self.taken: List[T] = []
        self.rejected: List[Tuple[str, str]] = []
        self.unread: List[str] = []

    def takes(self, checkpoint_id: str) -> bool:
        """Whether it is taken; else the reason is in `rejected`. Raises DigestUnavailable, StorageUnreadable."""
        try:
            self.taken.append(self._take(checkpoint_id))
            return True
        except (DigestUnavailable, StorageUnreadable):
            raise
        except (CheckpointError, OSError) as err:
            reason = verify.describe_failure(err)
            if verify.is_unread(err):
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
    """The error of a walk that came to its end: nothing was ever committed, which every record has to agree on
    (`commit_records`), or nothing of it is there or can be trusted. Raises CheckpointError, OSError."""
    if rejected:
        return NoValidCheckpoint(store.url, rejected)
    lost = lost_commits(store)
    if lost:
        return NoValidCheckpoint(store.url, commit_records.reasons(lost), hint=commit_records.hint(store.url))
    return NoCheckpoint(f"nothing was ever committed under {store.url}")


def lost_commits(store: Store) -> List[commit_records.LostCommit]:
    """What was committed under a root of which no manifest says so any more. Only for who has found none. Raises
    CheckpointError, OSError."""
    return commit_records.lost_commits(commit_records.gather(store))


def lost_before(store: Store, newest: layout.CheckpointId) -> List[commit_records.LostCommit]:
    """What LATEST names as committed and has no manifest any more, where it is newer than `newest`, which has one: the
    run goes on from that, and people are told why. Raises CheckpointError, OSError."""
    hint = None
    with contextlib.suppress(OSError):  # what is read for people alone ends no restore
        hint = latest.read(without_retries(store))
    if hint is None or catalog.sort_key(hint) <= catalog.sort_key(newest):
        return []
    if store.exists(f"{hint}/{layout.MANIFEST_FILE}") or rollbacks.reason_left(rollbacks.read_records(store), hint):
        return []
    return [commit_records.LostCommit(str(hint), (layout.LATEST_FILE,), bool(store.list(str(hint))))]


def require_no_lost_commits(store: Store) -> None:
    """For who has found no commit and goes on as if there never was one. Raises NoValidCheckpoint when there was,
    CheckpointError, OSError."""
    error = no_checkpoint_error(store, ())
    if not isinstance(error, NoCheckpoint):
        raise error
