"""The newest capture in memory, as rank 0's wrapper reads it from real slots and writes it into its rows."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Dict

import pytest

from hyperpod_kit.checkpoint.agent.shm import capture_age, control_page, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Page, SlotState
from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT
from hyperpod_kit.job.goodput import memory_captures, time_rows
from hyperpod_kit.job.goodput.memory_captures import newest
from hyperpod_kit.job.goodput.time_log import RankTime, TimeLog
from hyperpod_kit.job.goodput.time_rows import MemoryCapture
from hyperpod_kit.slurm.progress import RankProgress
from tests.support.wait import until

ENV: Dict[str, str] = {"SLURM_JOB_ID": "7", HPK_CHECKPOINT_ROOT: "/fsx/ckpt"}
NOW = 1.8e9


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "shm"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("HPK_SHM_DIR", str(place))
    return place


def capture(
    folder: Path, slot: int, step: int, *, root: str = "/fsx/ckpt", job: str = "7", rank: int = 0, seq: int = 1
) -> shm_slots.Slot:
    name = shm_slots.SlotName(shm_paths.node_uid(), shm_slots.run_hash(root), rank, slot)
    made = shm_slots.create(str(folder), name, 64)
    origin = CaptureOrigin(rank=rank, root=root, job={"slurm_job_id": job})
    made.write_page(Page(SlotState.WRITING, origin, epoch=1, seq=seq, step=step))
    return made


def test_the_newest_whole_capture_of_the_job_is_read(folder: Path) -> None:
    assert newest(ENV, NOW) is None
    older, newer = capture(folder, 0, 40, seq=4), capture(folder, 1, 50, seq=5)
    assert newest(ENV, NOW) is None, "a capture in the making can restore nothing"
    older.transition(SlotState.CAPTURED)
    assert newest(ENV, NOW) == MemoryCapture(40, None, False)
    newer.transition(SlotState.CAPTURED)
    newer.seal("0" * 32)
    sealed = newest(ENV, NOW)
    assert sealed is not None and sealed.step == 50 and sealed.at is not None and sealed.at <= NOW
    newer.transition(SlotState.SEALED, durable=True)
    durable = newest(ENV, NOW)
    assert durable is not None and durable.step == 50 and durable.on_storage
    newer.transition(SlotState.FREE)
    assert newest(ENV, NOW) == MemoryCapture(40, None, False)


def test_captures_of_other_jobs_and_of_other_ranks_say_nothing(folder: Path) -> None:
    for slot, changes in enumerate(({"root": "/fsx/other", "job": "8"}, {"rank": 1})):
        capture(folder, slot, 60, **changes).transition(SlotState.CAPTURED)  # type: ignore[arg-type]
    assert newest(ENV, NOW) is None
    capture(folder, 2, 30, job="6").transition(SlotState.CAPTURED)
    assert newest(ENV, NOW) == MemoryCapture(30, None, False), "left by an earlier job on the same root"
    capture(folder, 3, 31, root="/fsx/linked", seq=2).transition(SlotState.CAPTURED)
    assert newest(ENV, NOW) == MemoryCapture(31, None, False), "of this job, whatever its script calls the root"


def test_what_cannot_be_read_is_unknown_and_costs_only_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, damaged = capture(folder, 0, 40), capture(folder, 1, 50, seq=2)
    for slot in (whole, damaged):
        slot.transition(SlotState.CAPTURED)
    (folder / damaged.name.file("ctl")).write_bytes(b"x" * control_page.PAGE)
    assert newest(ENV, NOW) == MemoryCapture(40, None, False)
    page = whole.page
    assert page is not None
    undated = page._replace(origin=replace(page.origin, job={**page.origin.job, control_page.SEALED_AT: "odd"}))
    whole.write_page(undated)
    assert capture_age.is_dated(undated) and newest(ENV, NOW) == MemoryCapture(40, None, False)
    (folder / whole.name.file("ctl")).unlink()
    os.mkfifo(folder / whole.name.file("ctl"))
    assert newest(ENV, NOW) is None
    monkeypatch.setenv("HPK_SHM_DIR", str(folder / "gone"))
    assert newest(ENV, NOW) is None


def test_rank_0_writes_it_into_its_rows(folder: Path, tmp_path: Path) -> None:
    capture(folder, 0, 40).transition(SlotState.CAPTURED)
    memory, measured = RankProgress(), RankTime("1.0", "n1", 1000.0)
    log = TimeLog(
        str(tmp_path), "7.0.0", memory, measured, rank=0, captured=lambda now: memory_captures.newest(ENV, NOW)
    )
    until(lambda: bool(time_rows.read(str(tmp_path), "7.0.0")), what="a row")
    log.stop()
    assert {row.captured for row in time_rows.read(str(tmp_path), "7.0.0")} == {MemoryCapture(40, None, False)}


def test_a_row_keeps_what_is_known_and_leaves_the_rest_away() -> None:
    row = RankTime("1.0", "n1", 1000.0).row(RankProgress())
    assert b"captured" not in time_rows.encoded(row)
    for known in (MemoryCapture(3, None, True), MemoryCapture(3, 1.5e9, False)):
        value = json.loads(time_rows.encoded(row._replace(captured=known)))
        assert time_rows._time_row(value).captured == known
