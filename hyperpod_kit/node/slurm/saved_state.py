"""What slurmctld has saved in a directory: when, and up to which job number. Of two copies, which one goes on. Pure but
for the reading.

slurmctld writes job_state anew some seconds after a change and when it ends, by way of job_state.new, and keeps the one
before as job_state.old, which it reads where job_state is gone. The file begins the same way from 22.05 to 25.11:

    packed text     "PROTOCOL_VERSION" (a length of 4 bytes, the text, a zero)
    2 bytes         the protocol's number
    8 bytes         when it was written, Unix seconds
    4 bytes         the job number that it will look at next
    8 bytes         since 22.05: when the backfill scheduler last ran
    the jobs        more than 100 bytes each

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import struct
import time
from dataclasses import dataclass
from typing import Optional

from hyperpod_kit.model.slurm_state import StateCopy

VERSION = b"PROTOCOL_VERSION\0"
_HEADER = struct.Struct(">HqI")
_BEFORE_JOBS = 8
"""Bytes that may stand between the header and the first job."""

AHEAD = 300.0
"""Seconds that a copy may have been saved later than this machine's clock says: another machine's clock."""


@dataclass(frozen=True)
class RunningSlurmctld:
    """The slurmctld of this machine, while it runs. `copy`: the one that it works on; `since`: Unix seconds of its
    start; `alone`: from then on no other machine can have saved the shared copy."""

    copy: StateCopy
    since: float
    alone: bool


@dataclass(frozen=True)
class SavedState:
    """What one directory holds. `saved_at`: Unix seconds, None where the file does not begin as slurmctld's do;
    `next_job`: the number that the next job gets at the earliest; `has_jobs`: whether it knows a job; `digest`: of the
    file."""

    directory: str
    digest: str
    saved_at: Optional[int] = None
    next_job: int = 0
    has_jobs: bool = True

    def describe(self) -> str:
        """Return one line about this state, for a person who chooses."""
        if self.saved_at is None:
            return f"{self.directory}: its job_state does not have slurmctld's format"
        when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(self.saved_at))
        if self.has_jobs:
            jobs = ""
        else:
            jobs = ", no job in it"
        return f"{self.directory}: saved {when}, next job number {self.next_job}{jobs}"


def read_saved_state(directory: str) -> Optional[SavedState]:
    """What is saved in that directory; None where there is no state. Raises OSError."""
    for name in ("job_state", "job_state.old"):
        try:
            with open(f"{directory}/{name}", "rb") as stream:
                content = stream.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return parse_job_state(directory, content)
    return None


def parse_job_state(directory: str, content: bytes) -> SavedState:
    """The state whose job_state has that content."""
    digest = hashlib.sha256(content).hexdigest()
    text = struct.pack(">I", len(VERSION)) + VERSION
    end = len(text) + _HEADER.size
    if not content.startswith(text) or len(content) < end:
        return SavedState(directory, digest)
    _, saved_at, next_job = _HEADER.unpack(content[len(text) : end])
    # gmtime takes no number beyond the year 9999 everywhere, and no Slurm was there before 2002.
    if not 1_000_000_000 < saved_at < 253_402_300_800:
        return SavedState(directory, digest)
    return SavedState(directory, digest, saved_at, next_job, len(content) - end > _BEFORE_JOBS)


def choose_state_copy_or_none(
    shared: Optional[SavedState],
    local: Optional[SavedState],
    now: float,
    *,
    is_new_controller: bool = False,
    running: Optional[RunningSlurmctld] = None,
) -> Optional[StateCopy]:
    """Return which copy goes on, None where their ages cannot be compared. `now`: Unix seconds;
    `created`: this controller is being set up for the first time: its own copy has begun on it, and
    is no successor of the shared one; `running`: None where no slurmctld runs here, or nothing is known of
    it."""
    if local is None:
        return StateCopy.SHARED
    if shared is None:
        return StateCopy.LOCAL
    newer = _newer_copy_or_none(shared, local, now, running)
    if newer is None and is_new_controller:
        return StateCopy.SHARED
    return newer


def _newer_copy_or_none(
    shared: SavedState, local: SavedState, now: float, running: Optional[RunningSlurmctld]
) -> Optional[StateCopy]:
    """Return the newer copy, which was saved later and gives the higher job number. Where the two contradict each other
    or were saved in the same second, a copy without any job can be left out and nothing is lost: it is that of a
    slurmctld that has begun anew. Where both give the same number, being saved later proves nothing: a slurmctld that
    was started on an old copy saves it anew."""
    if shared.digest == local.digest:
        return StateCopy.SHARED
    if shared.saved_at is None or local.saved_at is None or max(shared.saved_at, local.saved_at) > now + AHEAD:
        return None
    if _can_be_dropped(local, shared):
        return StateCopy.SHARED
    if _can_be_dropped(shared, local):
        return StateCopy.LOCAL
    order = (local.saved_at > shared.saved_at) - (local.saved_at < shared.saved_at)
    numbers = (local.next_job > shared.next_job) - (local.next_job < shared.next_job)
    if numbers == 0:
        return _proven_successor(shared, local, running)
    if order != numbers:
        return None  # within a second, too, a slurmctld can end on one copy and another begin anew on the other
    if numbers > 0:
        return StateCopy.LOCAL
    return StateCopy.SHARED


def _can_be_dropped(candidate: SavedState, other: SavedState) -> bool:
    """Whether `candidate` knows no job and no number that `other` lacks; not when it may be `other` after its last
    job."""
    assert candidate.saved_at is not None and other.saved_at is not None
    if candidate.has_jobs or candidate.next_job > other.next_job:
        return False
    return not (other.has_jobs and candidate.next_job == other.next_job and candidate.saved_at > other.saved_at)


def _proven_successor(
    shared: SavedState, local: SavedState, running: Optional[RunningSlurmctld]
) -> Optional[StateCopy]:
    """Of two copies that give the same job number, the one that goes on from the other; None where nothing proves it.

    What is proved: the shared copy is the one that is worked on, and the own one was saved earlier; or one slurmctld of
    this machine has saved both, first the shared copy, then its own.
    """
    assert shared.saved_at is not None and local.saved_at is not None
    if running is None:
        return None
    if running.copy == StateCopy.SHARED:
        if shared.saved_at > local.saved_at:
            return StateCopy.SHARED
        return None
    # In the second of its start another one, which has just ended, may have saved it.
    same_process = running.alone and running.since < shared.saved_at
    if same_process and local.saved_at > shared.saved_at:
        return StateCopy.LOCAL
    return None
