"""Groups of users, and the directory that the members of one share.

    /home/vision     a mount of its own: an access point that leaves everyone who he is, at a directory of the group's
    /fsx/vision      a directory on a mount of the cluster, where the group names one

Either is root's and the group's, mode 2770: what is made in it belongs to the group, too, and nobody else gets in. No
private parent is needed as around a home: the server sees the numbers of who asks, and keeps others out by the mode.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

SHARE_MODE = 0o2770
"""Set-group-id: what is made in it belongs to the group."""
ARCHIVE_MODE = 0o700
"""Of a share that is archived, which is root's alone."""


@dataclass(frozen=True)
class Group:
    """A group that exists with the same number on every node.

    members: names of users; mounts: names of mounts on which it has a directory, none meaning an access point beside
    the homes where there are homes; archived: nobody is a member and nobody gets in, and every file stays.
    """

    name: str
    gid: int
    members: Tuple[str, ...] = ()
    mounts: Tuple[str, ...] = ()
    archived: bool = False

    @property
    def directory_mode(self) -> int:
        """Return the mode of the group's directory."""
        if self.archived:
            return ARCHIVE_MODE
        return SHARE_MODE

    @property
    def directory_gid(self) -> int:
        """Return the gid that the group's directory belongs to: root's once it is archived."""
        if self.archived:
            return 0
        return self.gid


def share_path(base: str, group: str) -> str:
    """Where the directory of a group is, below a mount or beside the homes."""
    return f"{base.rstrip('/')}/{group}"


def share_mount_name(group: Group) -> str:
    """Name of the mount of an access point. Group names may hold what mount names may not; numbers are unique."""
    if "_" not in group.name:
        return f"share-{group.name}"
    return f"share-{group.gid}"
