"""An admin answers a request: the limit is set first and recorded then, so that what died between is done again."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

from hyperpod_kit.run import Runner
from hyperpod_kit.storage.quota import backends
from hyperpod_kit.storage.quota.backends import QuotaDirectory
from hyperpod_kit.storage.quota.limits import QuotaLimits
from hyperpod_kit.storage.quota.request_box import RequestBox, WaitingRequest
from hyperpod_kit.storage.quota.requests import QuotaDecision, granted, name_of, opened_own

NOBODY = (1 << 32) - 1
"""The kernel's word for a process that no login started."""


def approve(
    box: RequestBox, wanted: str, runner: Runner, *, hard_bytes: int = 0, hard_files: int = 0, dry_run: bool = False
) -> tuple[QuotaDecision, list[list[str]]]:
    """Set what was asked for, or `hard_bytes` and `hard_files` where they are not 0; (the record, what was run).

    Other limits of the directory stay. `dry_run`: say what would be run. Raises QuotaError, RunError, Untrusted,
    OSError.
    """
    with box.deciding():
        waiting = box.find(wanted)
        asked = waiting.request
        directory = opened_own(box.place, asked.directory, waiting.uid)
        try:
            target = QuotaDirectory(asked.directory, directory)
            backend = backends.backend_of(target, runner)
            limits = granted(backend.show(target.anchor).limits, hard_bytes or asked.bytes, hard_files or asked.files)
            if dry_run:
                commands = target.words(backend.commands(target.anchor, limits, 0))
            else:
                commands = backends.apply(backend, target, limits, 0, runner)
        finally:
            os.close(directory)
        decision = _decision(waiting, True, limits, "")
        if not dry_run:
            box.record(decision, waiting)
        return decision, commands


def deny(box: RequestBox, wanted: str, why: str, *, dry_run: bool = False) -> QuotaDecision:
    """Record that nothing changes. Raises QuotaError, OSError."""
    with box.deciding():
        waiting = box.find(wanted)
        decision = _decision(waiting, False, QuotaLimits(), why)
        if not dry_run:
            box.record(decision, waiting)
        return decision


def _decision(waiting: WaitingRequest, approved: bool, limits: QuotaLimits, why: str) -> QuotaDecision:
    request = asdict(waiting.request)
    hard = (limits.hard_bytes, limits.hard_files)
    return QuotaDecision(waiting.id, waiting.uid, request, approved, *hard, why, _who(), time.time())


def _who() -> str:
    """Who has logged in, whatever he has become by sudo since."""
    try:
        uid = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        uid = NOBODY
    return name_of(os.geteuid() if uid == NOBODY else uid)
