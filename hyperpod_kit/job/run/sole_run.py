"""A lock that lets one `job run` of a job use a checkpoint root at a time.

A batch script may start several `job run`, on roots of their own. ownership.py tells jobs apart, and all `job run` of a
batch script are of one job. They run on one host: each listens on an address of the kernel's (abstract, unix(7)) that
is made of its job and root, and goes with its process.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
import time
from typing import Callable, Optional

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import RunIsOwned

_CREDENTIALS = struct.Struct("3i")
_RETRY_INTERVAL = 0.2
_QUEUE = 1024
_ANOTHER_USER = 0


class JobRunLock:
    """Keep a root for this process from `take` to `close`."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._socket: Optional[socket.socket] = None

    def take(self, job: str, pause: Callable[[float], None], limit: float) -> None:
        """Take the root; wait for the end of another `job run` that has it, `limit` seconds at most.

        `pause` waits so many seconds, and a signal ends it before. Raises RunIsOwned, OSError.
        """
        address = _address(self._root, job)
        end = time.monotonic() + limit
        resumes = 0.0  # a pause that ends before it was ended by a signal, and so will be all that follow
        owner: Optional[int] = None
        while not self._try_bind(address):
            if owner is None:
                owner = _owner(address)  # once: no process takes our connection off the queue of that socket
            if owner == _ANOTHER_USER:
                return  # anybody may take any address: that says nothing of this job
            now = time.monotonic()
            if now >= end or now < resumes:
                who = f"pid {owner}, on {os.uname().nodename}"
                raise RunIsOwned(
                    f"{self._root} is used by another `job run` of this job ({who})",
                    hint=f"give each of them a root of its own: --checkpoint-root {self._root}-2",
                )
            resumes = now + _RETRY_INTERVAL / 2
            pause(_RETRY_INTERVAL)

    def close(self) -> None:
        """Release the root; do nothing where it is not taken."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _try_bind(self, address: str) -> bool:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address)
        except OSError as err:
            listener.close()
            if err.errno != errno.EADDRINUSE:
                raise
            return False
        listener.listen(_QUEUE)
        self._socket = listener
        return True


def _address(root: str, job: str) -> str:
    name = root
    if is_path(root):
        name = os.path.realpath(root)
    digest = hashlib.sha256(os.fsencode(f"{job}\0{name}")).hexdigest()
    return f"\0hpk-job-run-{os.geteuid()}-{digest[:32]}"


def _owner(address: str) -> Optional[int]:
    """Return the pid of the process that listens there, None without one (any more), `_ANOTHER_USER` for others'."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(address)
        except (BlockingIOError, socket.timeout):
            return _ANOTHER_USER  # its queue is full: no `job run` of ours comes to that
        except OSError:
            return None
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.geteuid():
        return _ANOTHER_USER
    return int(pid)
