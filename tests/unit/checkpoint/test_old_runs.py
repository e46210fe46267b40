"""Some of what `python -m tests.faults.old_runs` does at length."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hyperpod_lab.torture import day
from hyperpod_lab.torture.days import DayEvent, DayScene, DayWay
from tests.faults import old_runs

SMALL = [
    DayScene(DayEvent.STORAGE_AWAY, DayWay.TIMES, memory=5, world=2),
    DayScene(DayEvent.ANOTHER_RUN, DayWay.CLOCK),
]


@pytest.mark.full
def test_of_runs_older_than_a_day_nothing_is_lost() -> None:
    rows = list(old_runs.played(10, 3, SMALL, day.backdate_run))
    found = old_runs.totals(rows)
    assert len(rows) >= 2 and found["captures"] + found["copies"] >= 10, rows
    assert (found["lost"], found["wrong"]) == (0, 0), rows


def test_every_event_meets_every_way_and_cadence() -> None:
    every = old_runs.scenes(faketime=False)
    assert len(set(every)) == len(old_runs.EVENTS) * len(DayWay) * 2 * 2
