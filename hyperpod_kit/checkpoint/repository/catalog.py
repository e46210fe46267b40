"""What lies under a root: one listing, newest first. Reads names and manifests, no data."""

from __future__ import annotations

import os
from typing import List, NamedTuple, Optional

from hyperpod_kit.errors import CheckpointError

from . import layout, manifest, verify


class Entry(NamedTuple):
    """An attempt directory. Committed means: a MANIFEST.json is there, whatever is in it."""

    attempt: str
    name: layout.AttemptName
    committed: bool

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key: (epoch, seq), never the step; the nonce only makes the order total."""
        return (self.name.epoch, self.name.seq, self.name.nonce)


class Described(NamedTuple):
    """An entry with its manifest, or the reason why there is none."""

    entry: Entry
    manifest: Optional[manifest.Manifest]
    problem: Optional[str]


def _names(root: str) -> List[str]:
    try:
        return os.listdir(root)
    except FileNotFoundError:
        return []


def attempts(root: str) -> List[Entry]:
    """All attempts under `root`, newest first. A root that does not exist has none. Raises OSError."""
    found = []
    for name in _names(root):
        parsed = layout.parse_attempt(name)
        if parsed is not None:
            committed = os.path.lexists(os.path.join(root, name, layout.MANIFEST_FILE))
            found.append(Entry(name, parsed, committed))
    return sorted(found, key=lambda entry: entry.order, reverse=True)


def highest(root: str) -> tuple[int, int]:
    """(highest epoch, highest seq) that any start or attempt under `root` has used; 0 where there is none."""
    epoch = seq = 0
    for name in _names(root):
        parsed = layout.parse_attempt(name)
        if parsed is not None:
            epoch, seq = max(epoch, parsed.epoch), max(seq, parsed.seq)
        epoch = max(epoch, layout.parse_epoch(name) or 0)
    return epoch, seq


def describe(root: str) -> List[Described]:
    """All attempts, newest first, with what their manifests say."""
    out = []
    for entry in attempts(root):
        if not entry.committed:
            out.append(Described(entry, None, "never committed"))
            continue
        try:
            out.append(Described(entry, verify.read_manifest(root, entry.attempt), None))
        except (CheckpointError, OSError) as err:
            out.append(Described(entry, None, verify.reason_of(err)))
    return out
