"""EFS access points, which S3 Files has too: a root directory made on first use, and a POSIX user for everyone."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from hyperpod_kit.rehearsal.standins.fuse.background import StartFailed
from hyperpod_kit.rehearsal.standins.passthrough.identity import Identity

SHOWN = "127.0.0.1:/"
"""What efs-utils leaves in /proc/mounts, for EFS and S3 Files alike: its local proxy."""


def denied() -> StartFailed:
    """The server's answer to whoever may not mount."""
    return StartFailed(f"mount.nfs4: access denied by server while mounting {SHOWN}", 32)


def enter(points: Dict[str, Any], point_id: str, file_system: str, base: str) -> Tuple[str, Optional[Identity]]:
    """(directory, POSIX user) of an access point over the file system at `base`. Raises StartFailed.

    `points`: id -> {"FileSystemId", "PosixUser", "RootDirectory"}, as in EFS's API.
    """
    point = points.get(point_id)
    if point is None or point["FileSystemId"] != file_system:
        raise denied()
    return _root(base, point.get("RootDirectory") or {}), _user(point.get("PosixUser"))


def _root(base: str, root: Dict[str, Any]) -> str:
    """The root directory. Without CreationInfo EFS does not make it, and denies the mount."""
    directory = os.path.join(base, root.get("Path", "/").strip("/"))
    if os.path.isdir(directory):
        return directory
    creation = root.get("CreationInfo")
    if not creation:
        raise denied()
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    # Made aside and renamed into place, so that no other node sees it with the wrong owner.
    fresh = f"{directory}.{os.getpid()}.{os.uname().nodename}"
    os.mkdir(fresh)
    os.chown(fresh, int(creation["OwnerUid"]), int(creation["OwnerGid"]))
    os.chmod(fresh, int(str(creation["Permissions"]), 8))
    try:
        os.rename(fresh, directory)
    except OSError:
        os.rmdir(fresh)                 # another node was first, and its users have written already
        if not os.path.isdir(directory):
            raise
    return directory


def _user(user: Optional[Dict[str, Any]]) -> Optional[Identity]:
    if not user:
        return None
    groups: List[int] = [int(group) for group in user.get("SecondaryGids") or []]
    return Identity(int(user["Uid"]), int(user["Gid"]), tuple(groups))
