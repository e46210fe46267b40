"""Read and write attempts.jsonl: what each attempt of a job started from and how it ended.

The file survives a requeue, and the budget of the job is counted from it. `job run` is the one writer. Lines are only
ever appended; a torn last line, which a node that died leaves, is closed and skipped.
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
"""Bytes of a ledger at most: a row has some hundreds, and a job some thousands of rows."""


class Ledger:
    """The ledger of one checkpoint root, as one job reads and writes it.

    `state` is the directory `<root>/.hpk`, `restart` how often Slurm has requeued the job, and `born` the name of this
    run by life.id_of_batch_script_run.
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
        """Return what tells this job from others of its number on the root, equal in all its runs. Raises OSError."""
        if self._life is not None:
            return self._life
        life_id = life.life_of_job_run(read(self.path), self._job, self._restart, self._born)
        # A root that is away looks like one without rows: the name that a requeued run gets then is not kept.
        if life_id != self._born or not self._restart:
            self._life = life_id
        return life_id

    def name(self, number: int) -> str:
        """Return a name for attempt `number` of this run that no other attempt on this root has. Raises OSError."""
        if not self.life():
            return f"{self._job}.{self._restart}.{number}"
        return f"{self._job}-{self.life()}.{self._restart}.{number}"

    def valid_rows_of_this_job(self) -> List[Row]:
        """Return this job's rows, oldest first, without those that no `job run` writes.

        Raises OSError when the file is there and cannot be read.
        """
        life_id = self.life()
        return [
            row
            for row in read(self.path)
            if row.get("job") == self._job and row.get("life", "") == life_id and not ledger_row.problem(row)
        ]

    def append(self, event: str, **fields: Any) -> None:
        """Append a row and put it on disk. Raises JobError: without its ledger a job would retry without end."""
        try:
            life_field: Row = {}
            if self.life():
                life_field["life"] = self.life()
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
            raise JobError(
                f"cannot write {self.path}: {err}", hint="check whether the file system is full or read-only"
            ) from err


_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND


def read(path: str) -> List[Row]:
    """Return all rows of a ledger, none when it does not exist; lines that are no JSON object are skipped.

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
        if line == b"\n":
            continue
        row = decoded(line.decode("utf-8", "replace"))
        if row is not None:
            rows.append(row)
    return rows


def decoded(text: str) -> Optional[Row]:
    """Return the row in a line of a ledger; None for a line that is no JSON object."""
    try:
        return parse_json_object(text)
    except ValueError:
        return None


def _closing(fd: int) -> str:
    """Return a newline when the last line of the file is torn, otherwise ""."""
    size = os.fstat(fd).st_size
    if size == 0:
        return ""
    if os.pread(fd, 1, size - 1) == b"\n":
        return ""
    return "\n"
