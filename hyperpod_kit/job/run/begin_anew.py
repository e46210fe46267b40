"""`job run --fresh`: begin at step 0 where checkpoints were committed and none of them can be restored.

A job does so once in its life, since its batch script is run again at each requeue, with the same options: a loss of
checkpoints after it began anew holds the job like any other loss. A checkpoint that can be restored is never given up
for it.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from hyperpod_kit.checkpoint.repository.records import fresh_start
from hyperpod_kit.errors import CheckpointError, JobError
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.step.options import RunOptions

EVENT = "fresh"


def is_fresh_start_requested_and_not_yet_used(options: RunOptions, rows: Sequence[Mapping[str, object]]) -> bool:
    """Return whether `--fresh` is set and this job has not begun anew before, by its rows. Pure."""
    return options.fresh and not any(row.get("event") == EVENT for row in rows)


def record_fresh_start(root: str, ledger: Ledger, job: str, reason: str) -> None:
    """Let the root begin anew, without what was committed there, and append that to the ledger. Raises JobError."""
    try:
        fresh_start.record_root_fresh_start(root, by=f"job {job}")
    except (CheckpointError, OSError) as err:
        raise JobError(f"cannot start again on {root}: {err}", hint=f"hyperpod-kit checkpoint ls {root}") from err
    ledger.append(EVENT, why=reason)
