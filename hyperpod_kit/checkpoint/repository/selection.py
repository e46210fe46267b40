"""Which checkpoint a run resumes from: the newest one of which every byte is proved.

Newest is by (epoch, seq): after a deliberate step back to step 100, the new step 110 is newer than the abandoned 200.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

from hyperpod_kit.errors import CheckpointError, DigestUnavailable, NoCheckpoint, NoValidCheckpoint

from . import catalog, verify


class Found(NamedTuple):
    """The newest valid checkpoint, and every newer one that was rejected with the reason."""

    attempt: str
    epoch: int
    seq: int
    step: int
    rejected: Tuple[Tuple[str, str], ...]


def candidates(root: str, *, first: Optional[str] = None) -> List[catalog.Entry]:
    """The committed attempts, newest first; with `first`, that one and the older ones only. Raises OSError."""
    entries = [entry for entry in catalog.attempts(root) if entry.committed]
    if first is None:
        return entries
    for index, entry in enumerate(entries):
        if entry.attempt == first:
            return entries[index:]
    raise CheckpointError(f"{first} is not a committed checkpoint under {root}",
                          hint=f"hyperpod-kit checkpoint ls {root}")


def newest_valid(root: str) -> Found:
    """Verify candidates from the newest on, every byte, until one passes.

    Raises NoCheckpoint when nothing was ever committed, NoValidCheckpoint when nothing of what was committed can be
    trusted, DigestUnavailable when this interpreter cannot check the digests (that proves nothing against the
    checkpoint, so it must not lead to an older one), OSError when the root cannot be read.
    """
    entries = candidates(root)
    if not entries:
        raise NoCheckpoint(f"nothing was ever committed under {root}")
    rejected: List[Tuple[str, str]] = []
    for entry in entries:
        try:
            verify.verify_attempt(root, entry.attempt)
        except DigestUnavailable:
            raise
        except (CheckpointError, OSError) as err:
            rejected.append((entry.attempt, verify.reason_of(err)))
            continue
        return Found(entry.attempt, entry.name.epoch, entry.name.seq, entry.name.step, tuple(rejected))
    raise NoValidCheckpoint(root, rejected)
