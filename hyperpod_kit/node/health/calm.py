"""The note by which glance.py knows that nothing has changed. Written by a tick that found nothing at all to do.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Dict, List, Mapping, Optional

from hyperpod_kit.model.mounts import S3Mount
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_volatile
from hyperpod_kit.node.health.check import SLOW_PART
from hyperpod_kit.node.health.glance import FORMAT
from hyperpod_kit.node.health.look import DEEP_EVERY, deep_mode
from hyperpod_kit.node.health.record import HealthRecord


def note(
    node: Node,
    records: Mapping[str, HealthRecord],
    read_only: Mapping[str, bool],
    textfile: str,
    now: float,
    procs: str = "",
    marks: str = "",
    rules: str = "",
) -> None:
    """Write the note, or take it away. read_only: what statvfs said of each mount; textfile: of the metrics, or "";
    procs: a list of processes that must not become empty, or ""; marks: glance.saves, before they were read;
    rules: generation of the packet filter in which ours hold, or ""."""
    text = text_of(node, records, read_only, textfile, now, procs, marks, rules)
    if text is not None:
        with contextlib.suppress(OSError):
            write_volatile(node.paths.calm, text)
            return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(node.paths.calm)


def text_of(
    node: Node,
    records: Mapping[str, HealthRecord],
    read_only: Mapping[str, bool],
    textfile: str,
    now: float,
    procs: str = "",
    marks: str = "",
    rules: str = "",
) -> Optional[str]:
    """The note, None when something is not as it should be, is owed, or cannot be written on a line."""
    if not records or any(record.state != "ok" or record.repairs for record in records.values()):
        return None
    deep = [records[mount.name].deep_at for mount in node.mounts if deep_mode(mount)]
    if not all(deep):
        return None
    places: Dict[str, str] = {}
    for line in (read_text(node.paths.mountinfo) or "").splitlines(keepends=True):
        words = line.split(" ", 5)
        if len(words) == 6:
            places[words[4]] = places.get(words[4], "") + line
    until = min([now, *deep]) + DEEP_EVERY
    bundle = os.readlink(node.paths.bundle) if os.path.islink(node.paths.bundle) else ""
    lines: List[str] = [
        "\t".join(
            (
                FORMAT,
                repr(now),
                repr(until),
                repr(node.config.health.deadline * SLOW_PART),
                bundle,
                textfile,
                procs[len(node.paths.root) :],
                marks,
                rules,
            )
        )
    ]
    for mount in node.mounts:
        place = escaped(os.path.normpath(mount.path))
        # A bucket is never full.
        kind = ("b" if isinstance(mount, S3Mount) else "d") + str(int(read_only[mount.name]))
        fields = (mount.path, place, kind, places.get(place, "").replace("\n", "\x1f"))
        if any(set(field) & {"\t", "\n", "\r"} for field in fields) or not places.get(place):
            return None
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def escaped(path: str) -> str:
    """A path as the kernel writes it in its list of mounts."""
    for char in ("\\", " ", "\t", "\n"):
        path = path.replace(char, f"\\{ord(char):03o}")
    return path
