"""A service that answers everything but what was asked: in the middle of saves, and in the middle of a restore."""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Dict, cast

import pytest

from tests.faults.job import Job
from tests.faults.profiles import S3
from tests.faults.roots import BucketRoot

Row = Callable[..., None]
STEPS = 80
OUTAGE = 12.0

REFUSALS: Dict[str, Dict[str, Any]] = {
    "503 SlowDown": {"status": 503},
    "500 InternalError": {"status": 500},
    "400 ExpiredToken": {"status": 400, "code": "ExpiredToken"},
    "403 AccessDenied": {"status": 403},
    "a connection that is cut": {"cut": True},
}

pytestmark = [pytest.mark.profiles(S3.name), pytest.mark.parametrize("refusal", REFUSALS)]


def only_storage_was_away(job: Job, *before: str) -> None:
    """It ended well, and not one failure was counted besides those of `before`."""
    job.ended_well(STEPS)
    classes = job.classes[:-1]
    assert classes[: len(before)] == list(before) and set(classes[len(before) :]) == {"storage"}, job.told()
    assert job.show()["Restarts"] == "0" and not job.rows("gave_up")


def test_s3_refuses_in_mid_save(job: Job, row: Row, refusal: str) -> None:
    root = cast(BucketRoot, job.checkpoint_root)
    job.submit("--steps", str(STEPS)).running()
    fault = job.broken(lambda: root.fault(**REFUSALS[refusal]))
    time.sleep(OUTAGE)
    root.back()
    back = time.time()
    seconds = job.resumed(fault) - (back - fault.at)
    only_storage_was_away(job)
    waits = [line["message"] for line in job.lines() if line.get("event") == "storage"]
    assert any(root.told in line for line in waits), waits
    row(f"in mid-save, for {OUTAGE:g} s, S3 gives {refusal}", "waits, goes on, no budget burnt", round(seconds, 1))


def test_s3_refuses_in_mid_restore(job: Job, row: Row, refusal: str) -> None:
    """Names and manifests are there; the bytes do not come."""
    root = cast(BucketRoot, job.checkpoint_root)
    job.submit("--steps", str(STEPS)).running()
    root.fault("seq-.*/shard", method="GET", **REFUSALS[refusal])
    fault = job.send(signal.SIGKILL)
    time.sleep(OUTAGE)
    root.back()
    back = time.time()
    seconds = job.resumed(fault) - (back - fault.at)
    only_storage_was_away(job, "crash")
    found = [one for one in job.rows("restored") if one.get("error")]
    assert found and {one["error"] for one in found} == {"StorageUnreadable"}
    row(f"in mid-restore, for {OUTAGE:g} s, S3 gives {refusal}", "waits, takes no older one", round(seconds, 1))
