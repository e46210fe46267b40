"""What rank 0's wrapper writes of its rank: a real memory between the two, and a clock that is moved by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List

import pytest

from hyperpod_kit.environment import HPK_PROGRESS
from hyperpod_kit.job.goodput import time_rows
from hyperpod_kit.job.goodput.time_log import RankTime, RowSchedule, TimeLog, append
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.phase_clock import PhaseClock, decode_reading
from hyperpod_kit.slurm.progress import ProgressWriter, RankProgress
from hyperpod_kit.system.data_wait import WaitedSeconds
from tests.support.wait import until


class MovedClock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_a_reading_comes_back_as_it_was_written_and_a_torn_one_is_none() -> None:
    clock = MovedClock()
    written = PhaseClock(clock)
    written.set_first_step(5)
    clock.at += 2.0
    written.enter(Phase.STEP)
    clock.at += 3.0
    written.count_completed_step(7)
    clock.at += 0.5
    written.count_completed_step(7)
    reading = decode_reading(written.encode())
    assert reading is not None and reading.seconds[Phase.START] == 2.0 and reading.seconds[Phase.STEP] == 3.0
    assert (reading.begins, reading.step, reading.first_steps, reading.first) == (5, 7, 3, 3.0)
    assert reading.open_step == 0.5
    text = written.encode()
    assert all(decode_reading(text[:length]) is None for length in range(len(text) - 3))


def test_data_is_no_part_of_a_step() -> None:
    clock, waited = MovedClock(), WaitedSeconds()
    written = PhaseClock(clock, waited.seconds_so_far)
    written.enter(Phase.STEP)

    def batches() -> Iterator[int]:
        for number in range(2):
            clock.at += 4.0
            yield number

    for number in waited.iter_counting_waits(batches(), clock):
        clock.at += 1.0
        written.count_completed_step(number)
    assert written.reading.data == 8.0 and written.reading.seconds[Phase.STEP] == 2.0


def test_seconds_of_a_row_add_up_to_its_age_in_any_phase() -> None:
    clock = MovedClock()
    measured = RankTime("1.0", "n1", 1000.0, clock=clock, now=lambda: 1000.0)
    memory = RankProgress()
    clock.at += 7.0
    silent = measured.row(memory)
    assert not silent.reports and silent.seconds[time_rows.IMPORT] == pytest.approx(7.0)
    with open(memory.path, "w") as file:
        file.write("12 evaluation\n")
    clock.at += 5.0
    measured.row(memory)
    clock.at += 2.0
    row = measured.row(memory)
    assert row.reports and row.step == 12 and row.phase is Phase.EVALUATION
    assert sum(row.seconds.values()) == pytest.approx(14.0) and row.t == pytest.approx(1014.0)


def test_a_row_is_due_at_each_phase_and_at_least_once_a_minute() -> None:
    clock = MovedClock()
    measured, schedule = RankTime("1.0", "n1", 1000.0, clock=clock, now=lambda: 1000.0), RowSchedule()
    row = measured.row(RankProgress())
    assert schedule.is_due(0.0, row)
    schedule.schedule_after_written_row(0.0, row)
    assert not schedule.is_due(0.5, row) and schedule.is_due(1.0, row)
    assert schedule.is_due(0.5, row._replace(phase=Phase.RESTORE)) and schedule.is_due(0.5, row._replace(over=True))
    schedule.schedule_after_written_row(1e6, row)
    assert not schedule.is_due(1e6 + 59.0, row) and schedule.is_due(1e6 + 60.0, row)
    steps = row._replace(phase=Phase.STEP)
    schedule.schedule_after_written_row(1e6, steps)
    assert not schedule.is_due(1e6 + 1.0, steps._replace(phase=Phase.SAVE))


def test_the_last_row_says_that_the_rank_has_ended(tmp_path: Path) -> None:
    memory = RankProgress()
    log = TimeLog(str(tmp_path), "7.0.0", memory, RankTime("1.0", "n1", 1000.0), rank=0)
    teller = ProgressWriter({HPK_PROGRESS: memory.path})
    teller.report_first_step(3)
    teller.report_completed_step(3)

    def rows() -> List[time_rows.TimeRow]:
        return time_rows.read(str(tmp_path), "7.0.0")

    until(lambda: any(row.step == 3 for row in rows()), what="a row with the step")
    log.stop()
    assert rows()[-1].over and rows()[-1].begins == 3
    TimeLog(str(tmp_path), "7.0.1", memory, RankTime("1.0", "n1", 1000.0), rank=1).stop()
    assert time_rows.read(str(tmp_path), "7.0.1") == []


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    path = time_rows.path(str(tmp_path), "7.0.0")
    row = RankTime("1.0", "n1", 1000.0).row(RankProgress())
    append(path, time_rows.encoded(row)[:-20])
    append(path, time_rows.encoded(row))
    assert len(time_rows.read(str(tmp_path), "7.0.0")) == 1
    with pytest.raises(ValueError, match="is not an attempt"):
        time_rows.path(str(tmp_path), "../7")
