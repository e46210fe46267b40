"""torch.distributed.checkpoint: a directory with `.metadata`, written last and renamed into place, and `.distcp` files.

`.metadata` is a pickle. It is never loaded: its opcodes are read for the names of the files that it refers to.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import pickletools
import re
from functools import partial
from typing import Iterator, Optional, Set

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.foreign.candidate import ForeignCandidate, Incomplete
from hyperpod_kit.untrusted import files

METADATA = ".metadata"
_LONGEST = 1 << 30
_FILE = re.compile(r"^__\d+_\d+\.distcp$|\.distcp$|^shard-[\w-]+\.safetensors$")


def detect(root: str) -> Iterator[ForeignCandidate]:
    """Directories below the root that hold, or begin to hold, a DCP checkpoint and end in their step."""
    for entry in os.scandir(root):
        step = step_of(entry.name)
        if step is None or not entry.is_dir() or entry.name.startswith("iter_"):
            continue
        names = os.listdir(entry.path)
        if METADATA in names or any(name.endswith(".distcp") for name in names):
            yield ForeignCandidate("dcp", entry.name, step, partial(prove, entry.path))


def step_of(name: str) -> Optional[int]:
    """The number that a directory's name ends in: `step-100`, `checkpoint_100`, `100`."""
    match = re.search(r"([0-9]+)\s*\Z", name)
    return int(match.group(1)) if match else None


def prove(place: str) -> str:
    """`complete` when every file that `.metadata` names is there. Raises Incomplete, OSError."""
    path = os.path.join(place, METADATA)
    if not os.path.isfile(path):
        raise Incomplete(f"{METADATA} is missing: the save did not end")
    wanted = named_files(path)
    if not wanted:
        raise Incomplete(f"{METADATA} names no file")
    for name in sorted(wanted):
        file = os.path.join(place, name)
        if not os.path.isfile(file):
            raise Incomplete(f"{name} is missing")
        if os.path.getsize(file) == 0:
            raise Incomplete(f"{name} is empty")
    return "complete"


def named_files(path: str) -> Set[str]:
    """Names of data files in a pickle, without running it. Raises Incomplete when it is no whole pickle."""
    try:
        data = files.read(path, most=_LONGEST)
    except Untrusted as err:
        raise Incomplete(err.message) from err
    found: Set[str] = set()
    try:
        for opcode, value, _ in pickletools.genops(data):
            if (
                isinstance(value, str)
                and opcode.name in ("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8")
                and _FILE.search(value)
            ):
                found.add(value)
    except Exception as err:  # pickletools raises whatever a torn stream leads it to
        raise Incomplete(f"{os.path.basename(path)} is torn: {err}") from err
    return found
