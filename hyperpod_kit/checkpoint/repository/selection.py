"""Which checkpoint a run resumes from: the newest one of which every byte is proved.

Newest is by (epoch, seq): after a deliberate step back to step 100, the new step 110 is newer than the abandoned 200.
"""

from __future__ import annotations

from typing import Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from hyperpod_kit.errors import CheckpointError, DigestUnavailable, NoCheckpoint, NoValidCheckpoint

from . import catalog, tombstone, verify
from .store.base import Store
from .store.open import Where, as_store

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


def walk(where: Where, *, first: Optional[str] = None) -> Iterator[catalog.Entry]:
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
        raise CheckpointError(f"{first} is not a committed checkpoint under {store.url}",
                              hint=f"hyperpod-kit checkpoint ls {store.url}")


def newest(store: Store, take: Callable[[str], T]) -> Tuple[T, Tuple[Tuple[str, str], ...]]:
    """What `take` makes of the newest attempt that it does not reject, and why it rejected newer ones.

    `take` gets an attempt's name and rejects it with CheckpointError or OSError. Raises NoCheckpoint,
    NoValidCheckpoint, DigestUnavailable (see `newest_valid`), OSError.
    """
    rejected: List[Tuple[str, str]] = []
    for entry in walk(store):
        try:
            return take(entry.attempt), tuple(rejected)
        except DigestUnavailable:
            raise
        except (CheckpointError, OSError) as err:
            rejected.append((entry.attempt, verify.reason_of(err)))
    raise nothing_left(store, rejected)


def nothing_left(store: Store, rejected: Sequence[Tuple[str, str]]) -> CheckpointError:
    """The error of a walk that found nothing: nothing was ever committed, or nothing of it can be trusted."""
    if rejected:
        return NoValidCheckpoint(store.url, rejected)
    return NoCheckpoint(f"nothing was ever committed under {store.url}")


def newest_valid(where: Where, passed_over: Mapping[str, str] = _NOTHING) -> Found:
    """Verify candidates from the newest on, every byte, until one passes.

    `passed_over`: attempts that are taken only when nothing else is valid, and why.

    Raises NoCheckpoint when nothing was ever committed, NoValidCheckpoint when nothing of what was committed can be
    trusted, DigestUnavailable when this interpreter cannot check the digests (that proves nothing against the
    checkpoint, so it must not lead to an older one), OSError when the root cannot be read.
    """
    store = as_store(where)
    rejected: List[Tuple[str, str]] = []
    unread: List[str] = []
    marked: List[catalog.Entry] = []
    for entry in walk(store):
        reason = passed_over.get(entry.attempt)
        damage = tombstone.read(store, entry.attempt) if entry.marked and reason is None else None
        if damage is not None:
            reason = f"marked as damaged: {damage}"
        if reason is not None:
            marked.append(entry)
            rejected.append((entry.attempt, reason))
        elif _valid(store, entry.attempt, rejected, unread):
            return _found(entry, rejected, unread)
    for entry in marked:
        # A tombstone may be wrong (bad memory in the machine that wrote it); it must not be what ends a run.
        again: List[Tuple[str, str]] = []
        if _valid(store, entry.attempt, again, unread):
            return _found(entry, [pair for pair in rejected if pair[0] != entry.attempt], unread)
    raise nothing_left(store, rejected)


def _valid(store: Store, attempt: str, rejected: List[Tuple[str, str]], unread: List[str]) -> bool:
    try:
        verify.verify_attempt(store, attempt)
        return True
    except DigestUnavailable:
        raise
    except (CheckpointError, OSError) as err:
        rejected.append((attempt, verify.reason_of(err)))
        if isinstance(err, OSError) and not isinstance(err, FileNotFoundError):
            unread.append(attempt)
        return False


def _found(entry: catalog.Entry, rejected: List[Tuple[str, str]], unread: List[str]) -> Found:
    return Found(entry.attempt, entry.name.epoch, entry.name.seq, entry.name.step, tuple(rejected), tuple(unread))
