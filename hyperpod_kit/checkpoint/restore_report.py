"""The first rank tells the `job run` above it what all ranks restored, or why they could not (slurm/verdict.py)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from hyperpod_kit.checkpoint.results import Fresh, Restored
from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT
from hyperpod_kit.errors import (
    DigestUnavailable,
    HyperpodKitError,
    NotEnoughSharedMemory,
    NoValidCheckpoint,
    StorageUnreadable,
)
from hyperpod_kit.slurm import verdict
from hyperpod_kit.slurm.verdict import RestoreVerdict

ERRORS_ON_ALL_RANKS = (DigestUnavailable, NotEnoughSharedMemory, NoValidCheckpoint, StorageUnreadable)
"""Errors of a restore that all ranks raise together."""


def report_restored_to_job_run(root: str, got: Restored | Fresh, env: Mapping[str, str] = os.environ) -> None:
    """Write for `job run` what was restored, on the first rank; nothing for another root than the
    job's own."""
    if isinstance(got, Fresh):
        _write_verdict_for_job_root(root, RestoreVerdict(verdict.NONE, rejected=got.rejected), env)
    else:
        _write_verdict_for_job_root(
            root, RestoreVerdict(got.checkpoint_id, got.step, (got.epoch, got.seq), got.tier, got.rejected), env
        )


def report_failure_to_job_run(root: str, err: HyperpodKitError, env: Mapping[str, str] = os.environ) -> None:
    """Write for `job run` why no checkpoint could be restored, on the first rank; nothing for another
    root than the job's own."""
    reasons: tuple[tuple[str, str], ...] = ()
    if isinstance(err, NoValidCheckpoint):
        reasons = err.reasons
    elif isinstance(err, StorageUnreadable):
        reasons = ((err.attempt, err.message),)
    # What to type is for whoever starts the job, and is no command on this node.
    explanation = err.message
    if isinstance(err, NotEnoughSharedMemory):
        explanation = f"{err.message}: {err.hint}"
    _write_verdict_for_job_root(
        root, RestoreVerdict("", rejected=reasons, error=type(err).__name__, why=explanation), env
    )


def _write_verdict_for_job_root(root: str, report: RestoreVerdict, env: Mapping[str, str]) -> None:
    job_root = env.get(HPK_CHECKPOINT_ROOT)
    if not job_root or os.path.realpath(job_root) != os.path.realpath(root):
        return
    try:
        verdict.write_verdict_if_under_job_run(env, report)
    except OSError as err:
        # Without it the budgets of the job count from what `job run` chose, which may be newer.
        warnings.warn(f"`job run` is not told what was restored: {err}", RuntimeWarning, stacklevel=2)
