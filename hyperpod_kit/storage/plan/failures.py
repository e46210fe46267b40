"""How often a job fails, counted from its ledger."""

from __future__ import annotations

from pathlib import Path

from hyperpod_kit.errors import UsageError
from hyperpod_kit.job import ledger, ledger_row

FAILURES = ("node_lost", "storage", "stall", "crash")
"""Classes of an attempt's end that training did not want."""


def from_ledger(path: Path) -> float:
    """Seconds of running between two failures, of all jobs of a checkpoint root: `<root>/.hpk/attempts.jsonl`.

    Raises UsageError when it tells nothing: no failure, or nothing that ran. Raises OSError.
    """
    rows = [row for row in ledger.read(str(path)) if not ledger_row.problem(row) and row.get("class")]
    failures = sum(row["class"] in FAILURES for row in rows)
    ran = sum(float(row.get("seconds") or 0) for row in rows)
    if not failures or ran <= 0:
        raise UsageError(
            f"{path} has {failures} failures in {ran / 3600:.1f} h: too little to count from", hint="--mtbf TIME"
        )
    return ran / failures
