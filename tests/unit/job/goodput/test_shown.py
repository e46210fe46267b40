"""What people see of a job's time: a table, two pictures, the sums of many jobs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Dict, List

import pytest

from hyperpod_kit.job import cli
from hyperpod_kit.job.goodput import counted_seconds, pictures, show, time_rows
from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.job_time import AttemptLog, JobState, JobTime, RunLog
from hyperpod_kit.job.goodput.time_rows import TimeRow
from hyperpod_kit.job.goodput.time_table import TimeTable, table_of
from hyperpod_kit.job.status import status_page
from hyperpod_kit.job.status.timeline import Totals
from hyperpod_kit.slurm.phase import Phase
from tests.support.rows import share
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
    body = ElementTree.fromstring(f"<div>{pictures.waterfall_and_gantt_html(ledger_of(history))}</div>")
    texts = ["".join(text.itertext()) for text in body.iter("text")]
    assert len(body.findall("svg")) == 2 and {"n1", "n2", LABELS[TimeCause.LASTED]} <= set(texts)


@pytest.mark.parametrize("seed", share(range(12), 4))
def test_a_node_is_drawn_as_it_spent_its_time(seed: int, tmp_path: Path) -> None:
    """Steps of a minute beside one another are as wide as an hour of them, and a hang does not vanish among them."""
    history = History(tmp_path, seed, submitted=1.7e9).play()
    told = ledger_of(history)
    whole = table_of(told.pieces).total_seconds
    body = ElementTree.fromstring(f"<div>{pictures.gantt(told)}</div>")
    drawn: Dict[str, float] = defaultdict(float)
    for mark in body.iter("rect"):
        if mark.attrib["y"] == str(pictures.ROW + 3):
            drawn[mark.attrib["fill"]] += float(mark.attrib["width"]) / pictures.COLUMNS
    (node, *_) = dict.fromkeys(name for piece in told.pieces for name in piece.nodes)
    spent = table_of([piece for piece in told.pieces if node in piece.nodes]).seconds
    for cause, colour in pictures.COLOURS.items():
        assert drawn[colour] == pytest.approx(spent.get(cause, 0.0) / whole, abs=0.02), cause
    assert len(list(body.iter("rect"))) <= 4 * pictures.COLUMNS


def test_jobs_are_added_up(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(history.state.parent)
    table = table_of(ledger_of(history).pieces)
    for by, name in (("user", "ana"), ("partition", "gpu"), ("cluster", "c"), ("job", "7")):
        assert cli.main(["goodput", "--root", root, "--since", "2020-01-01", "--by", by, "--json"]) == 0
        group = json.loads(capsys.readouterr().out)["groups"][name]
        assert group["goodput"] == pytest.approx(table.goodput, abs=0.001)
    assert cli.main(["goodput", "--root", root, "--since", "2020-01-01", "--by", "week", "--price", "2"]) == 0
    assert "2023-W46" in capsys.readouterr().out


def test_a_root_that_is_named_twice_is_counted_once(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(history.state.parent)
    (tmp_path / "link").symlink_to(root)
    held = []
    for roots in (["--root", root], ["--root", root, "--root", f"{root}/", "--root", str(tmp_path / "link")]):
        assert cli.main(["goodput", *roots, "--since", "2020-01-01", "--json"]) == 0
        held.append(json.loads(capsys.readouterr().out)["groups"])
    assert held[0] == held[1]


@pytest.mark.parametrize("words", [["2", "--price", "3"], ["nan"], ["-1"], ["cheap"], ["inf"]])
def test_a_price_is_one_amount_of_dollars(words: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("status", "goodput"):
        with pytest.raises(SystemExit) as ended:
            cli.main([verb, "--root", "/", "--price", *words])
        assert ended.value.code == 2 and "--price is" in capsys.readouterr().err


def test_counters_only_grow() -> None:
    counted = counted_seconds.CountedSeconds(TimeTable())
    first = counted.raise_counters_to(TimeTable(gpu_seconds={TimeCause.LASTED: 100.0}))
    later = counted.raise_counters_to(TimeTable(gpu_seconds={TimeCause.LASTED: 60.0, TimeCause.TWICE: 50.0}))
    again = counted.raise_counters_to(TimeTable(gpu_seconds={TimeCause.LASTED: 60.0, TimeCause.TWICE: 20.0}))
    assert first == {"steps": 100.0} and later == {"steps": 110.0, "twice": 50.0} and again == later


def test_the_attempt_at_work_shows_its_step_and_its_pace_in_text_data_and_on_the_page() -> None:
    seconds = {"import": 1.0, "start": 1.0, "step": 20.0}
    row = TimeRow("l", "n1", 0.0, 22.0, Phase.STEP, 2.0, 0, 99, (1, 0.5), 0.2, defaultdict(float, seconds))
    attempt = AttemptLog("7.0.1", ("7", "", 0), 0.0, rows=[row])
    told = JobTime("7", runs=[RunLog(attempt.run, 0.0, 0.0, attempts=[attempt])], state=JobState.RUNS)
    words = "now at step 99, 0.197 s a step"
    assert told.to_dict()["now"][
        "memory"
    ] is None and "newest in memory: unknown" in show.newest_memory_capture_sentence(row, 22.0)
    assert show.now_at(row, 22.0) == words and told.to_dict()["now"]["step"] == 99
    assert told.to_dict()["now"]["step_seconds"] == pytest.approx(19.5 / 99)
    assert f"<p>{words}</p>" in status_page.page("Job 7", [], Totals(), 22.0, times=[told])
    captured = row._replace(captured=time_rows.MemoryCapture(90, 12.0, False))
    attempt.rows = [captured]
    assert told.to_dict()["now"]["memory"] == {"step": 90, "at": 12.0, "on_storage": False}
    assert "<p>newest in memory: step 90, 10 s ago</p>" in status_page.page("Job 7", [], Totals(), 22.0, times=[told])
    over = replace(told, state=JobState.OVER)
    assert over.to_dict()["now"] is None and words not in status_page.page("Job 7", [], Totals(), 22.0, times=[over])
