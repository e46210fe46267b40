"""The time ledger of a real job with a SIGKILL and a hang, beside what was measured outside of it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hyperpod_kit.job.goodput.cause import TimeCause
from tests.unit.job.goodput import measured_job

POINTS = 2.0
"""Percentage points of a job's time by which any cause may be wrong."""


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.rehearsal
@pytest.mark.needs("slurm")
def test_every_cause_is_as_it_was_measured_outside_while_the_job_runs_and_at_its_end() -> None:
    with measured_job.cluster() as slurm:
        job = measured_job.MeasuredJob(slurm)
        found = {comparison.name: comparison for comparison in job.run()}
        by_user = job.command("goodput", "--by", "user")["groups"]
        by_partition = job.command("goodput", "--by", "partition")["groups"]
    assert set(found) >= {"while it trains", "while it hangs", "at its end"}
    wrong = [line for comparison in found.values() if not comparison.is_right(POINTS) for line in comparison.lines()]
    assert not wrong, "\n".join(wrong)
    for name in ("while it trains", "while it trains again"):
        now = found[name].now
        assert now is not None and abs(now["step"] - found[name].step) <= 1, "as it was at the moment that it has"
        assert found[name].age < 1.5, "read on the node of rank 0, and no row of a minute ago"
    assert found["at its end"].shown[TimeCause.UNATTRIBUTED] == 0.0
    assert set(by_user) == {"nobody"} and set(by_partition) == {"all"}
    assert {look.time["unit"] for look in job.looks} == {"gpu"}
    [last] = [look.time for look in job.looks if look.name == "at its end"]
    held = sum(seconds for cause, seconds in last["seconds"].items() if cause != TimeCause.QUEUE.value)
    assert sum(last["gpu_seconds"].values()) == pytest.approx(held * 2 * measured_job.GPUS, abs=10.0)
