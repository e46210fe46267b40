"""The copy on one node: a journal has the digest of every chunk written; a file is moved into place when complete.

A later start finds the chunks that are present by the journal, and counts only those that it has read and compared. DST
may lie where other users can write (a scratch directory of mode 1777), so it has to be this user's own, and everything
in it is reached by descriptors.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from typing import Dict, List, Sequence, Set, Tuple

from hyperpod_kit.errors import JobError, Untrusted
from hyperpod_kit.job.fan_out.listing import STATE_DIRECTORY_NAME, CopyPlan
from hyperpod_kit.system import file_lock
from hyperpod_kit.untrusted import owned_directory
from hyperpod_kit.untrusted.owned_directory import OwnedDirectory

_JOURNAL, _LOCK = "journal", "lock"
_LONGEST_JOURNAL = 256 << 20


def digest_of(data: memoryview) -> str:
    """Return the digest of a chunk: BLAKE2b of 16 bytes, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _parse_journal_lines(lines: Sequence[str]) -> Dict[int, str]:
    """Return the digest of each chunk; lines of another form are passed over."""
    digests: Dict[int, str] = {}
    for line in lines:
        fields = line.split(" ")
        if len(fields) == 2 and fields[0].isdigit():
            digests[int(fields[0])] = fields[1]
    return digests


class Destination:
    """The copy in `folder` on this node's own disk, resumed where an earlier start has begun it. Safe for threads.

    Raises JobError where another command copies there or the space is too small, Untrusted where the folder is another
    user's, OSError.
    """

    def __init__(self, folder: str, plan: CopyPlan) -> None:
        self._plan = plan
        self._top = OwnedDirectory.open_or_make(folder)
        self._state_directory = self._top.ensure_directory(STATE_DIRECTORY_NAME)
        self._lock_file = self._state_directory.open(_LOCK, os.O_RDWR | os.O_CREAT)
        if not file_lock.try_lock(self._lock_file):
            raise JobError(
                f"another node or command is copying to {folder}",
                hint="DST must be on each node's own disk, or contain the node's name: '/scratch/$SLURMD_NODENAME'",
            )
        self._lock = threading.Lock()
        self._missing_chunk_counts: List[int] = [0] * len(plan.files)
        for piece in plan.pieces:
            self._missing_chunk_counts[piece.file] += 1
        self._digests: Dict[int, str] = {}
        self._finished_files: Set[int] = set()
        self.resumed_bytes = 0
        """Bytes of an earlier start that were read again and match their digests."""
        before = self._read_journal_or_clear(plan.digest_of_source_state)
        self._raise_if_too_little_space(before)
        journal = self._state_directory.open(_JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._log = os.fdopen(journal, "a", encoding="ascii")
        if not before:
            self._log.write(plan.digest_of_source_state + "\n")
            self._log.flush()
        self._verify_journaled_chunks(before)
        for number, missing_count in enumerate(self._missing_chunk_counts):
            if not missing_count and number not in self._finished_files:
                self._finish(number)

    def _read_journal_or_clear(self, plan_digest: str) -> Dict[int, str]:
        """Return the digests of an earlier start's journal; clear the state of a copy of another source."""
        with contextlib.suppress(OSError):
            journal = owned_directory.read_file_cut_at(self._state_directory, _JOURNAL, _LONGEST_JOURNAL)
            lines = journal.decode("ascii", "replace").splitlines()
            if lines and lines[0] == plan_digest:
                return _parse_journal_lines(lines[1:])
        self._state_directory.clear(keep=(_LOCK,))
        return {}

    def _raise_if_too_little_space(self, journaled_digests: Dict[int, str]) -> None:
        need = sum(
            piece.end - piece.begin for number, piece in enumerate(self._plan.pieces) if number not in journaled_digests
        )
        free = self._top.free_bytes()
        if need > free:
            raise JobError(f"{self._top.path} has {free} bytes free, and {need} are still to be copied")

    def _verify_journaled_chunks(self, journaled_digests: Dict[int, str]) -> None:
        for number, digest in sorted(journaled_digests.items()):
            if not number < len(self._plan.pieces):
                continue
            with contextlib.suppress(OSError, Untrusted):
                data = self.read(number)
                if digest_of(data) == digest:
                    self._count_chunk_as_present(number, digest)
                    self.resumed_bytes += len(data)
        for file in {self._plan.pieces[number].file for number in self._digests}:
            if self._missing_chunk_counts[file] and not self._state_directory.status(self._part(file)):
                # The file in place has changed: it is moved back, and completed anew.
                self._state_directory.move_from(self._top, self._target(file), self._part(file))

    # --- chunks -------------------------------------------------------------------------------------------------

    def has(self, number: int) -> bool:
        """Return whether the chunk is present."""
        return number in self._digests

    def digest(self, number: int) -> str:
        """Return the digest of a chunk that is present."""
        return self._digests[number]

    def read(self, number: int) -> memoryview:
        """Return a chunk's bytes as they are on disk. Raises OSError."""
        try:
            return self._read(number)
        except FileNotFoundError:  # the file was moved into place at this moment
            return self._read(number)

    def _read(self, number: int) -> memoryview:
        piece = self._plan.pieces[number]
        data = bytearray(piece.end - piece.begin)
        at = 0
        tree, name = self._current_directory_and_name(piece.file)
        handle = tree.open(name, os.O_RDONLY)
        try:
            while at < len(data):
                count = os.preadv(handle, [memoryview(data)[at:]], piece.begin + at)
                if not count:
                    raise OSError(f"{tree.path_of(name)} ends at {piece.begin + at}")
                at += count
        finally:
            os.close(handle)
        return memoryview(data)

    def write_chunk_and_finish_file(self, number: int, data: memoryview) -> None:
        """Write a chunk that was compared, and finish its file when it was the last one. Raises OSError."""
        piece = self._plan.pieces[number]
        fd = self._state_directory.open(self._part(piece.file), os.O_WRONLY | os.O_CREAT)
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
            self._count_chunk_as_present(number, digest)
            is_file_complete = not self._missing_chunk_counts[piece.file]
        if is_file_complete:
            self._finish(piece.file)

    def _count_chunk_as_present(self, number: int, digest: str) -> None:
        if number not in self._digests:
            self._digests[number] = digest
            self._missing_chunk_counts[self._plan.pieces[number].file] -= 1

    # --- files --------------------------------------------------------------------------------------------------

    @staticmethod
    def _part(file: int) -> str:
        return f"{file}.part"

    def _target(self, file: int) -> str:
        return self._plan.files[file].name

    def _current_directory_and_name(self, file_number: int) -> Tuple[OwnedDirectory, str]:
        """Return the directory that has the file's bytes at this moment, and its name there."""
        part = self._part(file_number)
        if file_number not in self._finished_files and self._state_directory.status(part):
            return self._state_directory, part
        return self._top, self._target(file_number)

    def _finish(self, file: int) -> None:
        """Set size, mode and time of a file that has all of its chunks, and move it into place, durably."""
        about, part, target = self._plan.files[file], self._part(file), self._target(file)
        if about.size and not self._state_directory.status(part):  # an earlier start has put it there
            present = self._top.status(target)
            if present and stat.S_ISREG(present.st_mode) and present.st_size == about.size:
                self._finished_files.add(file)
                return
        fd = self._state_directory.open(part, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(fd, about.size)
            # Not S_ISUID and S_ISGID: another user's file would become a program that acts as this user.
            os.fchmod(fd, (about.mode & 0o777) | stat.S_IRUSR)
            os.utime(fd, ns=(about.changed, about.changed))
        finally:
            os.close(fd)
        self._top.move_from(self._state_directory, part, target)
        self._finished_files.add(file)

    @property
    def complete(self) -> bool:
        """Whether every file is in its place."""
        return len(self._finished_files) == len(self._plan.files)
