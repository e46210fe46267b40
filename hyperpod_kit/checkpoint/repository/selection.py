"""Which checkpoint a run resumes from: the newest one of which every byte is proved.

Newest is by (epoch, seq): after a deliberate step back to step 100, the new step 110 is newer than the abandoned 200.
"""

from __future__ import annotations

from typing import Callable, Generic, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from hyperpod_kit.checkpoint.repository import catalog, tombstone, verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import Where, as_store
from hyperpod_kit.errors import (
    CheckpointError,
    DigestUnavailable,
    HyperpodKitError,
    NoCheckpoint,
    NoValidCheckpoint,
    StorageUnreadable,
)

T = TypeVar("T")
_NOTHING: Mapping[str, str] = {}


class Found(NamedTuple):
    """The newest valid checkpoint, and every newer one that was rejected with the reason.

    `unread`: those of them that storage would not give up (an I/O error): they may be good, and readable later.
    """

    attempt: str
    epoch: int
    seq: int
    step: int
    rejected: Tuple[Tuple[str, str], ...]
    unread: Tuple[str, ...] = ()


def walk(where: Where, *, first: Optional[str] = None) -> Iterator[catalog.AttemptEntry]:
    """The committed attempts, newest first; with `first`, that one and the older ones only.

    Each is looked at only when it is asked for. Raises OSError; CheckpointError when `first` is not there.
    """
    store = as_store(where)
    begun = first is None
    for entry in catalog.newest_first(store):
        if entry.attempt == first:
            begun = entry.committed
            if not begun:
                break
        if begun and entry.committed:
            yield entry
    if not begun:
        raise CheckpointError(
            f"{first} is not a committed checkpoint under {store.url}", hint=f"hyperpod-kit checkpoint ls {store.url}"
        )


def newest(
    where: Where, take: Callable[[str], T], passed_over: Mapping[str, str] = _NOTHING, *, past_unread: bool = False
) -> Tuple[T, Found]:
    """What `take` makes of the newest attempt that it does not reject, and which one that is.

    `take` gets an attempt's name and rejects it with CheckpointError or OSError. What has a tombstone or is in
    `passed_over` (attempt -> why) comes last, when nothing else is left: a tombstone may be wrong (bad memory in the
    machine that wrote it), and must not be what ends a run.
    Raises NoCheckpoint when nothing was ever committed, NoValidCheckpoint when nothing of what was committed can be
    trusted, DigestUnavailable when this interpreter cannot check the digests and StorageUnreadable when storage does
    not give an attempt up (both prove nothing against it, so they must not lead to an older one; with `past_unread`
    the caller decides, who finds it in `Found.unread`), OSError when the root cannot be read.
    """
    store = as_store(where)
    walked = _Walk(store, take, past_unread)
    marked: List[catalog.AttemptEntry] = []
    for entry in walk(store):
        reason = passed_over.get(entry.attempt)
        damage = tombstone.read(store, entry.attempt) if entry.marked and reason is None else None
        if damage is not None:
            reason = f"marked as damaged: {damage}"
        if reason is not None:
            marked.append(entry)
            walked.rejected.append((entry.attempt, reason))
        elif walked.takes(entry.attempt):
            return walked.taken[0], walked.found(entry)
    for entry in marked:
        earlier = list(walked.rejected)
        if walked.takes(entry.attempt):
            return walked.taken[0], walked.found(entry)
        walked.rejected = earlier
    raise nothing_left(store, walked.rejected)


def newest_valid(where: Where, passed_over: Mapping[str, str] = _NOTHING) -> Found:
    """The newest attempt of which every byte is what was committed; raises as `newest`, which it is with
    `past_unread`."""
    store = as_store(where)
    return newest(store, lambda attempt: verify.verify_attempt(store, attempt), passed_over, past_unread=True)[1]


class _Walk(Generic[T]):
    """Candidates of one walk: what was taken, and why others were not."""

    def __init__(self, store: Store, take: Callable[[str], T], past_unread: bool) -> None:
        self._store, self._take, self._past_unread = store, take, past_unread
        self.taken: List[T] = []
        self.rejected: List[Tuple[str, str]] = []
        self.unread: List[str] = []

    def takes(self, attempt: str) -> bool:
        """Whether it is taken; else the reason is in `rejected`. Raises DigestUnavailable, StorageUnreadable."""
        try:
            self.taken.append(self._take(attempt))
            return True
        except (DigestUnavailable, StorageUnreadable):
            raise
        except (CheckpointError, OSError) as err:
            why = verify.reason_of(err)
            if verify.is_unread(err):
                if not self._past_unread:
                    raise StorageUnreadable(attempt, why, hint=f"hyperpod-kit checkpoint ls {self._store.url}") from err
                self.unread.append(attempt)
            self.rejected.append((attempt, why))
            return False
        except (HyperpodKitError, MemoryError):
            raise
        except Exception as err:  # what nobody foresaw must not hide an older one that is valid
            self.rejected.append((attempt, verify.unforeseen(err)))
            return False

    def found(self, entry: catalog.AttemptEntry) -> Found:
        rejected = tuple(pair for pair in self.rejected if pair[0] != entry.attempt)
        return Found(entry.attempt, entry.name.epoch, entry.name.seq, entry.name.step, rejected, tuple(self.unread))


def nothing_left(store: Store, rejected: Sequence[Tuple[str, str]]) -> CheckpointError:
    """The error of a walk that found nothing: nothing was ever committed, or nothing of it can be trusted."""
    if rejected:
        return NoValidCheckpoint(store.url, rejected)
    return NoCheckpoint(f"nothing was ever committed under {store.url}")
