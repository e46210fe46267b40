"""What people see of a job's time: a table, two pictures, the sums of many jobs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hyperpod_kit.job import cli
from hyperpod_kit.job.goodput import counted_seconds, pictures, show
from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.time_table import TimeTable, table_of
from tests.unit.job.goodput.histories import History
from tests.unit.job.goodput.test_histories import ledger_of


@pytest.fixture
def history(tmp_path: Path) -> History:
    (tmp_path / ".hpk").mkdir()
    return History(tmp_path / ".hpk", 13, submitted=1.7e9).play()


def test_the_table_names_each_cause_and_what_it_cost(history: History) -> None:
    told = ledger_of(history)
    table = table_of(told.pieces)
    lines = show.lines(told, table, price=2.0)
    assert f"goodput {table.goodput:.1%} of the GPU time that it held" in lines[0] and len(lines[1]) == show.BAR
    shown = [line for line in lines[2:] if " %" in line]
    assert len(shown) == sum(1 for seconds in table.seconds.values() if seconds > 0)
    assert all("GPU-hours" in line and "$" in line for line in shown)
    assert any(line.startswith(LABELS[TimeCause.HANG]) and "`--stall`" in line for line in shown)


def test_the_pictures_are_whole(history: History) -> None:
    body = ElementTree.fromstring(f"<div>{pictures.both(ledger_of(history))}</div>")
    texts = ["".join(text.itertext()) for text in body.iter("text")]
    assert len(body.findall("svg")) == 2 and {"n1", "n2", LABELS[TimeCause.LASTED]} <= set(texts)


def test_jobs_are_added_up(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(history.state.parent)
    table = table_of(ledger_of(history).pieces)
    for by, name in (("user", "ana"), ("partition", "gpu"), ("cluster", "c"), ("job", "7")):
        assert cli.main(["goodput", "--root", root, "--since", "2020-01-01", "--by", by, "--json"]) == 0
        group = json.loads(capsys.readouterr().out)["groups"][name]
        assert group["goodput"] == pytest.approx(table.goodput, abs=0.001)
    assert cli.main(["goodput", "--root", root, "--since", "2020-01-01", "--by", "week", "--price", "2"]) == 0
    assert "2023-W46" in capsys.readouterr().out


def test_counters_only_grow() -> None:
    counted = counted_seconds.CountedSeconds(TimeTable())
    first = counted.count(TimeTable(gpu_seconds={TimeCause.LASTED: 100.0}))
    later = counted.count(TimeTable(gpu_seconds={TimeCause.LASTED: 60.0, TimeCause.TWICE: 50.0}))
    again = counted.count(TimeTable(gpu_seconds={TimeCause.LASTED: 60.0, TimeCause.TWICE: 20.0}))
    assert first == {"steps": 100.0} and later == {"steps": 110.0, "twice": 50.0} and again == later
