"""Go back to an earlier checkpoint, at the next start (`job rewind ROOT ATTEMPT`) or now (`job run --from ATTEMPT`)."""

from __future__ import annotations

import time
from typing import Tuple

from hyperpod_kit.checkpoint.repository.records import catalog, rollbacks
from hyperpod_kit.checkpoint.repository.records.rollbacks import Rollback
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError, JobError, RunIsOwned
from hyperpod_kit.job.records import state_place
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.run import ownership
from hyperpod_kit.run import Runner

EVENT = "rewound"


def rewind(root: str, attempt: str, runner: Runner, by: str) -> Rollback:
    """Let the next start on the root go on from `attempt`.

    Raises RunIsOwned while a job uses the root, since what it goes on to save would be left too; Unreachable,
    CheckpointError, OSError.
    """
    # Read before the check for a live job: what a job begins from now on is not left.
    epoch = catalog.highest_epoch_and_seq(open_store(root))[0]
    owner, word = _live_job_on_root_and_its_state(root, runner)
    if owner:
        raise RunIsOwned(
            f"{root} is used by job {owner}, which is {word}: the checkpoints that it saves from now on would be "
            "ignored too",
            hint=f"scancel {owner}, then repeat the command",
        )
    return _record(root, attempt, by, epoch)


def _live_job_on_root_and_its_state(root: str, runner: Runner) -> Tuple[str, str]:
    """Return the live job on the root, as ownership.py does; ("", "") for a root of which no job has kept records."""
    try:
        state = state_place.state_directory_of_root(root)
    except JobError:
        return "", ""
    return ownership.live_job_on_root_and_its_state(runner, state, time.sleep)


def rewind_once_for_job(root: str, attempt: str, ledger: Ledger, job: str) -> bool:
    """Let a job that has the root go on from `attempt`, and return whether that was done now.

    A job goes back once in its life: its script is run again at each requeue, and must not go back again. Raises
    JobError, CheckpointError, OSError.
    """
    if any(row.get("event") == EVENT and row.get("from") == attempt for row in ledger.valid_rows_of_this_job()):
        return False
    _record(root, attempt, f"job {job}", catalog.highest_epoch_and_seq(open_store(root))[0])
    ledger.append(EVENT, **{"from": attempt})
    return True


def _record(root: str, attempt: str, by: str, epoch: int) -> Rollback:
    for _ in range(10):
        try:
            return rollbacks.pin_and_record_rollback(open_store(root), attempt, epoch, by)
        except FileExistsError:
            continue
    raise CheckpointError(
        f"{root}: other processes keep rewinding it at the same time", hint="find the other processes"
    )
