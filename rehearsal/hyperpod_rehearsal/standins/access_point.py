"""EFS access points, which S3 Files has too: a root directory made on first use, and a POSIX user for everyone."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from hyperpod_rehearsal.standins.fuse.background import StartFailed
from hyperpod_rehearsal.standins.passthrough.identity import PosixIdentity

SHOWN = "127.0.0.1:/"
"""What efs-utils leaves in /proc/mounts, for EFS and S3 Files alike: its local proxy."""

_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_libc = ctypes.CDLL(None, use_errno=True)


def mount_denied_error() -> StartFailed:
    """Return the error of a mount that the server denies."""
    return StartFailed(f"mount.nfs4: access denied by server while mounting {SHOWN}", 32)


def prepare_access_point(
    points: Dict[str, Any], point_id: str, file_system: str, base: str
) -> Tuple[str, Optional[PosixIdentity]]:
    """Return (directory, POSIX user) of an access point over the file system at `base`. Raises StartFailed.

    The directory is created when the access point has CreationInfo.
    `points`: id -> {"FileSystemId", "PosixUser", "RootDirectory"}, as in EFS's API.
    """
    point = points.get(point_id)
    if point is None or point["FileSystemId"] != file_system:
        raise mount_denied_error()
    return _ensure_root_directory(base, point.get("RootDirectory") or {}), _posix_identity(point.get("PosixUser"))


def _ensure_root_directory(base: str, root: Dict[str, Any]) -> str:
    """Return the root directory, created if need be.

    Without CreationInfo EFS does not create it and denies the mount.
    """
    directory = os.path.join(base, root.get("Path", "/").strip("/"))
    if os.path.isdir(directory):
        return directory
    creation = root.get("CreationInfo")
    if not creation:
        raise mount_denied_error()
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    # Made aside and moved into place, so that no other node sees it with the wrong owner.
    fresh = tempfile.mkdtemp(prefix=f".{os.path.basename(directory)}.", dir=os.path.dirname(directory))
    try:
        os.chown(fresh, int(creation["OwnerUid"]), int(creation["OwnerGid"]))
        os.chmod(fresh, int(str(creation["Permissions"]), 8))
        _rename_without_replacing(fresh, directory)
    except OSError as err:
        os.rmdir(fresh)
        # EEXIST: another node was first, and its users may have written already.
        if err.errno != errno.EEXIST or not os.path.isdir(directory):
            raise
    return directory


def _rename_without_replacing(source: str, target: str) -> None:
    """rename(2) that never replaces: the plain one puts a directory in the place of an empty one, and a node that has
    that one open then serves a directory that no longer exists. Raises OSError, EEXIST when the name is taken."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _posix_identity(user: Optional[Dict[str, Any]]) -> Optional[PosixIdentity]:
    if not user:
        return None
    groups: List[int] = [int(group) for group in user.get("SecondaryGids") or []]
    return PosixIdentity(int(user["Uid"]), int(user["Gid"]), tuple(groups))
