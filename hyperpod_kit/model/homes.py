"""Where a user's home directory on shared storage is mounted, and what keeps the others out of it.

    /home/.homes/alice          the private parent: root, group of alice, mode 0710, on the node's own disk
    /home/.homes/alice/home     the mount: an access point that acts as alice whoever asks
    /home/alice                 a symbolic link to the mount; what /etc/passwd names

An access point with a POSIX user does every operation as that user, and the kernel's NFS client leaves the decision to
the server: mode 0700 on the mounted directory keeps nobody of this node out. What does is a directory above it that
only its owner may pass.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import posixpath

PRIVATE_PARENTS = ".homes"
"""Directory beside the homes that holds their private parents."""
PRIVATE_PARENT_MODE = 0o710


def home_mount_path(base: str, user: str) -> str:
    """Where the home of `user` is mounted, for homes at `base`/<user>."""
    return f"{base.rstrip('/')}/{PRIVATE_PARENTS}/{user}/home"


def home_mount_name(user: str, uid: int) -> str:
    """Return the name of the mount of a user's home: `home-USER`, or `home-UID` for a name with an
    underscore.

    User names may hold what mount names may not; uids are unique.
    """
    if "_" not in user:
        return f"home-{user}"
    return f"home-{uid}"


def private_parent_of(mounted_at: str) -> str:
    """Return the directory above the mount at `mounted_at` that only its user can pass."""
    return posixpath.dirname(mounted_at)


def home_path_of_mount(mounted_at: str) -> str:
    """Return the home directory whose symbolic link leads to the mount at `mounted_at`."""
    parent = private_parent_of(mounted_at)
    return posixpath.join(posixpath.dirname(posixpath.dirname(parent)), posixpath.basename(parent))
