"""The raw logs of the jobs on a checkpoint root, followed while a job runs, for callers that read them repeatedly.

Each call reads only what was appended since the one before. Rows of a rank count from the beginning of its process, so
rows between two others can be dropped at no cost but resolution; the number of rows in memory is limited.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.goodput import job_time, time_rows
from hyperpod_kit.job.goodput.job_time import RunKey, RunLog
from hyperpod_kit.job.goodput.time_rows import RunRow, TimeRow
from hyperpod_kit.job.records import ledger, ledger_row
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.untrusted import files

MOST_ROWS = 16384
"""Most rows of ranks in memory, of all attempts together: some 20 MB."""

_LEAST_THINNED = 16
"""Rows up to which an attempt is not thinned."""

_TRAINING = (Phase.STEP, Phase.SAVE, Phase.EVALUATION)
"""Phases that alternate while an attempt trains."""


class FollowedRows:
    """Rank 0's rows of one attempt. `is_closed`: no more rows are read, as none is appended any more."""

    def __init__(self, state: str, attempt: str) -> None:
        self._file = FollowedFile(time_rows.path(state, attempt), time_rows.LARGEST, time_rows.decoded)
        self.rows: List[TimeRow] = []
        self.is_closed = False

    @property
    def has_last_row(self) -> bool:
        """Whether the rank's last row is here; a row from another node may become visible late."""
        return bool(self.rows) and self.rows[-1].over

    def read_new(self) -> None:
        """Read the rows that are new; drop all where the file is absent, untrusted or another one. Raises OSError."""
        try:
            rows, anew = self._file.read_new()
        except (FileNotFoundError, Untrusted):
            self.rows = []
            return
        if anew:
            self.rows = []
        self.rows += rows

    def thin(self) -> int:
        """Drop each second row that lies between two of the same stage, and return how many were dropped."""
        rows = self.rows
        if len(rows) <= _LEAST_THINNED:
            return 0
        remaining: List[TimeRow] = []
        for index, row in enumerate(rows):
            is_dropped = index % 2 == 1 and _lies_within_a_stage(rows, index)
            if not is_dropped:
                remaining.append(row)
        self.rows = remaining
        return len(rows) - len(self.rows)


def _lies_within_a_stage(rows: Sequence[TimeRow], index: int) -> bool:
    """Return whether the row and its two neighbours are of the same stage."""
    if index + 1 >= len(rows):
        return False
    stages = {_stage(row) for row in rows[index - 1 : index + 2]}
    return len(stages) == 1


def _stage(row: TimeRow) -> Tuple[object, ...]:
    """Return the stage that the process is in; the phases of _TRAINING are one stage."""
    phase = row.phase
    if phase in _TRAINING:
        phase = Phase.STEP
    return (row.launch, row.began, row.reports, row.over, phase)


def _ledger_row(line: bytes) -> Optional[ledger.Row]:
    row = ledger.decoded(line.decode("utf-8", "replace"))
    if row is None or ledger_row.problem(row):
        return None
    return row


class FollowedRoot:
    """The logs of one root. `state`: the directory of the records. Not safe for threads."""

    def __init__(self, state: str, most_rows: int = MOST_ROWS) -> None:
        self._state, self._most_rows = state, most_rows
        self._ledger = FollowedFile(os.path.join(state, "attempts.jsonl"), ledger.LARGEST, _ledger_row)
        self._ledger_rows: List[ledger.Row] = []
        self._run_rows: Dict[RunKey, RunRow] = {}
        self._attempts: Dict[str, FollowedRows] = {}

    def runs(self) -> List[RunLog]:
        """Read what is new and return every run on the root, as root_time.runs_in does. Raises OSError."""
        self._follow_ledger()
        self._follow_runs()
        self._follow_attempts()
        self._thin()
        times = {name: attempt.rows for name, attempt in self._attempts.items()}
        return job_time.logs_of(self._ledger_rows, times, self._run_rows)

    def _follow_ledger(self) -> None:
        try:
            rows, anew = self._ledger.read_new()
        except FileNotFoundError:
            rows, anew = [], True
        except Untrusted as err:
            raise OSError(errno.EINVAL, err.message, self._state) from None
        if anew:
            self._ledger_rows, self._run_rows, self._attempts = [], {}, {}
        self._ledger_rows += rows

    def _follow_runs(self) -> None:
        for key in {job_time.run_key(row) for row in self._ledger_rows} - self._run_rows.keys():
            run_row = time_rows.read_run(self._state, time_rows.run_name(*key))
            if run_row is not None:
                self._run_rows[key] = run_row

    def _follow_attempts(self) -> None:
        names = [
            str(row["attempt"]) for row in self._ledger_rows if row.get("event") == "attempt" and row.get("attempt")
        ]
        for name in dict.fromkeys(names):
            if name not in self._attempts:
                try:
                    self._attempts[name] = FollowedRows(self._state, name)
                except ValueError:
                    continue
            if not self._attempts[name].is_closed:
                self._attempts[name].read_new()
        # Once a later attempt has begun, an earlier one with its last row is not read again.
        ended = {row.get("attempt") for row in self._ledger_rows if row.get("event") == "ended"}
        for name in names[:-1]:
            attempt = self._attempts.get(name)
            if attempt is not None and name in ended and attempt.has_last_row:
                attempt.is_closed = True

    def _thin(self) -> None:
        """Drop rows until the limit is kept, those of the oldest attempts first."""
        total = sum(len(attempt.rows) for attempt in self._attempts.values())
        before = total + 1
        while self._most_rows < total < before:
            before = total
            for attempt in self._attempts.values():
                if total <= self._most_rows:
                    return
                total -= attempt.thin()


# Reads a file of lines while other processes append to it: each call reads only the lines that are new.
#
# A file that was truncated, rotated, replaced or rewritten in its place is read from its beginning. An inode's number
# is reused as soon as it is free, so the first and the last bytes that were read are compared too.

LONGEST_LINE = 1 << 20
"""Most bytes of a line; a longer line is passed over."""

_PIECE = 1 << 18
_SAMPLE = 256
"""Bytes at both ends of the part that was read, by which a rewritten file is recognised."""


class NewLines(NamedTuple):
    """Decoded whole lines. `anew`: they are the first ones of the file, and the lines of earlier calls are void."""

    lines: List[Any]
    anew: bool


class FollowedFile:
    """One file by its name. `most`: bytes it may have.

    `decoded`: decodes a line without its end, None for one to leave out. It is called for each line at once, as the
    list of lines of a file of nothing but line ends would take eight times the file's size.
    """

    def __init__(self, path: str, most: int, decoded: Callable[[bytes], Any] = bytes) -> None:
        self._path, self._most, self._decoded = path, most, decoded
        self._forget()

    def _forget(self) -> None:
        self._identity: Tuple[int, int] = (0, 0)
        self._offset = 0
        self._head = self._tail = b""
        self._in_long_line = False

    def read_new(self) -> NewLines:
        """Return the lines that were appended since the last call.

        Raises FileNotFoundError, Untrusted, OSError; after the first two nothing of the file counts as read.
        """
        try:
            descriptor, facts = files.open_regular_file_to_read(self._path)
        except (FileNotFoundError, Untrusted):
            self._forget()
            raise
        try:
            if facts.st_size > self._most:
                self._forget()
                raise files.too_large_error(self._path, facts.st_size, self._most)
            identity = (facts.st_dev, facts.st_ino)
            anew = not self._is_the_same(descriptor, identity, facts.st_size)
            if anew:
                self._forget()
                self._identity = identity
            return NewLines(self._read(descriptor, facts.st_size), anew)
        finally:
            os.close(descriptor)

    def _is_the_same(self, descriptor: int, identity: Tuple[int, int], size: int) -> bool:
        if identity != self._identity or size < self._offset:
            return False
        if os.pread(descriptor, len(self._head), 0) != self._head:
            return False
        tail_at = self._offset - len(self._tail)
        return os.pread(descriptor, len(self._tail), tail_at) == self._tail

    def _read(self, descriptor: int, size: int) -> List[Any]:
        """Return the decoded lines up to the last whole one; the rest is still being written."""
        lines: List[Any] = []
        pending = b""
        at = self._offset
        while at < size:
            piece = os.pread(descriptor, min(_PIECE, size - at), at)
            if not piece:
                break
            at += len(piece)
            *complete, pending = (pending + piece).split(b"\n")
            if self._in_long_line and complete:
                self._in_long_line = False
                del complete[0]
            decoded_lines = (self._decoded(line) for line in complete if 0 < len(line) <= LONGEST_LINE)
            lines += (decoded_line for decoded_line in decoded_lines if decoded_line is not None)
            if self._in_long_line or len(pending) > LONGEST_LINE:
                self._in_long_line = True
                pending = b""
        self._offset = at - len(pending)
        self._head = os.pread(descriptor, min(_SAMPLE, self._offset), 0)
        self._tail = os.pread(descriptor, min(_SAMPLE, self._offset), max(0, self._offset - _SAMPLE))
        return lines
