"""What lies under a root, newest first. Reads names and manifests, no data.

`list_checkpoints` lists everything, for people and tools; `newest_first` looks at one candidate after another, for a
restore.

Where a look-up is dear (S3), not everything is listed to find the newest: LATEST names an attempt, the starts that came
after it say in their epoch files with which seq they began, and what is newer than LATEST lies behind the smallest of
these in the order of names. Any doubt ends in a full listing.
"""

from __future__ import annotations

from typing import FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.records import latest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.renamed import renamed_fields

_WIDTH = 10**6
"""From this seq on names are longer, and their order is no longer that of the numbers."""


@renamed_fields(attempt="checkpoint_id")
class CheckpointEntry(NamedTuple):
    """The directory of one save below a root.

    Attributes:
        checkpoint_id: The directory's name.
        name: The same, parsed: seq, step, epoch and nonce.
        committed: Whether a MANIFEST.json is there, whatever is in it.
        marked: Whether a tombstone is there; `tombstone.read_damage_reason` reads it.
    """

    checkpoint_id: str
    name: layout.CheckpointId
    committed: bool
    marked: bool = False

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key: (epoch, seq), never the step; the nonce only makes the order total."""
        return sort_key(self.name)


class _Names(NamedTuple):
    """Attempts, newest first, and which of them have a tombstone."""

    ids: List[layout.CheckpointId]
    marked: FrozenSet[str]


class _Tail(NamedTuple):
    """The end of a root: `names` has all attempts that are not older than `floor`, and maybe older ones."""

    names: _Names
    floor: Tuple[int, int, str]
    epoch: int


def sort_key(name: layout.CheckpointId) -> tuple[int, int, str]:
    """Sort key of attempts; the greatest is the newest."""
    return (name.epoch, name.seq, name.nonce)


def _parse_ids_and_tombstones(listed: List[str]) -> _Names:
    parsed = [layout.parse_checkpoint_id(name[:-1]) for name in listed if name.endswith("/")]
    marked = frozenset(tombstoned for tombstoned in map(layout.parse_tombstone, listed) if tombstoned is not None)
    return _Names(sorted((name for name in parsed if name is not None), key=sort_key, reverse=True), marked)


def _list_since_latest_hint(store: Store) -> Optional[_Tail]:
    """At most two listings of what is new since LATEST; None in any doubt. Raises OSError."""
    if not store.capabilities.overwrite:
        return None  # it names the first commit for ever
    hint = latest.read(store)
    if hint is None:
        return None
    first, epoch = hint.seq, hint.epoch
    for name in store.list(after=layout.epoch_file(epoch), until=layout.EPOCHS_END):
        number = layout.parse_epoch(name)
        if number is None:
            continue
        try:
            first_seq = manifest.parse_sealed_json(store.read(name), name).get("first_seq")
        except (CheckpointError, FileNotFoundError):
            return None
        if not isinstance(first_seq, int):
            return None
        first, epoch = min(first, first_seq), max(epoch, number)
    names = _parse_ids_and_tombstones(store.list(after=layout.name_sorting_before_seq(first)))
    greatest = max((name.seq for name in names.ids), default=0)
    if hint not in names.ids or (greatest >= _WIDTH * 9 // 10):
        return None
    return _Tail(names, sort_key(hint), epoch)


def iter_checkpoints_newest_first(store_or_root: StoreOrRoot) -> Iterator[CheckpointEntry]:
    """The attempts, newest first; each is looked at only when it is asked for. Raises OSError."""
    store = as_store(store_or_root)
    if store.capabilities.local:
        tail = None
    else:
        tail = _list_since_latest_hint(store)
    yielded = set()
    if tail is not None:
        for name in tail.names.ids:
            if sort_key(name) >= tail.floor:
                yielded.add(name)
                yield _entry(store, name, tail.names)
    names = _parse_ids_and_tombstones(store.list())
    for name in names.ids:
        if name not in yielded:
            yield _entry(store, name, names)


def _entry(store: Store, name: layout.CheckpointId, names: _Names) -> CheckpointEntry:
    checkpoint_id = str(name)
    return CheckpointEntry(
        checkpoint_id, name, store.exists(f"{checkpoint_id}/{layout.MANIFEST_FILE}"), checkpoint_id in names.marked
    )


def newest_committed(store_or_root: StoreOrRoot) -> Optional[str]:
    """The newest attempt that has a manifest, whatever is in it; None where none has. Raises OSError."""
    return next(
        (entry.checkpoint_id for entry in iter_checkpoints_newest_first(store_or_root) if entry.committed), None
    )


def list_checkpoints(store_or_root: StoreOrRoot) -> List[CheckpointEntry]:
    """List all saves under a root, newest first, committed or not.

    Args:
        store_or_root: A directory, `s3://BUCKET/PREFIX`, or an open store.

    Returns:
        An entry for each; none for a root that does not exist.

    Raises:
        CheckpointError: No region of S3 is known.
        OSError: The root cannot be read.

    Example:
        With the `root` of a run that has saved:

            from hyperpod_kit.checkpoint import list_checkpoints

            for entry in list_checkpoints(root):
                print(entry.name.step, entry.checkpoint_id, "committed" if entry.committed else "not committed")
    """
    store = as_store(store_or_root)
    names = _parse_ids_and_tombstones(store.list())
    return [_entry(store, name, names) for name in names.ids]


def highest_epoch_and_seq(store_or_root: StoreOrRoot) -> tuple[int, int]:
    """(highest epoch, highest seq) that any start or attempt has used; 0 where there is none. Raises OSError."""
    store = as_store(store_or_root)
    if store.capabilities.local:
        tail = None
    else:
        tail = _list_since_latest_hint(store)
    if tail is not None:
        ids = tail.names.ids
        return max([tail.epoch] + [name.epoch for name in ids]), max(name.seq for name in ids)
    listed = store.list()
    ids = _parse_ids_and_tombstones(listed).ids
    starts = [layout.parse_epoch(name) or 0 for name in listed]
    return max([0, *starts] + [name.epoch for name in ids]), max([0] + [name.seq for name in ids])
