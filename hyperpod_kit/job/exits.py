"""How each rank really ended: `<state>/exits/<attempt>/<rank>.json`, written by a wrapper around the rank's command.

srun cannot be asked: after --kill-on-bad-exit it reports 137 or 143, whatever the rank that failed first said.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from hyperpod_kit.slurm.progress import VARIABLE, Progress

AGAIN = 75
"""A rank's exit code for `saved, run me again`."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Exit:
    """One rank's end. `code` is None when `signal` killed it; times are Unix seconds.

    step: the last one that it is known to have completed.
    """

    rank: int
    node: str
    boot_id: str
    code: Optional[int]
    signal: Optional[int]
    started: float
    ended: float
    step: Optional[int] = None

    @property
    def good(self) -> bool:
        """Ended by itself with 0."""
        return self.code == 0

    @property
    def again(self) -> bool:
        """Saved and wants to run again."""
        return self.code == AGAIN


def directory(state: str, attempt: str) -> str:
    """Where an attempt's records lie."""
    return os.path.join(state, "exits", attempt)


def read(state: str, attempt: str) -> List[Exit]:
    """The records that are there, earliest end first. A record that is not complete is skipped. Raises OSError."""
    place = directory(state, attempt)
    found: List[Exit] = []
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return found
    for name in names:
        with contextlib.suppress(ValueError, TypeError, FileNotFoundError), \
                open(os.path.join(place, name), encoding="utf-8") as file:
            found.append(Exit(**json.load(file)))
    return sorted(found, key=lambda record: (record.ended, record.rank))


def write(state: str, attempt: str, record: Exit) -> None:
    """Write a record once; an earlier one of the same rank stays (HyperPod retries a step under one attempt name).

    One write to a new file and no rename, so that it works on any file system. Raises OSError.
    """
    place = directory(state, attempt)
    os.makedirs(place, mode=0o750, exist_ok=True)
    data = json.dumps(asdict(record)).encode()
    for number in range(100):
        name = f"{record.rank}.json" if number == 0 else f"{record.rank}.{number}.json"
        try:
            fd = os.open(os.path.join(place, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        except FileExistsError:
            continue
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        return


def run_rank(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a rank's command, write how it ended, return the exit code for srun (128 + signal after a signal).

    75 is returned as 0: srun would kill the ranks that are still saving. The record keeps the 75.
    """
    began = time.time()
    progress = Progress()
    # Slurm signals every process of a step, the command included; the wrapper only has to outlive it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, _ignore)
    try:
        child = subprocess.Popen(list(argv), env={**env, VARIABLE: progress.path},
                                 preexec_fn=_dies_with(os.getpid()))
    except OSError as err:
        print(f"hyperpod-kit: cannot start {argv[0]}: {err.strerror}", file=sys.stderr)
        code = 127 if isinstance(err, FileNotFoundError) else 126
    else:
        code = child.wait()
    record = Exit(rank=_number(env, "SLURM_PROCID"), node=env.get("SLURMD_NODENAME") or os.uname().nodename,
                  boot_id=_boot_id(), code=code if code >= 0 else None, signal=-code if code < 0 else None,
                  started=round(began, 3), ended=round(time.time(), 3), step=progress.read())
    state, attempt = env.get("HPK_STATE"), env.get("HPK_ATTEMPT")
    if state and attempt:
        try:
            write(state, attempt, record)
        except OSError as err:
            print(f"hyperpod-kit: no exit record of rank {record.rank}: {err}", file=sys.stderr)
    if code == AGAIN:
        return 0
    return code if code >= 0 else 128 - code


def describe(record: Exit) -> Dict[str, Any]:
    """For the report: who ended how."""
    return {"rank": record.rank, "node": record.node, "code": record.code, "signal": record.signal}


def _ignore(number: int, frame: Any) -> None:
    """A handler and not SIG_IGN: ignored signals would be inherited by the command."""


def _dies_with(parent: int) -> Callable[[], None]:
    """For preexec_fn: the command must not outlive its wrapper, or it would write beside the next attempt's ranks."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return arm


def _boot_id() -> str:
    """Tells a replaced machine from its predecessor of the same name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else 0
