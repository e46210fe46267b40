"""How each rank really ended: `<state>/exits/<attempt>/<rank>.json`, written by a wrapper around the rank's command.

srun cannot be asked: after --kill-on-bad-exit it reports 137 or 143, whatever the rank that failed first said.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, List, Optional

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import files, parse
from hyperpod_kit.untrusted.text import clean

_NEEDED = ("rank", "node", "boot_id", "code", "signal", "started", "ended")
_LONGEST, _MOST = 1 << 16, 1 << 62

AGAIN = 75
"""A rank's exit code for `saved, run me again`."""


@dataclass(frozen=True)
class Exit:
    """One rank's end. `code` is None when `signal` killed it; times are Unix seconds.

    step: the last one that it is known to have completed; begins: the first that it did, after what it restored.
    """

    rank: int
    node: str
    boot_id: str
    code: Optional[int]
    signal: Optional[int]
    started: float
    ended: float
    step: Optional[int] = None
    begins: Optional[int] = None

    @property
    def good(self) -> bool:
        """Ended by itself with 0."""
        return self.code == 0

    @property
    def again(self) -> bool:
        """Saved and wants to run again."""
        return self.code == AGAIN


def directory(state: str, attempt: str) -> str:
    """Where an attempt's records lie."""
    return os.path.join(state, "exits", attempt)


def read(state: str, attempt: str) -> List[Exit]:
    """The records that are there, earliest end first. A record that is not complete is skipped. Raises OSError."""
    if "/" in attempt or attempt in ("", ".", ".."):
        return []  # the ledger that names it may be another's words
    place = directory(state, attempt)
    found: List[Exit] = []
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return found
    for name in names:
        with contextlib.suppress(ValueError, FileNotFoundError, Untrusted):
            found.append(_exit(parse.json_object(files.read(os.path.join(place, name), most=_LONGEST))))
    return sorted(found, key=lambda record: (record.ended, record.rank))


def _exit(value: Dict[str, Any]) -> Exit:
    """Raises ValueError for what no wrapper writes."""
    if not set(_NEEDED) <= set(value) or not set(value) <= {one.name for one in fields(Exit)}:
        raise ValueError("not the fields of a record")
    for name, given in value.items():
        wanted = str if name in ("node", "boot_id") else (int, float) if name in ("started", "ended") else int
        if given is None and name not in _NEEDED[:3]:
            continue
        if (
            isinstance(given, bool)
            or not isinstance(given, wanted)
            or (not isinstance(given, str) and not -_MOST < given < _MOST)
        ):
            raise ValueError(f"{name} is {given!r}")
    if value["started"] is None or value["ended"] is None:
        raise ValueError("no times")
    return Exit(**{**value, "node": clean(value["node"]), "boot_id": clean(value["boot_id"])})


def write(state: str, attempt: str, record: Exit) -> None:
    """Write a record once; an earlier one of the same rank stays (HyperPod retries a step under one attempt name).

    One write to a new file and no rename, so that it works on any file system. Raises OSError.
    """
    place = directory(state, attempt)
    os.makedirs(place, mode=0o750, exist_ok=True)
    data = json.dumps(asdict(record)).encode()
    for number in range(100):
        name = f"{record.rank}.json" if number == 0 else f"{record.rank}.{number}.json"
        try:
            fd = os.open(os.path.join(place, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        except FileExistsError:
            continue
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        return


def describe(record: Exit) -> Dict[str, Any]:
    """For the report: who ended how."""
    return {"rank": record.rank, "node": record.node, "code": record.code, "signal": record.signal}
