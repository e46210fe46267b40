"""`job run` and a root that goes away between two looks at it: it is waited for, and never taken for empty."""

from __future__ import annotations

import threading

import pytest

from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.records.ledger import read as ledger_rows
from tests.support.rows import full
from tests.support.wait import until
from tests.unit.job.conftest import Job


@pytest.mark.full
@pytest.mark.parametrize("moment", [*full("attempt"), "ended"])
def test_a_root_that_goes_just_before_a_row_is_written_is_waited_for(
    job_in_process: Job, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As a mount does that answered the question before from its cache."""
    job = job_in_process
    assert job.run("--steps", "12", "--every", "4") == 0
    append, away = Ledger.append, job.root.with_name("away")

    def come_back() -> None:
        try:
            until(lambda: job.has_reported("storage"), what="a word of the outage")
        finally:
            away.rename(job.root)

    back = threading.Thread(target=come_back)

    def late(self: Ledger, event: str, **fields: object) -> None:
        if event == moment and not back.ident:
            job.root.rename(away)
            back.start()
        append(self, event, **fields)

    monkeypatch.setattr(Ledger, "append", late)
    assert job.run("--steps", "16", "--every", "4") == 0
    back.join()
    assert [event["step"] for event in job.said("attempt")] == [0, 12] and job.said("storage")
    rows = [row["event"] for row in ledger_rows(str(job.root / ".hpk" / "attempts.jsonl"))]
    assert rows == ["attempt", "restored", "ended"] * 2


def test_a_root_that_is_away_while_it_is_read_is_no_empty_one(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "12", "--every", "4") == 0
    away, asked = job.root.with_name("away"), []

    def chooser(root: str, passed_over: object) -> object:
        from hyperpod_kit.checkpoint.repository.selection import newest_valid

        asked.append(root)
        if len(asked) == 1:
            job.root.rename(away)
            threading.Timer(1.0, lambda: away.rename(job.root)).start()
        return newest_valid(root)

    job.chooser = chooser
    assert job.run("--steps", "16", "--every", "4") == 0
    assert len(asked) > 1 and [event["step"] for event in job.said("attempt")] == [0, 12]
