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
from hyperpod_kit.storage.quota.request_box import PendingRequest, RequestBox
from hyperpod_kit.storage.quota.requests import (
    QuotaDecision,
    merge_limits,
    open_requestable_directory,
    user_name_or_uid,
)

NOBODY = (1 << 32) - 1
"""The kernel's word for a process that no login started."""


def approve_and_set_limits(
    box: RequestBox, request_id: str, runner: Runner, *, hard_bytes: int = 0, hard_files: int = 0, dry_run: bool = False
) -> tuple[QuotaDecision, list[list[str]]]:
    """Set what was asked for, or `hard_bytes` and `hard_files` where they are not 0; returns the record and what was
    run.

    Other limits of the directory stay. `dry_run`: say what would be run. Raises QuotaError, RunError, Untrusted,
    OSError.
    """
    with box.decision_lock():
        waiting = box.find_pending(request_id)
        request = waiting.request
        directory = open_requestable_directory(box.parent, request.directory, waiting.uid)
        try:
            target = QuotaDirectory(request.directory, directory)
            backend = backends.choose_backend(target, runner)
            limits = merge_limits(
                backend.read_usage(target.proc_fd_path).limits, hard_bytes or request.bytes, hard_files or request.files
            )
            if dry_run:
                commands = target.commands_with_real_path(backend.build_limit_commands(target.proc_fd_path, limits, 0))
            else:
                commands = backends.apply_limits_and_write_note(backend, target, limits, 0, runner)
        finally:
            os.close(directory)
        decision = _make_decision(waiting, True, limits, "")
        if not dry_run:
            box.record_decision_and_remove_request(decision, waiting)
        return decision, commands


def record_denial(box: RequestBox, request_id: str, reason: str, *, dry_run: bool = False) -> QuotaDecision:
    """Record that a request is denied; no limit changes. Raises QuotaError, OSError."""
    with box.decision_lock():
        waiting = box.find_pending(request_id)
        decision = _make_decision(waiting, False, QuotaLimits(), reason)
        if not dry_run:
            box.record_decision_and_remove_request(decision, waiting)
        return decision


def _make_decision(waiting: PendingRequest, approved: bool, limits: QuotaLimits, reason: str) -> QuotaDecision:
    request = asdict(waiting.request)
    hard = (limits.hard_bytes, limits.hard_files)
    return QuotaDecision(waiting.id, waiting.uid, request, approved, *hard, reason, _login_name(), time.time())


def _login_name() -> str:
    """Return who has logged in, whatever he has become by sudo since."""
    try:
        uid = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        uid = NOBODY
    if uid == NOBODY:
        uid = os.geteuid()
    return user_name_or_uid(uid)
