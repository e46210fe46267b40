"""A lock that lets one `job run` of a job use a checkpoint root at a time.

A batch script may start several `job run`, on roots of their own. ownership.py tells jobs apart, and all `job run` of a
batch script are of one job. They run on one host: each listens on an address of the kernel's (abstract, unix(7)) that
is made of its job and root, and goes with its process. A `job run --local` is a job of its own that Slurm does not
know: it locks a file beside the records of the root, which others can see on every host.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
import time
from typing import Callable, Optional, Protocol

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import JobError, RunIsOwned
from hyperpod_kit.job.step.local_machine import is_local_job
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.system.file_lock import try_lock
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import clean_one_line

_CREDENTIALS = struct.Struct("3i")
_RETRY_INTERVAL = 0.2
_QUEUE = 1024
_ANOTHER_USER = 0


class RootLock(Protocol):
    """What keeps a root for one `job run`."""

    def take(self, job: str, pause: Callable[[float], None], limit: float) -> None:
        """Take the root; wait `limit` seconds at most. Raises RunIsOwned, OSError."""

    def close(self) -> None:
        """Release the root; do nothing where it is not taken."""


def root_lock(job: JobId, options: RunOptions) -> RootLock:
    """Return the lock of this job on its root."""
    if is_local_job(job.slurm_id):
        return LocalRunLock(options.root, options.state)
    return JobRunLock(options.root)


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
                    hint=f"give each of them its own root: --checkpoint-root {self._root}-2",
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


LOCK_FILE = "local.lock"
"""In the directory of the root's records: who runs there without Slurm."""

_LONGEST = 200


class LocalRunLock:
    """Keep a root for this process, which runs without Slurm, from `take` to `close`."""

    def __init__(self, root: str, state: str) -> None:
        self._root = root
        self._path = os.path.join(state, LOCK_FILE)
        self._fd: Optional[int] = None

    def take(self, job: str, pause: Callable[[float], None], limit: float) -> None:
        """Take the root at once. Raises RunIsOwned, JobError."""
        try:
            fd = _open_lock_file(self._path, os.O_RDWR | os.O_CREAT)
            if try_lock(fd):
                self._fd = fd
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{job}, pid {os.getpid()}, on {os.uname().nodename}".encode(), 0)
                return
            owner = clean_one_line(os.pread(fd, _LONGEST, 0).decode("utf-8", "replace"), _LONGEST)
            os.close(fd)
        except OSError as err:
            raise JobError(
                f"cannot lock {self._path}: {err.strerror}",
                hint="check whether the file system is full, read-only or without locks",
            ) from err
        raise RunIsOwned(
            f"{self._root} is used by another `job run --local` ({owner})",
            hint=f"give each of them its own root: --checkpoint-root {self._root}-2",
        )

    def close(self) -> None:
        """Release the root; do nothing where it is not taken."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_local_run_alive(state: str) -> bool:
    """Return whether a `job run --local` has the root of these records now. Raises OSError."""
    try:
        fd = _open_lock_file(os.path.join(state, LOCK_FILE), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)


def _open_lock_file(path: str, flags: int) -> int:
    return by_descriptor.open_own_or_root_file(by_descriptor.resolve_parent(path), flags | os.O_CLOEXEC, 0o640)
