"""Which kernel mount is the one that we made, and from what: /proc does not say it for every kind.

Volatile (/run), as mounts are. A device number is that of the mounted file system; two mounts that lie at one path
have different ones, in every mount namespace.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import mount_to_dict
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, try_write_volatile_json
from hyperpod_kit.system.mountinfo import MountEntry, find_mount_at
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json


@dataclass(frozen=True)
class MountRecord:
    """`device`: major:minor of the mount that we made; `mount`: its configuration as JSON; `command`: what made it,
    empty where that was not seen."""

    device: str
    mount: Dict[str, Any]
    command: Tuple[str, ...] = ()


def read_record(node: Node, mount: Mount) -> Optional[MountRecord]:
    """Read the record of the mount, None without one that can be read."""
    try:
        return dataclass_from_json(MountRecord, read_json(node.paths.mount_record(mount.name)), ignore_unknown=True)
    except ValueError:
        return None


def replacement_reason(record: Optional[MountRecord], entry: MountEntry) -> str:
    """What became of the mount that we made, in words for a detail; "" while it is the one that is seen."""
    if record is None or record.device == entry.device:
        return ""
    if entry.stacked > 1:
        return "another mount covers ours"
    return "another mount replaced ours"


def record_current_mount_as_kits(node: Node, mount: Mount, command: Sequence[str] = ()) -> None:
    """Record what is mounted at the path now as the kit's, and the command that made it; a record that is
    still true is kept."""
    entry = find_mount_at(read_text(node.paths.mountinfo) or "", mount.path)
    earlier = read_record(node, mount)
    if entry is None or (not command and earlier is not None and earlier.device == entry.device):
        return
    record = MountRecord(entry.device, mount_to_dict(mount), tuple(command))
    try_write_volatile_json(node.paths.mount_record(mount.name), asdict(record))


def delete_record(node: Node, mount: Mount) -> None:
    """Delete the record of the mount: what it was about is gone, or about to be made anew."""
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.mount_record(mount.name))
