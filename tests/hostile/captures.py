"""Captures in a directory that stands for /dev/shm: root's, sticky, everybody's."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Callable, List

from hyperpod_kit.checkpoint.agent.flush import flush, flush_users
from hyperpod_kit.checkpoint.agent.shm import shm_paths
from tests.faults.capturer import capture
from tests.hostile.users import VICTIM, as_user
from tests.support.wait import MOST, Deadline

DEAD = (2**22 + 1, 1)  # above the kernel's largest pid
JOB = "7"


def lay(base: Path, root: Path, *, uid: int = VICTIM, loose: bool = False, seq: int = 1) -> None:
    """What a dead trainer of that user's leaves; loose: straight in `base`, as builds before 0.1.0 did."""
    root.mkdir(exist_ok=True)
    os.chown(root, uid, uid)

    def work() -> None:
        os.environ["HPK_SHM_DIR"] = str(base)
        capture(str(base) if loose else shm_paths.ensure_user_directory(), str(root), job=JOB, owner=DEAD, seq=seq)

    assert as_user(uid, work) == 0


def flushed(base: Path, *, uid: int = VICTIM, timeout: float = 30.0, job: str = JOB) -> List[flush.FlushOutcome]:
    """As root, for that user. An attack that makes it wait makes this fail."""
    deadline = Deadline(timeout)
    found = flush_users.flush_as(uid, folder=str(base), job=job, timeout=MOST * timeout, max_age=86400.0)
    assert not deadline.has_passed(), "it waited for its deadline"
    return found


def committed(root: Path) -> bool:
    return any("MANIFEST.json" in names for _, _, names in os.walk(root))


def within(seconds: int, work: Callable[[], object]) -> Callable[[], object]:
    """The same work, killed by the kernel when it takes longer."""

    def limited() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        work()

    return limited
