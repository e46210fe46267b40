"""The time ledger against 100 histories of which the truth is known."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Dict

import pytest

from hyperpod_kit.job.goodput import command, job_time, root_time, time_rows
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.launch_time import LONGEST_GAP
from hyperpod_kit.job.goodput.pieces import within
from hyperpod_kit.job.goodput.time_table import percents, table_of
from tests.support.rows import share
from tests.unit.job.goodput.histories import GPUS, History

WITHIN = 0.01
"""The part of a job's time by which any cause may be wrong."""


def ledger_of(history: History) -> JobTime:
    return job_time.account(root_time.runs_in(str(history.state)), "7", history.t, history.standing)


def compare(told: Dict[TimeCause, float], truth: Dict[TimeCause, float], lost_hosts: int) -> None:
    whole = sum(truth.values())
    assert told.get(TimeCause.UNATTRIBUTED, 0.0) <= LONGEST_GAP * lost_hosts + 1e-3
    for cause in TimeCause:
        if cause is not TimeCause.UNATTRIBUTED:
            assert told.get(cause, 0.0) / whole == pytest.approx(truth[cause] / whole, abs=WITHIN), cause


@pytest.mark.parametrize("seed", share(range(100), 14))
def test_every_cause_is_right(seed: int, tmp_path: Path) -> None:
    """Half of them still run: at a moment that is drawn, everything is right up to then."""
    whole = History(tmp_path / "whole", seed)
    (tmp_path / "whole").mkdir()
    whole.play()
    length = whole.t - whole.submitted
    compare(table_of(ledger_of(whole).pieces).seconds, whole.seconds(), whole.lost_hosts)
    (tmp_path / "part").mkdir()
    until = whole.submitted + length * whole.random.uniform(0.3, 0.95)
    part = History(tmp_path / "part", seed, until=until).play()
    told = ledger_of(part)
    assert sum(piece.seconds for piece in told.pieces) == pytest.approx(part.t - part.submitted, abs=1.0)
    compare(table_of(told.pieces).seconds, part.seconds(), part.lost_hosts)


@pytest.mark.parametrize("seed", share(range(5), 2))
def test_a_week_that_cuts_a_job_in_two_is_right(seed: int, tmp_path: Path) -> None:
    history = History(tmp_path, seed).play()
    told = ledger_of(history)
    cut = history.submitted + (history.t - history.submitted) * history.random.uniform(0.2, 0.8)
    for since, until in ((0.0, cut), (cut, history.t + 1.0)):
        pieces = within(told.pieces, since, until)
        compare(table_of(pieces).seconds, history.seconds(since, until), history.lost_hosts)
    weeks = command.group_tables([told], command.WEEK, history.submitted, history.t)
    assert sum(week.table.total_seconds for week in weeks.values()) == pytest.approx(
        table_of(told.pieces).total_seconds, abs=2.0
    )


def test_the_rows_add_up_to_a_hundred(tmp_path: Path) -> None:
    history = History(tmp_path, 9).play()
    table = table_of(ledger_of(history).pieces)
    assert round(sum(percents(list(table.seconds.values()))), 6) == 100.0
    assert table.total_gpu_seconds == pytest.approx(
        sum(table.seconds[cause] for cause in table.seconds if holds(cause)) * GPUS
    )


def holds(cause: TimeCause) -> bool:
    return cause not in (TimeCause.QUEUE, TimeCause.NODES)


def test_what_a_build_before_wrote_is_unknown_and_never_zero(tmp_path: Path) -> None:
    """Its ledger has attempts, and nobody kept rows of their time."""
    history = History(tmp_path, 9).play()
    shutil.rmtree(tmp_path / time_rows.FOLDER)
    told = ledger_of(history)
    table = table_of(told.pieces)
    assert table.goodput is None
    assert table.unknown_gpu_share > 0.9 and TimeCause.LASTED not in table.seconds
    assert told.unit == "node" and len(told.caveats) == 2
