"""The kernel's list of mounts, read without touching any of them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Iterator, NamedTuple, Optional, Tuple

DISKS = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "squashfs"))
"""Types of file systems that one machine has for itself. Their kernel code does not wait for a server."""


class MountEntry(NamedTuple):
    """One line of /proc/self/mountinfo. `mount_id` is unique while the mount lives; `options`: of mount and file
    system together; `root`: which directory of the file system; `stacked`: how many mounts lie one above the other at
    this path; `flags`: of the mount alone."""

    mount_id: int
    device: str
    path: str
    fs_type: str
    source: str
    options: Tuple[str, ...]
    root: str = "/"
    stacked: int = 1
    flags: Tuple[str, ...] = ()

    def option_value_or_none(self, name: str) -> Optional[str]:
        """Value of `name=value` among the options, None when it is not there."""
        for option in self.options:
            key, separator, value = option.partition("=")
            if key == name and separator:
                return value
        return None

    @property
    def read_only(self) -> bool:
        return "ro" in self.options


def unescape_octal(text: str) -> str:
    """The kernel writes space, tab, newline and backslash as three octal digits."""
    if "\\" not in text:
        return text
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


@lru_cache(maxsize=1)
def parse_mountinfo(mountinfo: str) -> Tuple[MountEntry, ...]:
    """Entries in the kernel's order: of two at one path, the later one is what a process sees.

    Kept for the next caller: a check of many mounts reads one list many times.
    """
    return tuple(_iter_entries(mountinfo))


def _iter_entries(mountinfo: str) -> Iterator[MountEntry]:
    # Not splitlines: a path may have what that takes for the end of a line.
    for line in mountinfo.split("\n"):
        mount_text, separator, file_system_text = line.partition(" - ")
        before, after = mount_text.split(" "), file_system_text.split(" ")
        if not separator or len(before) < 6 or len(after) < 3:
            continue
        yield MountEntry(
            mount_id=int(before[0]),
            device=before[2],
            path=unescape_octal(before[4]),
            fs_type=after[0],
            source=unescape_octal(after[1]),
            options=tuple(dict.fromkeys(before[5].split(",") + after[2].split(","))),
            root=unescape_octal(before[3]),
            flags=tuple(before[5].split(",")),
        )


def find_mount_at(mountinfo: str, path: str) -> Optional[MountEntry]:
    """What is mounted at exactly `path`, the topmost; None when nothing is.

    An automount that waits to be touched is not there yet: its line of type autofs is passed over.
    """
    normalized = os.path.normpath(path)
    matches = [entry for entry in parse_mountinfo(mountinfo) if entry.path == normalized and entry.fs_type != "autofs"]
    if matches:
        return matches[-1]._replace(stacked=len(matches))
    return None


def mount_containing_path(mountinfo: str, path: str) -> Optional[MountEntry]:
    """The mount on which `path` lies, which need not exist; links on the way are for the caller. None when unknown.

    Of two mounts on one point, the later covers the earlier.
    """
    best: Optional[MountEntry] = None
    for entry in parse_mountinfo(mountinfo):
        if is_same_or_below(path, entry.path) and (best is None or len(entry.path) >= len(best.path)):
            best = entry
    return best


def is_same_or_below(path: str, directory: str) -> bool:
    """Whether a path is a directory's or that of something in it."""
    return (path + "/").startswith(directory.rstrip("/") + "/")


def read_mountinfo(path: str = "/proc/self/mountinfo") -> str:
    """The kernel's list for this process. Raises OSError."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()
