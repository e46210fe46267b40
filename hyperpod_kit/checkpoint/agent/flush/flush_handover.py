"""What the Epilog hands over: the captures of one ended job on this node, until they are on storage.

The Epilog holds up Slurm and has a deadline; this has none while bytes move. It runs in a unit of its own
(hyperpod-kit-flush@): neither the end of the job, whose control group takes all its processes along, nor a restart of
slurmd ends it. As root, and for each try as the job's user.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from typing import Callable, List, NamedTuple, Optional, Set

from hyperpod_kit.checkpoint.agent.flush import flush, flush_users
from hyperpod_kit.checkpoint.agent.flush.flush import FlushOutcome
from hyperpod_kit.checkpoint.agent.flush.flush_progress import Sign
from hyperpod_kit.environment import HPK_ROOT
from hyperpod_kit.errors import UsageError
from hyperpod_kit.system.wait import BackOff, poll_until
from hyperpod_kit.untrusted import by_descriptor

LIMIT = 3600.0
"""Seconds in all; after it the timer of hyperpod-kit-memory.service comes back to what is left."""

PAUSES = BackOff(2.0, 30.0)
"""Between two tries: of storage that is away it is not known when it is back."""

ANNOUNCED = 40.0
"""Seconds that the Epilog waits until storage knows what will come, of the 60 that Slurm gives it."""

UNIT = "hyperpod-kit-flush@{}.service"
ANNOUNCEMENT = "/run/hyperpod-kit/flush-{}"
"""Made when storage knows what will come. As the unit has it."""

_ENDED = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})(?:\.([0-9]{1,10}))?")


class EndedJob(NamedTuple):
    """One run of a job, and whose it was."""

    job: str
    restart: int
    uid: int
    gid: Optional[int]

    def __str__(self) -> str:
        return ".".join(map(str, self if self.gid is not None else self[:3]))


def parse_ended_job(text: str) -> EndedJob:
    """Parse `JOB.RESTART.UID[.GID]`, the instance of the unit. Raises UsageError."""
    match = _ENDED.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} does not name an ended job", hint="JOB.RESTART.UID or JOB.RESTART.UID.GID, all numbers"
        )
    job, restart, uid, gid = match.groups()
    return EndedJob(job, int(restart), int(uid), int(gid) if gid else None)


def start_flush_and_await_announcement(
    ended: EndedJob,
    *,
    folder: str,
    max_age: float,
    say: Callable[[str], None],
    seconds: float = ANNOUNCED,
) -> int:
    """Start the flush of an ended job, and return once it is announced on storage, or has ended: 0; 1 when
    neither is so after `seconds`.

    The unit hyperpod-kit-flush@ flushes. Where systemd has no such unit, a process in a session of its own
    does the same. It lives in the control group of the caller, which is slurmd's, unless Slurm runs its
    hooks in the job (PrologFlags=RunInJob).
    """
    announce = os.environ.get(HPK_ROOT, "") + ANNOUNCEMENT.format(ended)
    by_descriptor.unlink(announce, missing_ok=True)
    unit = UNIT.format(ended)
    by_systemd = _systemctl("start", "--no-block", unit) is not None
    if by_systemd:
        child = 0
    else:
        child = _fork_detached_flush(ended, folder, max_age, announce)

    def over() -> bool:
        if os.path.exists(announce):
            return True
        if by_systemd:
            state = _systemctl("show", "--property=ActiveState", "--value", unit)
            return state is not None and not state.startswith("activ")
        return os.waitpid(child, os.WNOHANG)[0] == child

    is_announced = poll_until(over, bool, BackOff(0.05, 0.5), seconds=seconds)
    by_descriptor.unlink(announce, missing_ok=True)
    if not is_announced:
        say(
            f"the captures of this node are not announced on storage after {seconds:g} s; "
            f"{unit if by_systemd else child} continues"
        )
    if is_announced:
        return 0
    return 1


def _systemctl(*arguments: str) -> Optional[str]:
    """What it printed; None when it failed, or there is none."""
    try:
        completed = subprocess.run(
            ["systemctl", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout


def _fork_detached_flush(ended: EndedJob, folder: str, max_age: float, announcement_path: str) -> int:
    """Fork a process in a session of its own that flushes the job and logs to syslog; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        import syslog  # of where there is no systemd alone

        os.setsid()
        os.chdir("/")
        null_device = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null_device, descriptor)
        syslog.openlog("hyperpod-kit")
        say: Callable[[str], None] = lambda text: syslog.syslog(syslog.LOG_NOTICE, text)  # noqa: E731
        code = flush_job_until_saved(
            ended, folder=folder, max_age=max_age, announcement_path=announcement_path, say=say
        )
    finally:
        os._exit(code)


def flush_job_until_saved(
    ended: EndedJob,
    *,
    folder: str,
    max_age: float,
    announcement_path: str,
    say: Callable[[str], None],
    limit: float = LIMIT,
    stall: float = flush.STALL,
    pauses: BackOff = PAUSES,
) -> int:
    """Flush the captures of an ended job until nothing is left here that could be saved, a new start has taken
    it over, or `limit` seconds are over.

    Returns the exit code, see flush.exit_code: 0 when all is on storage, or was worth nothing.
    `announcement_path`: a file that is made as soon as a start from that storage can see that something is
    coming. Raises OSError when shared memory cannot be listed.
    """
    end = time.monotonic() + limit
    announced = Announcement(announcement_path)
    reported: Set[str] = set()
    given_up: List[FlushOutcome] = []
    tries = 0
    try:
        while True:
            outcomes = flush_users.flush_as(
                ended.uid,
                folder=folder,
                job=ended.job,
                timeout=max(1.0, end - time.monotonic()),
                max_age=max_age,
                gid=ended.gid,
                asked_by=f"Epilog of job {ended.job}",
                stall=stall,
                on_progress=announced.on_sign,
            )
            for message in _take_messages_not_yet_reported(outcomes, reported):
                say(f"job {ended.job}: {message}")
            given_up += [outcome for outcome in outcomes if outcome.lost]
            tries += 1
            worth_it = any(outcome.again and not outcome.removed for outcome in outcomes)
            if not worth_it or time.monotonic() + pauses.pause_seconds(tries) >= end:
                return flush.exit_code([*given_up, *outcomes])
            time.sleep(pauses.pause_seconds(tries))
    finally:
        announced.create_file_once()


def _take_messages_not_yet_reported(outcomes: List[FlushOutcome], reported: Set[str]) -> List[str]:
    messages = [f"{outcome.run}: {outcome.note}{'' if outcome.removed else '; it stays'}" for outcome in outcomes]
    new = [word for word in messages if word not in reported]
    reported.update(new)
    return new


class Announcement:
    """A file that is made once, and taken away by who waits for it; "" for none."""

    def __init__(self, path: str) -> None:
        self._path = path

    def on_sign(self, sign: Sign) -> None:
        if sign.announced:
            self.create_file_once()

    def create_file_once(self) -> None:
        path, self._path = self._path, ""
        if path:
            with contextlib.suppress(OSError):
                by_descriptor.touch(path, 0o600)
