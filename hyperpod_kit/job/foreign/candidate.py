"""The types in which a detector describes a checkpoint of another framework, and how far validity can be proven.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from typing import Callable, Iterator, NamedTuple, Tuple

from hyperpod_kit.errors import CheckpointError

PROOFS = ("crc", "complete", "marker")
"""How far validity was proven, best first. `crc`: the CRC-32 of every record was compared. `complete`: every file that
the checkpoint names is there and as long as it says. `marker`: a mark that the framework writes last is there."""


MOST_STEPS = (1 << 53) - 1
"""The largest step that every reader of JSON can hold."""

_NAME = re.compile(r"[A-Za-z0-9._=+@,:-]+(?:/[A-Za-z0-9._=+@,:-]+)*")


def well_named(name: str) -> bool:
    """Return whether a path below the root may be handed to a job: it goes into its environment, and from there into
    programs that are not ours."""
    return len(name) <= 1024 and _NAME.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))


class Incomplete(CheckpointError):
    """Raised about a checkpoint that cannot be resumed from."""


class Structure(NamedTuple):
    """What a checkpoint consists of. `files`: paths of those whose bytes say whether they are whole; `proof`: how far
    the checkpoint is proven when they are whole, or when there are none."""

    files: Tuple[str, ...] = ()
    proof: str = "crc"


class ForeignCandidate(NamedTuple):
    """A checkpoint that is there. `name`: path below the root; `structure` looks at names, lengths and small files.

    `structure` raises Incomplete or another CheckpointError for what is damaged, OSError for what cannot be read.
    """

    kind: str
    name: str
    step: int
    structure: Callable[[], Structure]


Detector = Callable[[str], Iterator[ForeignCandidate]]
"""detector(root) -> every candidate of its kind, in any order. Nothing of a checkpoint is unpickled."""


def weakest(proofs: Tuple[str, ...]) -> str:
    """Return the weakest of these proofs, which is what several files prove together."""
    return max(proofs, key=PROOFS.index)
