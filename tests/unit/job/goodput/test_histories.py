"""The time ledger against 100 histories of which the truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import pytest

from hyperpod_kit.job.goodput import job_time, root_time
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.launch_time import LONGEST_GAP
from hyperpod_kit.job.goodput.time_table import table_of
from tests.unit.job.goodput.histories import History

WITHIN = 0.01
"""The part of a job's time by which any cause may be wrong."""


def ledger_of(history: History) -> JobTime:
    return job_time.account(root_time.runs_in(str(history.state)), "7", history.t, history.standing)


def compare(told: Dict[TimeCause, float], truth: Dict[TimeCause, float], lost_hosts: int) -> None:
    whole = sum(truth.values())
    assert told.get(TimeCause.UNKNOWN, 0.0) <= LONGEST_GAP * lost_hosts + 1e-3
    for cause in TimeCause:
        if cause is not TimeCause.UNKNOWN:
            assert told.get(cause, 0.0) / whole == pytest.approx(truth[cause] / whole, abs=WITHIN), cause


@pytest.mark.parametrize("seed", range(100))
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
