"""One node's copy: chunks as they come, each with its digest in a journal; a file takes its place when it is whole.

Who starts again finds what is there by the journal, and believes nothing that it has not read and compared.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import threading
from typing import Dict, List, Set

from hyperpod_kit.errors import JobError
from hyperpod_kit.job.fan_out.listing import OWN, CopyPlan
from hyperpod_kit.system import atomic_file, file_lock

_JOURNAL, _LOCK = "journal", "lock"


def digest_of(data: memoryview) -> str:
    """What a chunk is known by."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Destination:
    """`folder` on this node's own disk. Safe for threads. Raises JobError, OSError."""

    def __init__(self, folder: str, plan: CopyPlan) -> None:
        self._folder, self._plan = folder, plan
        self._own = os.path.join(folder, OWN)
        os.makedirs(self._own, exist_ok=True)
        self._held = os.open(os.path.join(self._own, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not file_lock.try_lock(self._held):
            raise JobError(
                f"another node or command copies to {folder} at this moment",
                hint="DST has to be on each node's own disk: '/scratch/$SLURMD_NODENAME' has each node's name in it",
            )
        self._lock = threading.Lock()
        self._left: List[int] = [0] * len(plan.files)
        for piece in plan.pieces:
            self._left[piece.file] += 1
        self._digests: Dict[int, str] = {}
        self._whole: Set[int] = set()
        self.found = 0
        """Bytes that an earlier start had brought here, and that are what they were."""
        before = self._journal(plan.mark)
        self._room(before)
        self._log = open(os.path.join(self._own, _JOURNAL), "a", encoding="ascii")  # noqa: SIM115 - as long as we are
        if not before:
            self._log.write(plan.mark + "\n")
            self._log.flush()
        self._take_up(before)
        for number, left in enumerate(self._left):
            if not left and number not in self._whole:
                self._finish(number)

    def _journal(self, mark: str) -> Dict[int, str]:
        """What an earlier start has noted; of another source nothing is kept."""
        path = os.path.join(self._own, _JOURNAL)
        with contextlib.suppress(OSError):
            with open(path, encoding="ascii", errors="replace") as file:
                lines = file.read().splitlines()
            if lines and lines[0] == mark:
                noted = [line.split(" ") for line in lines[1:]]
                return {int(one[0]): one[1] for one in noted if len(one) == 2 and one[0].isdigit()}
        for name in os.listdir(self._own):
            if name != _LOCK:
                os.unlink(os.path.join(self._own, name))
        return {}

    def _room(self, before: Dict[int, str]) -> None:
        need = sum(piece.end - piece.begin for number, piece in enumerate(self._plan.pieces) if number not in before)
        free = shutil.disk_usage(self._folder).free
        if need > free:
            raise JobError(f"{self._folder} has {free} bytes free, and {need} are to come")

    def _take_up(self, before: Dict[int, str]) -> None:
        for number, digest in sorted(before.items()):
            if not number < len(self._plan.pieces):
                continue
            with contextlib.suppress(OSError):
                data = self.read(number)
                if digest_of(data) == digest:
                    self._noted(number, digest)
                    self.found += len(data)
        for file in {self._plan.pieces[number].file for number in self._digests}:
            if self._left[file] and not os.path.exists(self._part(file)):
                atomic_file.take_place(
                    self._target(file), self._part(file)
                )  # it is not what it was: it is mended, and comes back

    # --- chunks -------------------------------------------------------------------------------------------------

    def has(self, number: int) -> bool:
        """Whether that chunk is here."""
        return number in self._digests

    def digest(self, number: int) -> str:
        """What the chunk that is here is known by."""
        return self._digests[number]

    def read(self, number: int) -> memoryview:
        """A chunk's bytes, as they lie here. Raises OSError."""
        try:
            return self._read(number)
        except FileNotFoundError:  # it took its place in this moment
            return self._read(number)

    def _read(self, number: int) -> memoryview:
        piece = self._plan.pieces[number]
        data = bytearray(piece.end - piece.begin)
        at = 0
        with open(self._place(piece.file), "rb", buffering=0) as file:
            while at < len(data):
                got = os.preadv(file.fileno(), [memoryview(data)[at:]], piece.begin + at)
                if not got:
                    raise OSError(f"{file.name} ends at {piece.begin + at}")
                at += got
        return memoryview(data)

    def write(self, number: int, data: memoryview) -> None:
        """A chunk that was compared. Raises OSError."""
        piece = self._plan.pieces[number]
        fd = os.open(self._part(piece.file), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            at = 0
            while at < len(data):
                at += os.pwrite(fd, data[at:], piece.begin + at)
        finally:
            os.close(fd)
        digest = digest_of(data)
        with self._lock:
            self._log.write(f"{number} {digest}\n")
            self._log.flush()
            self._noted(number, digest)
            done = not self._left[piece.file]
        if done:
            self._finish(piece.file)

    def _noted(self, number: int, digest: str) -> None:
        if number not in self._digests:
            self._digests[number] = digest
            self._left[self._plan.pieces[number].file] -= 1

    # --- files --------------------------------------------------------------------------------------------------

    def _part(self, file: int) -> str:
        return os.path.join(self._own, f"{file}.part")

    def _target(self, file: int) -> str:
        return os.path.join(self._folder, self._plan.files[file].name)

    def _place(self, file: int) -> str:
        """Where its bytes are at this moment."""
        part = self._part(file)
        return part if file not in self._whole and os.path.exists(part) else self._target(file)

    def _finish(self, file: int) -> None:
        """All of it is here: it is made durable, and takes its place."""
        about, part, target = self._plan.files[file], self._part(file), self._target(file)
        if about.size and not os.path.exists(part):  # an earlier start has put it there
            with contextlib.suppress(OSError):
                seen = os.lstat(target)
                if stat.S_ISREG(seen.st_mode) and seen.st_size == about.size:
                    self._whole.add(file)
                    return
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, about.size)
            os.fchmod(fd, about.mode | stat.S_IRUSR)
        finally:
            os.close(fd)
        os.utime(part, ns=(about.changed, about.changed))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        atomic_file.take_place(part, target)
        self._whole.add(file)

    @property
    def complete(self) -> bool:
        """Whether every file is in its place."""
        return len(self._whole) == len(self._plan.files)
