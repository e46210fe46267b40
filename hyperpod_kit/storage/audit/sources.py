"""The kinds of logs, and how a file of one is read."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Iterator

from hyperpod_kit.errors import UsageError
from hyperpod_kit.storage.audit import changelog, cloudtrail, node_log, s3_access_log
from hyperpod_kit.storage.audit.record import Entry, Importer

IMPORTERS: dict[str, Importer] = {
    "node": node_log.entries,
    "cloudtrail": cloudtrail.entries,
    "s3-access-log": s3_access_log.entries,
    "changelog": changelog.entries,
}
"""Kind -> what reads it."""


def files(places: tuple[Path, ...]) -> list[Path]:
    """Files, and every file below directories, in a stable order. Raises UsageError."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += sorted(one for one in place.rglob("*") if one.is_file())
        elif place.is_file():
            found.append(place)
        else:
            raise UsageError(f"there is no {place}")
    return found


def read(kind: str, path: Path) -> Iterator[Entry]:
    """Entries of one file, gzip or plain. Raises UsageError when it cannot be read."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        opened = gzip.open if packed else open
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="\n") as file:
            yield from IMPORTERS[kind](file, path.name)
    except (OSError, EOFError) as err:
        raise UsageError(f"cannot read {path}: {err}") from err
