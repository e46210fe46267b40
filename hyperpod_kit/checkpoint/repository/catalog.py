"""What lies under a root: one listing, newest first. Reads names and manifests, no data."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional

from hyperpod_kit.errors import CheckpointError

from . import layout, manifest, verify
from .store.base import Store
from .store.open import Where, as_store


class Entry(NamedTuple):
    """An attempt directory. Committed means: a MANIFEST.json is there, whatever is in it."""

    attempt: str
    name: layout.AttemptName
    committed: bool

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key: (epoch, seq), never the step; the nonce only makes the order total."""
        return order(self.name)


class Described(NamedTuple):
    """An entry with its manifest, or the reason why there is none."""

    entry: Entry
    manifest: Optional[manifest.Manifest]
    problem: Optional[str]


def order(name: layout.AttemptName) -> tuple[int, int, str]:
    """Sort key of attempts; the greatest is the newest."""
    return (name.epoch, name.seq, name.nonce)


def _names(store: Store) -> List[layout.AttemptName]:
    """All attempts by name, newest first; one listing. Raises OSError."""
    parsed = [layout.parse_attempt(name[:-1]) for name in store.list() if name.endswith("/")]
    return sorted((name for name in parsed if name is not None), key=order, reverse=True)


def newest_first(where: Where) -> Iterator[Entry]:
    """The attempts, newest first; each is looked at only when it is asked for. Raises OSError."""
    store = as_store(where)
    for name in _names(store):
        yield Entry(str(name), name, store.exists(f"{name}/{layout.MANIFEST_FILE}"))


def attempts(where: Where) -> List[Entry]:
    """All attempts, newest first. A root that does not exist has none. Raises OSError."""
    return list(newest_first(where))


def highest(where: Where) -> tuple[int, int]:
    """(highest epoch, highest seq) that any start or attempt has used; 0 where there is none. Raises OSError."""
    epoch = seq = 0
    for name in as_store(where).list():
        parsed = layout.parse_attempt(name.rstrip("/"))
        if parsed is not None:
            epoch, seq = max(epoch, parsed.epoch), max(seq, parsed.seq)
        epoch = max(epoch, layout.parse_epoch(name) or 0)
    return epoch, seq


def describe(where: Where) -> List[Described]:
    """All attempts, newest first, with what their manifests say. Raises OSError when the root cannot be listed."""
    store = as_store(where)
    out = []
    for entry in newest_first(store):
        if not entry.committed:
            out.append(Described(entry, None, "never committed"))
            continue
        try:
            out.append(Described(entry, verify.read_manifest(store, entry.attempt), None))
        except (CheckpointError, OSError) as err:
            out.append(Described(entry, None, verify.reason_of(err)))
    return out
