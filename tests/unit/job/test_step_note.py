"""How far a running attempt has come, as `job status` shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from hyperpod_kit.job.status import attempt_table, timeline
from hyperpod_kit.job.step import step_note
from hyperpod_kit.job.step.step_note import StepNote, StepNoteWriter
from hyperpod_kit.job.step.step_report import StepReport
from hyperpod_kit.slurm.phase import Phase
from tests.support.clock import FakeClock
from tests.support.wait import until

ATTEMPT = "7.0.0"


def reports(step: int) -> Dict[int, StepReport]:
    return {rank: StepReport(rank, "n1", step, Phase.STEP, 0, 1.0) for rank in range(2)}


def written(state: Path, step: int) -> StepNote:
    def read() -> StepNote | None:
        note = step_note.read(str(state))
        return note if note and note.reached == step else None

    return until(read, what=f"note of step {step}")


def test_a_note_is_renewed_now_and_then(tmp_path: Path) -> None:
    clock = FakeClock()
    writer = StepNoteWriter(str(tmp_path), ATTEMPT, clock=clock, now=lambda: 1000.0 + clock.now)
    writer.write_note_if_due({}, 0.0)
    assert step_note.read(str(tmp_path)) is None
    start = clock.now
    writer.write_note_if_due(reports(5), 2.0)
    note = written(tmp_path, 5)
    assert (note.attempt, note.written - note.moved) == (ATTEMPT, 2.0) and note.where.startswith("all of 2 ranks")
    clock.now = start + step_note.EVERY - 1
    writer.write_note_if_due(reports(6), 0.0)
    assert writer._thread is not None
    writer._thread.join(30)
    assert written(tmp_path, 5) == note
    clock.now = start + step_note.EVERY
    writer.write_note_if_due(reports(7), 0.0)
    written(tmp_path, 7)
    assert [path.name for path in tmp_path.iterdir()] == [step_note.FILE], "nothing is left of the writing"


def test_a_file_system_that_hangs_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    writer = StepNoteWriter(str(tmp_path / "not-there"), ATTEMPT, clock=clock)
    writer.write_note_if_due(reports(5), 0.0)
    assert writer._thread is not None
    writer._thread.join(30)
    monkeypatch.setattr(writer._thread, "is_alive", lambda: True)
    hangs = writer._thread
    clock.now += 10 * step_note.EVERY
    writer.write_note_if_due(reports(6), 0.0)
    assert writer._thread is hangs


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"attempt": 7},
        {"attempt": "a", "where": "", "reached": -1, "moved": 1, "written": 1},
        {"attempt": "a", "where": "", "reached": "5", "moved": 1, "written": 1},
        {"attempt": "a", "where": "", "reached": 5, "moved": None, "written": 1},
        {"attempt": "a", "where": "", "reached": 5, "moved": 1, "written": 1e300},
    ],
)
def test_what_is_no_note_of_ours_says_nothing(tmp_path: Path, value: Any) -> None:
    (tmp_path / step_note.FILE).write_text(json.dumps(value))
    assert step_note.read(str(tmp_path)) is None
    (tmp_path / step_note.FILE).write_text("{")
    assert step_note.read(str(tmp_path)) is None


def rows() -> List[Dict[str, Any]]:
    run = {"job": "7", "restart": 0}
    return [
        {"t": 100.0, **run, "event": "attempt", "attempt": "7.0.0", "from": "none", "step": 0},
        {"t": 200.0, **run, "event": "ended", "attempt": "7.0.0", "class": "stall", "code": 137, "seconds": 90.0}
        | {"reached": 30, "hang": "no step for 8 s (limit 8 s; the rank at step 30 in a step)"},
        {"t": 210.0, **run, "event": "attempt", "attempt": "7.0.1", "from": "seq-1", "step": 20},
    ]


def test_status_shows_the_step_of_a_running_attempt_and_where_another_hung() -> None:
    note = StepNote("7.0.1", 1234, 288.0, 295.0, "all of 2 ranks at step 1234 in a step")
    found = timeline.fill_in_lost_steps_and_gaps(timeline.with_note(timeline.of_rows(rows()), note))
    lines = attempt_table.table(found, timeline.totals(found, 300.0), now=300.0).splitlines()
    assert "the rank at step 30 in a step" in lines[1] and " 30 " in lines[1]
    assert " 1 min 30 s " in lines[2] and " 1234, 12 s ago " in lines[2] and " running" in lines[2]
    late = attempt_table.table(found, timeline.totals(found, 900.0), now=900.0).splitlines()
    assert "1234, 10 min 12 s ago" in late[2] and "unfinished" in late[2], "nobody has renewed it"
    assert found[1].reached == 1234 and found[1].moved == 288.0


def test_a_note_of_another_attempt_says_nothing_of_this_one() -> None:
    note = StepNote("7.0.0", 1234, 288.0, 295.0, "")
    found = timeline.with_note(timeline.of_rows(rows()), note)
    assert [one.reached for one in found] == [30, None]
