"""Who a process is: user, command, Slurm job; read while it stands still, and remembered for what it does later.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import pwd
import re
from collections import OrderedDict
from typing import Dict, NamedTuple, Optional

MOST = 65536
"""Processes that are remembered; the oldest are forgotten."""
_LOADER = re.compile(r"ld-linux|ld\.so|ld-musl|ld[0-9.-]+\.so")
_JOB = re.compile(r"/(?:job_|job)(\d+)(?:/|$)", re.M)
_JOB_VARIABLE = re.compile(rb"(?:^|\0)SLURM_JOB_ID=(\d{1,12})(?:\0|$)")


class Identity(NamedTuple):
    """`job`: "" for none; `job_by`: `cgroup`, which a user cannot leave, or `environment`, which he can write; `seen`:
    `earlier` where the process was gone, and this is what it was at its last open or exec."""

    uid: int
    user: str
    command: str
    job: str
    job_by: str
    seen: str = ""


class ProcessTable:
    """Users are read at once: while a process stands still, nothing may be opened that is audited itself."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._users: Dict[int, str] = {account.pw_uid: account.pw_name for account in pwd.getpwall()}
        self._identities: OrderedDict[int, Identity] = OrderedDict()

    def read_and_cache_identity(self, pid: int, program: str = "") -> Optional[Identity]:
        """Read who a process is now, and cache it; None when it is gone. `program`: what it is about to become."""
        job, by = self._slurm_job_id_and_source(
            pid
        )  # before the state: who is alive after that was alive when it was read
        try:
            with open(f"{self._proc}/{pid}/status", encoding="utf-8", errors="replace") as file:
                status = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
            uid = int(status["Uid"].split()[3])  # of file accesses
        except (OSError, KeyError, ValueError, IndexError):
            return None
        if status.get("State", "").strip()[:1] in ("Z", "X") and pid in self._identities:
            return self._identities[pid]._replace(seen="earlier")  # its environment is gone, and soon its control group
        command = os.path.basename(program) or status.get("Name", "").strip()
        if _LOADER.match(command) and pid in self._identities:
            # Opened for the program that was named just before.
            command = self._identities[pid].command
        identity = Identity(uid, self._users.get(uid, ""), command, job, by)
        self._identities[pid] = identity
        self._identities.move_to_end(pid)
        if len(self._identities) > MOST:
            self._identities.popitem(last=False)
        return identity

    def current_or_cached_identity(self, pid: int) -> Optional[Identity]:
        """Return who a process is, else who it was when it was last read; None when neither is known."""
        now = self.read_and_cache_identity(pid)
        if now is not None or pid not in self._identities:
            return now
        return self._identities[pid]._replace(seen="earlier")

    def _slurm_job_id_and_source(self, pid: int) -> tuple[str, str]:
        try:
            with open(f"{self._proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
                match = _JOB.search(file.read())
            if match:
                return match[1], "cgroup"
            with open(f"{self._proc}/{pid}/environ", "rb") as raw:
                named = _JOB_VARIABLE.search(raw.read(1 << 20))
            if named:
                return (named[1].decode(), "environment")
            return ("", "")
        except OSError:
            return "", ""
