"""As whom the threads of the daemon touch files: the caller, or always an access point's POSIX user.

The kernel keeps fsuid, fsgid and supplementary groups per thread; with an fsuid other than 0 a thread also loses
root's capabilities over files. So the real file system underneath enforces what EFS enforces on its servers: root
is squashed, chown is EPERM, another user's 0600 file is EACCES.
"""

from __future__ import annotations

import ctypes
import os
import stat
import threading
import time
from typing import Dict, NamedTuple, Optional, Tuple

from hyperpod_rehearsal.standins.fuse.wire import FuseRequest

_libc = ctypes.CDLL(None, use_errno=True)
# glibc's setgroups changes all threads of a process; the system call changes the calling one.
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159}.get(os.uname().machine, 0)
GROUPS_TTL = 1.0
"""Seconds for which a process's supplementary groups are remembered."""


class PosixIdentity(NamedTuple):
    """A POSIX user: `groups` are the supplementary ones."""

    uid: int
    gid: int
    groups: Tuple[int, ...] = ()


NOBODY = PosixIdentity(65534, 65534)


class Identities:
    """Switches threads. `squash`: the identity of everyone, or None for each caller's own.

    root_squash: whoever would be uid 0 is nobody, also when an access point says 0: EFS without ClientRootAccess.
    """

    def __init__(self, squash: Optional[PosixIdentity], *, root_squash: bool = False) -> None:
        if not _SETGROUPS:
            raise RuntimeError(f"no number of the setgroups system call for {os.uname().machine}")
        self.squash = squash
        self.root_squash = root_squash
        self._thread = threading.local()
        self._groups: Dict[Tuple[int, int, int], Tuple[float, Tuple[int, ...]]] = {}

    def assume_caller_identity(self, request: FuseRequest) -> PosixIdentity:
        """Make this thread act for the caller of a request; returns the identity it has now."""
        identity = self.squash or PosixIdentity(request.uid, request.gid, self._supplementary_groups(request))
        if self.root_squash and identity.uid == 0:
            identity = NOBODY
        if getattr(self._thread, "identity", None) != identity:
            _switch_thread_identity(identity)
            self._thread.identity = identity
        return identity

    def _supplementary_groups(self, request: FuseRequest) -> Tuple[int, ...]:
        """Supplementary groups of the calling process; its group alone when it is gone or not of this node."""
        key = (request.pid, request.uid, request.gid)
        now = time.monotonic()
        cached = self._groups.get(key)
        if cached is not None and now - cached[0] < GROUPS_TTL:
            return cached[1]
        groups: Tuple[int, ...] = (request.gid,)
        try:
            with open(f"/proc/{request.pid}/status", "rb") as status:
                for line in status:
                    if line.startswith(b"Groups:"):
                        groups = tuple(int(word) for word in line.split()[1:])
                        break
        except OSError:
            pass
        if len(self._groups) > 4096:
            self._groups.clear()
        self._groups[key] = (now, groups)
        return groups


def _switch_thread_identity(identity: PosixIdentity) -> None:
    _libc.setfsuid(0)
    groups = (ctypes.c_uint32 * len(identity.groups))(*identity.groups)
    if _libc.syscall(_SETGROUPS, len(identity.groups), groups):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    _libc.setfsgid(identity.gid)
    _libc.setfsuid(identity.uid)


def may_access(identity: PosixIdentity, status: os.stat_result, mask: int) -> bool:
    """access(2) by mode bits alone. mask: R_OK, W_OK, X_OK added up."""
    mode = status.st_mode
    if identity.uid == 0:
        return not mask & os.X_OK or stat.S_ISDIR(mode) or bool(mode & 0o111)
    if identity.uid == status.st_uid:
        mode >>= 6
    elif status.st_gid == identity.gid or status.st_gid in identity.groups:
        mode >>= 3
    return mode & mask == mask
