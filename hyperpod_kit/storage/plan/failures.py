"""How often a job fails: as published fleets of its size do, or counted from its own ledger."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from hyperpod_kit.errors import UsageError
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.records import ledger, ledger_row
from hyperpod_kit.untrusted.text import counted


class PublishedFleet(NamedTuple):
    """A job or fleet of `gpus` GPUs that failed once in `hours`."""

    name: str
    gpus: int
    hours: float
    source: str

    @property
    def gpu_hours_between_failures(self) -> float:
        """Compute the GPU hours between two failures."""
        return self.gpus * self.hours


FLEETS = (
    PublishedFleet(
        "RSC-1, jobs of 1,024 GPUs",
        1024,
        7.9,
        "Kokolis and others, Revisiting Reliability in Large-Scale Machine Learning Research Clusters, 2024",
    ),
    PublishedFleet("BLOOM", 384, 112.0, "BigScience's model card, 2022: 1 to 2 GPU failures a week, 1.5 taken"),
    PublishedFleet("OPT-175B", 992, 7.5, "G. Lockwood, Job reliability (read 2026-11), of Meta's log book of 2021"),
    PublishedFleet(
        "Llama 3 405B", 16_384, 54 * 24 / 419, "The Llama 3 Herd of Models, 2024: 419 interruptions in 54 days"
    ),
)
"""What is known of sizes; of jobs below some hundred GPUs nothing is published that the kit knows."""


def nearest_fleet(ranks: int) -> PublishedFleet:
    """Find the fleet that is nearest in size, by factor."""
    return min(FLEETS, key=lambda fleet: abs(math.log(fleet.gpus / ranks)))


def estimate_mtbf_seconds_from_fleets(ranks: int) -> tuple[float, str]:
    """Estimate the seconds between two failures of a job of so many GPUs; returns where that is from too."""
    fleet = nearest_fleet(ranks)
    low, high = (choose(published.gpu_hours_between_failures for published in FLEETS) / ranks for choose in (min, max))
    description = (
        f"as {fleet.name}, the published fleet nearest in size ({fleet.source}); others: {low:,.1f} to {high:,.1f} h"
    )
    return fleet.gpu_hours_between_failures / ranks * 3600, description


def measure_mtbf_seconds_from_ledger(path: Path) -> float:
    """Compute the seconds of running between two failures, of all jobs of a checkpoint root:
    `<root>/.hpk/attempts.jsonl`.

    Raises UsageError when it tells nothing: no failure, or nothing that ran. Raises OSError.
    """
    rows = [row for row in ledger.read(str(path)) if not ledger_row.problem(row) and row.get("class")]
    kinds = [OutcomeKind.of_row(row) for row in rows]
    failures = sum(kind is not None and kind.is_failure for kind in kinds)
    ran = sum(float(row.get("seconds") or 0) for row in rows)
    if not failures or ran <= 0:
        raise UsageError(
            f"{path} has {counted(failures, 'failure')} in {ran / 3600:.1f} h: too little for an estimate",
            hint="--mtbf TIME",
        )
    return ran / failures
