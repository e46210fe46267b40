"""attempts.jsonl: what each attempt of a job started from and how it ended. It survives a requeue: it is the budget.

One writer, `job run`. Lines are only ever appended; a torn last line (the node died) is closed and skipped.
"""

from __future__ import annotations

import errno
import io
import json
import os
import time
from typing import Any, Callable, Dict, List, Optional

from hyperpod_kit.errors import JobError, Untrusted
from hyperpod_kit.job.records import ledger_row, life
from hyperpod_kit.untrusted import by_descriptor, files
from hyperpod_kit.untrusted.parse import parse_json_object

Row = Dict[str, Any]

LARGEST = 64 << 20
"""Bytes of a ledger: a row has some hundreds, and a job some thousands of rows."""


class Ledger:
    """The ledger of one checkpoint root, seen by one job.

    `state`: the directory `<root>/.hpk`; `born`: of life.id_of_batch_script_run.
    """

    def __init__(
        self, state: str, job_id: str, restart: int, *, born: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self.path = os.path.join(state, "attempts.jsonl")
        self._job = job_id
        self._restart = restart
        self._born = born
        self._life: Optional[str] = None
        self._clock = clock

    def life(self) -> str:
        """Tells this job from others of its number on this root, in every run of it. Raises OSError as `rows`."""
        if self._life is not None:
            return self._life
        life_id = life.life_of_job_run(read(self.path), self._job, self._restart, self._born)
        # A root that is away looks like one without rows, so that is no answer to keep.
        self._life = life_id if life_id != self._born or not self._restart else None
        return life_id

    def name(self, number: int) -> str:
        """A name for attempt `number` of this run that no other attempt on this root has. Raises OSError as `rows`."""
        return f"{self._job}{'-' if self.life() else ''}{self.life()}.{self._restart}.{number}"

    def valid_rows_of_this_job(self) -> List[Row]:
        """This job's rows, oldest first, without those that no `job run` writes.

        Raises OSError when the file is there and cannot be read.
        """
        life_id = self.life()
        return [
            row
            for row in read(self.path)
            if row.get("job") == self._job and row.get("life", "") == life_id and not ledger_row.problem(row)
        ]

    def append(self, event: str, **fields: Any) -> None:
        """Add a row and put it on disk. Raises JobError: without its ledger a job would retry without end."""
        try:
            life_field = {"life": self.life()} if self.life() else {}
            row = {
                "t": round(self._clock(), 3),
                "job": self._job,
                **life_field,
                "restart": self._restart,
                "event": event,
                **fields,
            }
            fd = by_descriptor.open_own_or_root_file(by_descriptor.resolve_parent(self.path), _APPEND, 0o640)
            try:
                data = (_closing(fd) + json.dumps(row) + "\n").encode()
                if os.write(fd, data) != len(data):
                    raise OSError("short write")
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as err:
            raise JobError(f"cannot write {self.path}: {err}", hint="is the file system full or read-only?") from err


_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND


def read(path: str) -> List[Row]:
    """All rows of a ledger, none when it does not exist; lines that are no JSON object are skipped.

    Raises OSError, also when it is no regular file or larger than LARGEST.
    """
    rows: List[Row] = []
    try:
        data = files.read_small_regular_file(path, LARGEST)
    except FileNotFoundError:
        return rows
    except Untrusted as err:
        raise OSError(errno.EINVAL, err.message, path) from None
    # One line at a time: a file of nothing but ends of lines would take eight times its size as a list.
    for line in io.BytesIO(data):
        row = decoded(line.decode("utf-8", "replace")) if line != b"\n" else None
        if row is not None:
            rows.append(row)
    return rows


def decoded(text: str) -> Optional[Row]:
    """A line of a ledger; None for one that is no JSON object."""
    try:
        return parse_json_object(text)
    except ValueError:
        return None


def _closing(fd: int) -> str:
    """A newline when the last line of the file was torn."""
    size = os.fstat(fd).st_size
    return "\n" if size and os.pread(fd, 1, size - 1) != b"\n" else ""
