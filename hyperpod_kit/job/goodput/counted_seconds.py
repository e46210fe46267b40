"""Counters of a job's time for Prometheus: seconds by cause that only grow, so that rates add up over jobs.

A step that is done counts in `steps`; when a later start does it again, its seconds count in `twice` as well. So the
seconds of steps that lasted are those of `steps` less those of `twice`. Counters begin at 0 with each run of the batch
script.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict

from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.time_table import TimeTable

STEPS = "steps"


class CountedSeconds:
    """The counters of one run of the batch script. `before`: the job's table when the run began."""

    def __init__(self, before: TimeTable) -> None:
        self._before = _by_name(before.gpu_seconds)
        self._counted: Dict[str, float] = {}

    def raise_counters_to(self, table: TimeTable) -> Dict[str, float]:
        """Raise the counters to the table and return GPU-seconds by name, none of them less than at an earlier call."""
        for name, seconds in _by_name(table.gpu_seconds).items():
            grown = max(0.0, seconds - self._before.get(name, 0.0))
            self._counted[name] = max(self._counted.get(name, 0.0), round(grown, 1))
        return dict(self._counted)


def _by_name(seconds: Dict[TimeCause, float]) -> Dict[str, float]:
    seconds_by_name = {cause.value: amount for cause, amount in seconds.items() if cause is not TimeCause.LASTED}
    seconds_by_name[STEPS] = seconds.get(TimeCause.LASTED, 0.0) + seconds.get(TimeCause.TWICE, 0.0)
    return seconds_by_name
