"""A running attempt on the node of whoever looks: shown as it is at that moment, and elsewhere with its age."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest

from hyperpod_kit.environment import HPK_ATTEMPT, HPK_PROGRESS, HPK_STATE
from hyperpod_kit.job.goodput import rank_at_hand, show
from hyperpod_kit.job.goodput.job_time import AttemptLog, RunLog
from hyperpod_kit.job.goodput.launch_time import usual_step
from hyperpod_kit.job.goodput.time_log import RankTime
from hyperpod_kit.job.goodput.time_rows import TimeRow
from hyperpod_kit.job.status import attempt_table, timeline
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.slurm.progress import ProgressWriter, RankProgress
from tests.support.wait import until

ATTEMPT = f"7-{os.getpid()}.0.0"
KEY = ("7", "", 0)


class Rank:
    """A process whose environment is a rank's, and the memory that it writes to; its last row is of step 3."""

    def __init__(self, state: Path, **more: str) -> None:
        self.memory = RankProgress()
        variables = {HPK_ATTEMPT: ATTEMPT, HPK_STATE: str(state), HPK_PROGRESS: self.memory.path}
        self.env: Dict[str, str] = {**os.environ, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4", **variables, **more}
        self.process = subprocess.Popen(["sleep", "600"], env=self.env)
        self.teller = ProgressWriter({HPK_PROGRESS: self.memory.path})
        self.teller.report_first_step(0)
        self.teller.report_completed_step(3)
        self.row = RankTime(step_launch_id_with_srun_port(self.env), "n1", time.time() - 5.0).row(self.memory)
        until(lambda: ATTEMPT.encode() in Path(f"/proc/{self.process.pid}/environ").read_bytes(), what="the process")

    def logs(self) -> List[RunLog]:
        attempt = AttemptLog(ATTEMPT, KEY, self.row.began, rows=[self.row])
        return [RunLog(KEY, self.row.began, self.row.t, attempts=[attempt])]

    def newest(self, state: Path) -> TimeRow:
        runs = self.logs()
        rank_at_hand.append_current_rows_of_local_ranks(runs, str(state), time.time())
        return runs[0].attempts[0].rows[-1]


@pytest.fixture
def ranks() -> Iterator[List[Rank]]:
    made: List[Rank] = []
    yield made
    for rank in made:
        rank.process.kill()
        rank.process.wait()


def test_the_step_of_this_moment_is_shown(ranks: List[Rank], tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    ranks.append(rank)
    rank.teller.report_completed_step(40)
    row = rank.newest(tmp_path)
    assert row.step == 40 and row.t > rank.row.t
    assert sum(row.seconds.values()) == pytest.approx(row.t - row.began)
    assert show.now_at(row, row.t) == f"now at step 40, {usual_step(row):.3g} s a step"


@pytest.mark.parametrize("other", [("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "5"), (HPK_STATE, "/"), (HPK_PROGRESS, "")])
def test_what_is_of_another_rank_launch_or_root_is_not_taken(
    other: Tuple[str, str], ranks: List[Rank], tmp_path: Path
) -> None:
    name, value = other
    rank = Rank(tmp_path, **{name: value})
    ranks.append(rank)
    rank.row = rank.row._replace(launch="4.0")
    rank.teller.report_completed_step(40)
    assert rank.newest(tmp_path) == rank.row


def test_a_row_that_is_old_has_its_age(ranks: List[Rank], tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    ranks.append(rank)
    assert show.now_at(rank.row, rank.row.t + 40.0) == "now at step 3, as of 40 s ago"
    assert show.newest_memory_capture_sentence(rank.row, rank.row.t + 40.0).startswith("newest in memory: unknown")


def test_the_line_of_the_attempt_has_the_newest_step_that_anybody_has_said() -> None:
    note = timeline.JobAttempt(ATTEMPT, "7", 0.0, reached=5, moved=10.0, noted=12.0)
    row = RankTime("4.0", "n1", time.time()).row(RankProgress())._replace(step=9, t=30.0)
    shown = timeline.with_row(note, row)
    assert (shown.reached, shown.noted) == (9, 30.0) and shown.kind == timeline.UNFINISHED
    assert timeline.with_row(note, row._replace(step=4)).reached == 5
    assert attempt_table.was_running_a_moment_ago(shown, 100.0) and not attempt_table.was_running_a_moment_ago(
        note, 110.0
    )
    assert timeline.with_row(replace(note, kind="done"), row).reached == 5
