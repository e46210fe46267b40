"""One agent per rank and run on a node: an flock that the kernel drops with the process.

A new start takes over from the agent of a dead trainer (SIGUSR2: stop, leave everything as it is). It never takes
over from an agent whose trainer lives.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from typing import Optional, Tuple

from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.errors import CheckpointError, RunIsOwned, Untrusted
from hyperpod_kit.system import process
from hyperpod_kit.system.file_lock import try_lock
from hyperpod_kit.system.process import Process, is_alive, this_process
from hyperpod_kit.untrusted import by_descriptor, files, parse
from hyperpod_kit.untrusted.safe_open import open_own_single_link_file

STOP = signal.SIGUSR2
NOBODY = Process(0, 0)
_CONTENT = 4096
_TRIES = 100
_POLL = 0.02

FLUSHING = 90.0
"""Seconds that an agent's start waits for a flush that gets on; its trainer waits for the agent a little longer."""

_STILL = 10.0
"""Seconds without a sign after which a flush does not get on any more."""


class Lock:
    """A held lock. `release` also removes the file, while it is still held. `renew`: its holder gets on with its work,
    which those that wait for the lock see by the age of the file."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def touch_lock_file(self) -> None:
        """Set the modification time of the lock's file to now: its holder gets on."""
        with contextlib.suppress(OSError):
            os.utime(self._fd)

    def release(self) -> None:
        """Remove the lock's file and release the lock."""
        with contextlib.suppress(OSError):
            by_descriptor.unlink(self._path)
        os.close(self._fd)


def try_acquire(path: str, trainer: Process = NOBODY) -> Optional[Lock]:
    """The lock, or None when somebody holds it. Raises NotEnoughSharedMemory, Untrusted, OSError."""
    try:
        return _try_acquire(path, trainer)
    except OSError as err:
        if err.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
            raise
        raise shm_slots.no_space_error(path, err) from None


def _try_acquire(path: str, trainer: Process) -> Optional[Lock]:
    fd = _open_or_create_own(path)
    try:
        # The holder before us may have removed the file: then this lock is on nothing.
        if try_lock(fd) and os.fstat(fd).st_nlink:
            # Written over and cut then: a page that is there already is had even where no memory is left.
            os.ftruncate(fd, os.pwrite(fd, json.dumps([list(this_process()), list(trainer)]).encode(), 0))
            return Lock(path, fd)
    except BaseException:
        if os.fstat(fd).st_size == 0:
            with contextlib.suppress(OSError):
                by_descriptor.unlink(path)
        os.close(fd)
        raise
    os.close(fd)
    return None


def _open_or_create_own(path: str) -> int:
    """The lock's file, made where there is none. Only a file of ours says who is to be ended: raises Untrusted for
    anything else in its place, OSError."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            return files.create_exclusively(path)
        with contextlib.suppress(FileNotFoundError):
            return open_own_single_link_file(path, os.O_RDWR)[0]
    raise CheckpointError(f"{path} is created and removed repeatedly", hint=f"ls -l {path}")


class HolderSigns:
    """The signs by which a lock's holder shows that it gets on: each sets the time of the file.

    The time itself is believed only at the first look: the node's clock may be set meanwhile, and then a sign counts
    from when it was seen.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._last_mtime: Optional[int] = None
        self._since = 0.0

    def seconds_since_sign(self) -> float:
        """Return the seconds since the holder's last sign.

        0 where there is no file: its holder has just released the lock. Infinite where the file cannot be looked at.
        """
        try:
            mtime = os.lstat(self._path).st_mtime_ns
        except FileNotFoundError:
            return 0.0
        except OSError:
            return float("inf")
        if self._last_mtime is None:
            self._since = time.monotonic() - max(0.0, time.time() - mtime / 1e9)
        elif mtime != self._last_mtime:
            self._since = time.monotonic()
        self._last_mtime = mtime
        return time.monotonic() - self._since


def read_agent_and_trainer(path: str) -> Optional[Tuple[Process, Process]]:
    """Return (agent, trainer) as the lock's file names them; None when it does not, or is not ours."""
    try:
        fd, _ = open_own_single_link_file(path, os.O_RDONLY)
        try:
            agent, trainer = parse.parse_json(os.pread(fd, _CONTENT, 0))
        finally:
            os.close(fd)
        return Process(*map(int, agent)), Process(*map(int, trainer))
    except (OSError, Untrusted, ValueError, TypeError):
        return None


def acquire_ending_stale_agent(
    path: str, trainer: Process, *, grace: float = 10.0, flush_timeout: float = FLUSHING
) -> Lock:
    """Acquire the lock for `trainer`, ending a dead trainer's agent if there is one.

    A flush, which has no trainer, is not ended while it gets on, for `flush_timeout` seconds: what other
    nodes have handed in is of use with its part only. Raises RunIsOwned when a live trainer holds it,
    CheckpointError when the old agent does not go, Untrusted.
    """
    started_at = waiting_since = time.monotonic()
    signs = HolderSigns(path)
    signalled: Optional[Process] = None
    while True:
        lock = try_acquire(path, trainer)
        if lock is not None:
            return lock
        current_holder = read_agent_and_trainer(path)
        if (
            signalled is None
            and time.monotonic() - started_at < flush_timeout
            and _is_flush_progressing(signs, current_holder)
        ):
            waiting_since = time.monotonic()
            time.sleep(_POLL)
            continue
        waited = time.monotonic() - waiting_since
        if current_holder is not None and is_alive(current_holder[0]):
            agent, owner = current_holder
            if owner != trainer and is_alive(owner):
                raise RunIsOwned(
                    f"process {owner.pid} on this node trains this run and rank",
                    hint=f"stop process {owner.pid} first, or use another root",
                )
            if waited > grace:
                sign = signal.SIGKILL
            else:
                sign = STOP
            if signalled != agent or sign == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    if process.effective_uid(agent.pid) == os.geteuid():
                        os.kill(agent.pid, sign)
                signalled = agent
        if waited > 2 * grace:
            raise CheckpointError(f"the agent that holds {path} does not end")
        time.sleep(_POLL)


def _is_flush_progressing(signs: HolderSigns, current_holder: Optional[Tuple[Process, Process]]) -> bool:
    """Whether a flush holds it, and is not standing still."""
    return (
        current_holder is not None
        and current_holder[1] == NOBODY
        and is_alive(current_holder[0])
        and signs.seconds_since_sign() < _STILL
    )
