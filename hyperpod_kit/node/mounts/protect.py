"""nosuid and nodev on everything that comes over a network or out of a process.

The flags are this node's own, part of how it mounts and not of the file system: they are set on a mount that people
work in without it going away, ours and HyperPod's alike. What neither is gets a warning.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

from hyperpod_kit import audit
from hyperpod_kit.errors import RunError
from hyperpod_kit.model.mounts.base import PROTECTED, Mount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.system.mountinfo import MountEntry, find_mount_at, parse_mountinfo

FOREIGN = (
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "smb3",
    "virtiofs",
    "wekafs",
)
"""Types of file systems whose contents others than this node's kernel make; and every `fuse.…`."""

FROM_KERNEL = ("nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime", "ro", "rw", "nosymfollow")
"""Flags of a mount as mount(8) takes them: a remount that does not name one takes it away."""


class Unprotected(NamedTuple):
    """A mount that lacks flags which it should have. configured_name: the mount of the configuration that lies there,
    or ""."""

    path: str
    what: str
    missing_flags: Tuple[str, ...]
    configured_name: str

    @property
    def message(self) -> str:
        """What is wrong, and the way out."""
        if self.configured_name:
            remedy = "hyperpod-kit node apply on the node sets them"
        else:
            remedy = (
                f"mount -o remount,bind,{','.join(PROTECTED)} {self.path}, and set the same options where it is "
                "configured (fstab)"
            )
        return (
            f"{self.path} ({self.what}) is mounted without {','.join(self.missing_flags)}: any account that its "
            f"server accepts as root can put programs there that run as root on this node; {remedy}"
        )


def try_set_protective_flags(node: Node, mount: Mount) -> bool:
    """Remount what lies at the mount's path with its protective flags where they are missing; True when that
    was done. Never fails: `find_unprotected` reports, at every check, a mount whose flags cannot be set."""
    entry = find_mount_at(read_text(node.paths.mountinfo) or "", mount.path)
    if entry is None:
        return False
    missing = _flags_missing_from(entry, mount.expected_protective_flags())
    if not missing:
        return False
    flags = [flag for flag in entry.flags if flag in FROM_KERNEL] + list(missing)
    try:
        # `bind`: the mount's own flags only. Nothing is asked of a server that may not answer.
        node.runner.run(["mount", "-o", f"remount,bind,{','.join(flags)}", mount.path], timeout=30)
    except RunError:
        return False
    audit.record_root_action_in_journal(
        "remounted", mount.path, f"it lacked {','.join(missing)}", asked_by=f"mount {mount.name}"
    )
    return True


def missing_protective_flags(node: Node, mount: Mount) -> Tuple[str, ...]:
    """Return the flags that what lies at the mount's path should have and has not; none while nothing lies
    there."""
    entry = find_mount_at(read_text(node.paths.mountinfo) or "", mount.path)
    if entry is None:
        return ()
    return _flags_missing_from(entry, mount.expected_protective_flags())


def _flags_missing_from(entry: MountEntry, expected: Sequence[str]) -> Tuple[str, ...]:
    return tuple(flag for flag in expected if flag not in entry.flags)


def find_unprotected(node: Node) -> List[Unprotected]:
    """Every mount of this node that others can put programs of root into, the topmost of each place."""
    mounts = {mount.path.rstrip("/"): mount for mount in node.mounts}
    entries_by_path = {entry.path: entry for entry in parse_mountinfo(read_text(node.paths.mountinfo) or "")}
    unprotected_mounts = []
    for path, entry in entries_by_path.items():
        mount = mounts.get(path)
        if mount is None and not has_foreign_contents(entry):
            continue
        missing = _flags_missing_from(entry, PROTECTED if mount is None else mount.expected_protective_flags())
        if missing and entry.fs_type != "autofs":
            unprotected_mounts.append(
                Unprotected(path, f"{entry.fs_type} from {entry.source}", missing, mount.name if mount else "")
            )
    return unprotected_mounts


def has_foreign_contents(entry: MountEntry) -> bool:
    """Whether the contents of a mount come from elsewhere than this node's disks and kernel."""
    return entry.fs_type in FOREIGN or entry.fs_type.startswith("fuse.")
