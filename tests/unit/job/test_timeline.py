"""From rows of a ledger to what a job lost and what it got out of its time."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.environment import HPK_PROGRESS
from hyperpod_kit.job.base import axes
from hyperpod_kit.job.records import job_index, ledger
from hyperpod_kit.job.status import attempt_table, status_page, timeline
from hyperpod_kit.slurm import progress
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.slurm.job_id import JobId


def rows() -> list[dict[str, Any]]:
    """A crash at step 130 that loses 30 of its 130 steps, a node lost without a word, the end."""
    run = {"job": "7", "restart": 0}
    return [
        {"t": 1000.0, **run, "event": "attempt", "attempt": "7.0.0", "from": "none", "step": 0, "nodes": ["n1", "n2"]},
        {
            "t": 1130.0,
            **run,
            "event": "ended",
            "attempt": "7.0.0",
            "class": "crash",
            "code": 1,
            "seconds": 130.0,
            "lost": [],
            "first": {"rank": 1, "node": "n<2>", "code": 1, "signal": None},
            "reached": 130,
        },
        {
            "t": 1140.0,
            **run,
            "event": "attempt",
            "attempt": "7.0.1",
            "from": "seq-1",
            "step": 100,
            "nodes": ["n1"],
            "rejected": [{"attempt": "seq-2", "why": "shard-00000 & co"}],
        },
        {
            "t": 1200.0,
            "job": "7",
            "restart": 1,
            "event": "ended",
            "attempt": "7.0.1",
            "class": "node_lost",
            "code": None,
            "lost": [],
            "first": None,
        },
        {"t": 1201.0, "job": "7", "restart": 1, "event": "attempt", "attempt": "7.1.0", "from": "seq-3", "step": 140},
        {
            "t": 1300.0,
            "job": "7",
            "restart": 1,
            "event": "ended",
            "attempt": "7.1.0",
            "class": "done",
            "code": 0,
            "seconds": 99.0,
            "lost": [],
            "first": None,
            "reached": 200,
        },
        {"t": 1400.0, "job": "8", "restart": 0, "event": "gave_up", "why": "NoValidCheckpoint"},
    ]


def test_lost_steps() -> None:
    found = timeline.fill_in_lost_steps_and_gaps(timeline.of_rows(rows()))
    assert [(one.name, one.kind, one.lost, one.gap) for one in found] == [
        ("7.0.0", "crash", 30, 10.0),
        ("7.0.1", "node_lost", None, None),
        ("7.1.0", "done", None, None),
        ("8.0.-", "none", None, None),
    ]
    sums = timeline.totals(found, 9999.0)
    assert (sums.attempts, sums.wall, sums.lost) == (4, 300.0, 30)
    assert sums.kinds == {"crash": 1, "node_lost": 1, "done": 1, "none": 1}


def test_nothing_known_is_not_said_to_be_nothing() -> None:
    assert timeline.totals([], 5.0) == timeline.Totals()
    [running] = timeline.of_rows(rows()[:1])
    assert running.kind == "unfinished" and timeline.totals([running], 1060.0).wall == 60.0


def test_the_table_says_who_and_why() -> None:
    found = timeline.fill_in_lost_steps_and_gaps(timeline.of_rows(rows()))
    lines = attempt_table.table(found, timeline.totals(found, 0.0)).splitlines()
    assert "crash: rank 1 on n<2>" in lines[1] and re.search(r"2 min 10 s +0 +130 +30 ", lines[1])
    assert lines[-1] == (
        "4 attempts, 5 min 0 s from the first start to the last end, "
        "at least 30 steps done twice (1 attempt did not record a last step)"
    )


def test_the_table_says_where_a_step_was_that_storage_may_not_have() -> None:
    found = [
        replace(one, tier=tier) for one, tier in zip(timeline.of_rows(rows()), ("memory", "memory+storage", "storage"))
    ]
    lines = attempt_table.table(found, timeline.totals(found, 0.0)).splitlines()
    assert " 0 in memory " in lines[1] and " 100 in memory+storage " in lines[2] and " 140  " in lines[3]


def test_the_page_is_one_whole_file_and_escapes_what_it_shows() -> None:
    found = timeline.fill_in_lost_steps_and_gaps(timeline.of_rows(rows()))
    text = status_page.page("Job <7>", found, timeline.totals(found, 0.0), 1400.0)
    body = ElementTree.fromstring(
        text.replace("<!DOCTYPE html>", "")
        .replace('<meta charset="utf-8">', "")
        .replace('<meta name="viewport" content="width=device-width, initial-scale=1">', "")
    )
    assert len(body.findall(".//tbody/tr")) == 4 and len(body.findall(".//circle")) == 3
    assert "shard-00000 & co" in "".join(body.itertext()) and "rank 1 on n<2>" in "".join(body.itertext())
    assert "http" not in text and "<script" not in text
    places = [(float(line.get("x1", "")), float(line.get("x2", ""))) for line in body.findall(".//g/line")]
    assert all(left <= right for left, right in places)


def test_the_picture_shows_what_was_lost_however_little_and_names_nodes_and_checkpoints() -> None:
    run = {"job": "7", "restart": 0}
    long = [
        {"t": 1.8e9, **run, "event": "attempt", "attempt": "7.0.0", "step": 0, "nodes": ["n1", "n2"]},
        {"t": 1.8e9 + 43200, **run, "event": "ended", "attempt": "7.0.0", "class": "crash", "seconds": 43200.0},
        {"t": 1.8e9 + 43260, **run, "event": "attempt", "attempt": "7.0.1", "from": "seq-9", "step": 99990},
    ]
    long[1]["reached"], long[2]["nodes"] = 100000, ["n1", "n3"]
    found = timeline.fill_in_lost_steps_and_gaps(timeline.of_rows(long))
    text = status_page.page("Job 7", found, timeline.totals(found, 0.0), 1.8e9 + 54852, checkpoint=100500)
    body = ElementTree.fromstring(status_page.steps_over_time_svg(found, 1.8e9 + 54852, 100500))
    lines = [line.get("stroke") for line in body.findall("g/line")]
    assert lines == [status_page.STEPS] * 2, "a productive attempt is not drawn as how it ended"
    assert next(dot.get("fill") for dot in body.iter("circle")) == status_page.COLOURS["crash"]
    sizes = {mark.get("fill"): mark for mark in body.iter("rect")}
    assert float(sizes[status_page.REDONE].get("height", "")) >= 3 <= float(sizes[status_page.IDLE].get("width", ""))
    labels = ["".join(label.itertext()) for label in body.iter("text")]
    assert "newest checkpoint: step 100500" in labels and "-10" in labels
    assert [label for label in labels if label.endswith(":00")], "round times of day"
    assert ">n[1-2]</td>" in text and ">seq-9</td>" in text


def test_no_two_ends_have_one_colour() -> None:
    assert len(set(status_page.COLOURS.values())) == len(status_page.COLOURS)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 59.0, 3600.0, 54852.0, 40 * 86400.0])
def test_ticks_are_few_round_and_inside(seconds: float) -> None:
    ticks = axes.clock_ticks(1.8e9 + 7, 1.8e9 + 7 + seconds)
    assert 1 <= len(ticks) <= 7 and all(1.8e9 + 7 <= at <= 1.8e9 + 7 + seconds for at, _ in ticks)
    assert [axes.number_ticks(top)[-1] for top in (1, 7, 130, 99999)] == [1, 6, 100, 80000]


def test_a_rank_tells_how_far_it_came_from_any_depth() -> None:
    told = progress.RankProgress()
    assert told.completed_step() is None
    progress.ProgressWriter({HPK_PROGRESS: told.path}).report_completed_step(1234567)
    assert told.completed_step() == 1234567
    subprocess.run(["/bin/sh", "-c", "sh -c 'echo 42 > $HPK_PROGRESS'"], env={"HPK_PROGRESS": told.path}, check=True)
    assert told.completed_step() == 42
    subprocess.run(["/bin/sh", "-c", "echo words > $HPK_PROGRESS"], env={"HPK_PROGRESS": told.path}, check=True)
    assert told.completed_step() is None
    progress.ProgressWriter({HPK_PROGRESS: told.path}).report_first_step(40)
    assert (told.first_step(), told.completed_step()) == (40, None)
    progress.ProgressWriter({HPK_PROGRESS: told.path}).report_completed_step(41)
    assert (told.first_step(), told.completed_step(), told.failed_save_count()) == (40, 41, 0)
    teller = progress.ProgressWriter({HPK_PROGRESS: told.path})
    teller.report_failed_save()
    teller.report_failed_save()
    assert (told.first_step(), told.completed_step(), told.failed_save_count()) == (40, 41, 2)
    progress.ProgressWriter({HPK_PROGRESS: "/proc/0/fd/9"}).report_completed_step(1)
    progress.ProgressWriter({}).report_completed_step(1)


def test_in_a_container_with_its_own_processes_nobody_elses_file_is_written(tmp_path: Path) -> None:
    """The path then names a descriptor of whoever has the wrapper's number there."""
    told = progress.RankProgress()
    assert int(told.path.rsplit("/", 1)[1]) >= 100, "none that a program opens by chance"
    with open(tmp_path / "checkpoint", "wb") as file:
        file.write(b"weights")
        file.flush()
        progress.ProgressWriter({HPK_PROGRESS: f"/proc/self/fd/{file.fileno()}"}).report_completed_step(7)
    assert (tmp_path / "checkpoint").read_bytes() == b"weights"


def run_of(raw: str, array: str = "", task: str = "") -> JobEnvironment:
    return JobEnvironment(JobId(raw, array, task), 0, (), 1)


def test_a_job_is_found_by_its_id_and_by_its_place_in_an_array(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    assert job_index.find("7", env) is None
    job_index.append_job_and_root(run_of("7"), "/old", env)
    job_index.append_job_and_root(run_of("7"), "/new", env)
    job_index.append_job_and_root(run_of("12", "9", "3"), "/array", env)
    assert job_index.find("7", env) == ("7", "/new") and job_index.find("9_3", env) == ("9_3", "/array")
    assert job_index.find("12", env) == ("9_3", "/array"), "by its own number too"
    job_index.append_job_and_root(run_of("9", "9", "11"), "/last", env)
    assert job_index.find("9", env) is None and job_index.tasks("9", env) == ["9_3", "9_11"], (
        "the array, not its last task"
    )
    job_index.append_job_and_root(run_of("7"), "/x", {"XDG_STATE_HOME": "/proc/nowhere"})
    assert ledger.read(job_index.index_file_path(env))[0]["root"] == "/old"


@pytest.mark.parametrize(
    ("reached", "sentence"),
    [
        ((None, None), "the number of steps done twice is unknown: no attempt recorded its last step"),
        ((30, None), "at least 5 steps done twice (1 attempt did not record a last step)"),
        ((30, 40), "15 steps done twice"),
    ],
)
def test_what_nobody_knows_is_not_zero(reached: tuple[int | None, ...], sentence: str) -> None:
    found = timeline.fill_in_lost_steps_and_gaps(
        [
            timeline.JobAttempt("7.0.0", "7", 0.0, "crash", step=0, reached=reached[0], code=1),
            timeline.JobAttempt("7.0.1", "7", 1.0, "crash", step=25, reached=reached[1], code=1),
            timeline.JobAttempt("7.0.2", "7", 2.0, "done", step=30, reached=50, code=0),
        ]
    )
    sums = timeline.totals(found, 3.0)
    assert sentence in attempt_table.sentence(sums).split(", ")
    assert (sums.lost is None) == (reached == (None, None))
    assert ("?" in attempt_table.table(found, sums)) == (None in reached)


@pytest.mark.parametrize(("begins", "lost"), [(None, 5), (26, 5), (29, 2), (31, 0), (0, 31)])
def test_lost_is_counted_from_the_step_that_was_really_done_first(begins: int | None, lost: int) -> None:
    """`job run` names the newest checkpoint on storage; memory may hold a newer one, and steps may begin at 0."""
    found = timeline.fill_in_lost_steps_and_gaps(
        [
            timeline.JobAttempt("7.0.0", "7", 0.0, "crash", step=0, reached=30),
            timeline.JobAttempt("7.0.1", "7", 1.0, "done", step=25, reached=50, begins=begins),
        ]
    )
    assert found[0].lost == lost


def test_what_hyperpod_did_under_an_attempts_srun_is_told(tmp_path: Path) -> None:
    head = "[Auto Resume] Info: JobID: 7 StepID: 0"
    said = [f"{head} Job Expansion complete", f"{head} Retrying step. Attempt number: 1", f"{head} Retrying step."]
    first, *more = rows()
    heard = [{**first, "event": "hyperpod", "words": words} for words in said]
    found = timeline.fill_in_lost_steps_and_gaps(timeline.of_rows([first, *heard, *more]))
    assert found[0].retries == 2 and found[0].hyperpod == tuple(said) and not found[1].hyperpod
    table = attempt_table.table(found, timeline.totals(found, 1300.0))
    assert "HyperPod retried its step 2 times" in table.splitlines()[1] and "HyperPod" not in table.splitlines()[2]
