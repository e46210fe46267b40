"""The time ledger against histories of what the hundred do not have: clocks that differ, starts and saves cut short, a
task of an array that is cancelled, and another one that goes on on its root."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import pytest

from hyperpod_kit.job.goodput import command, job_time, root_time
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.counted_seconds import STEPS, CountedSeconds
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.launch_time import LONGEST_GAP
from hyperpod_kit.job.goodput.time_table import TimeTable, percents, table_of
from tests.support.rows import share
from tests.unit.job.goodput.harder_histories import MOST_SKEW, HarderHistory, goes_on

WITHIN = 0.01


def ledger_of(history: HarderHistory) -> JobTime:
    return job_time.account(root_time.runs_in(str(history.state)), history.job, history.t, history.standing)


def compare(told: JobTime, history: HarderHistory, truth: Dict[TimeCause, float]) -> None:
    """What nobody can know is missing elsewhere."""
    seconds, whole = table_of(told.pieces).seconds, sum(truth.values())
    unknown = seconds.get(TimeCause.UNATTRIBUTED, 0.0)
    assert unknown <= (LONGEST_GAP + MOST_SKEW) * history.lost_hosts + 1e-3
    for cause in TimeCause:
        if cause is not TimeCause.UNATTRIBUTED:
            off = abs(seconds.get(cause, 0.0) - truth[cause])
            assert off <= WITHIN * whole + unknown, (cause, seconds.get(cause, 0.0), truth[cause], whole)
    assert round(sum(percents(list(seconds.values()))), 6) == 100.0
    for before, after in zip(told.pieces, told.pieces[1:]):
        assert before.end == after.start and before.end > before.start


@pytest.mark.parametrize("seed", share(range(30), 10))
def test_every_cause_is_right(seed: int, tmp_path: Path) -> None:
    history = HarderHistory(tmp_path, seed, job="7_3")
    history.play()
    following = goes_on(history, seed + 1000)
    if following is not None:
        history.resumed(following.source + 1)
        following.play()
        whole = table_of(ledger_of(following).pieces).total_seconds
        assert whole == pytest.approx(following.t - following.submitted, abs=MOST_SKEW + 1.0)
        compare(ledger_of(following), following, following.seconds())
    told = ledger_of(history)
    compare(told, history, history.seconds())
    table = table_of(told.pieces)
    assert table.total_seconds == pytest.approx(history.t - history.submitted, abs=MOST_SKEW + 1.0)
    counted = CountedSeconds(TimeTable()).raise_counters_to(table)
    lasted = counted[STEPS] - counted.get(TimeCause.TWICE.value, 0.0)
    held = sum(amount for name, amount in counted.items() if name != TimeCause.TWICE.value)
    shown = told.to_dict()["goodput"]
    assert lasted / held == pytest.approx(shown, abs=0.001), "metrics and --json are of one figure"
    by_job = command.group_tables([told], "job", 0.0, 1e11)["7_3"].to_dict()
    assert by_job["goodput"] == shown and by_job["seconds"] == told.to_dict()["seconds"]
