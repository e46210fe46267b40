"""Checkpoints that cannot be trusted: damaged, incomplete, or ending every run that loads them."""

from __future__ import annotations

import signal
from typing import Callable

import pytest

from tests.faults.job import Job

Row = Callable[..., None]
STEPS = 60


def stopped_and_damaged(job: Job, damage: Callable[[Job], None]) -> float:
    """Hold the ranks, damage what is there, kill one; seconds until the next attempt's first step."""
    job.submit("--steps", str(STEPS), "--pause", "0.1").at_step(17)
    job.send(signal.SIGSTOP, rank=0)
    damage(job)
    return job.resumed(job.send(signal.SIGKILL, rank=0))


def test_the_newest_is_corrupt(job: Job, row: Row) -> None:
    seconds = stopped_and_damaged(job, lambda job: job.flip("shard-00001.safetensors"))
    job.ended_well(STEPS)
    second = job.rows("restored")[1]
    assert second["step"] == 10 and "shard-00001" in second["rejected"][0]["why"], second
    row("the newest checkpoint is corrupt", "the one before is taken", seconds)


def test_the_newest_is_incomplete(job: Job, row: Row) -> None:
    root = job.checkpoint_root
    seconds = stopped_and_damaged(job, lambda job: root.lose(root.committed()[-1], "shard-00001.safetensors"))
    second = job.rows("attempt")[1]
    assert second["step"] == 10 and second["rejected"], second
    job.ended_well(STEPS)
    row("the newest checkpoint lacks a file", "the one before is taken", seconds)


@pytest.mark.quick
def test_all_are_corrupt(job: Job, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1").at_step(12)
    job.send(signal.SIGSTOP, rank=0)
    job.flip("shard-00000.safetensors", *job.checkpoint_root.committed())
    job.send(signal.SIGKILL, rank=0)
    assert job.finish() in ("HELD", "SPECIAL_EXIT"), job.told()
    assert job.show()["ExitCode"] == "86:0" and len(job.rows("attempt")) == 2
    assert {line["attempt"] for line in job.progress()} == {job.rows("attempt")[0]["attempt"]}
    assert "NoValidCheckpoint" in job.rows("gave_up")[0]["why"]
    row("all checkpoints are corrupt", "gives up with `NoValidCheckpoint`: held, exit 86, no step is done", None)


def test_a_poison_checkpoint(job: Job, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--fail-after", "2").at_step(12)
    job.send(signal.SIGKILL)
    assert job.finish() in ("HELD", "SPECIAL_EXIT"), job.told()
    starts = [attempt["step"] for attempt in job.rows("attempt")]
    newest, before = starts[1], starts[-1]
    assert starts.count(newest) in (2, 3) and 0 < before < newest and len(starts) <= 6, starts
    assert job.show()["ExitCode"] == "86:0"
    row(
        "a poison checkpoint: every load ends 2 steps later",
        f"steps back once, then gives up after {len(starts)} attempts: held, exit 86",
        None,
    )
