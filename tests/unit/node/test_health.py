"""From what is seen of a mount to its state, and from the state to a repair: the pure part, case by case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest

from hyperpod_kit.model.mounts import EfsMount, LustreMount, MountStatus, S3Mount
from hyperpod_kit.node.health.check import Seen, classify
from hyperpod_kit.node.health.probe import Probed
from hyperpod_kit.node.health.record import HealthRecord
from hyperpod_kit.node.health.repair import decide
from hyperpod_kit.node.mounts.kind import Identity
from hyperpod_kit.node.mounts.table import Entry

HERE = Path(__file__).parent
MOUNTS = {
    "efs": EfsMount("home", "/efs/trainer", "fs-0123456789abcdef0", "fsap-0123456789abcdef0"),
    "s3": S3Mount("data", "/mnt/data", "sagemaker-data"),
    "lustre": LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh"),
}


def cases(name: str) -> Any:
    return [pytest.param(case, id=case["case"]) for case in json.loads((HERE / name).read_text())]


@pytest.mark.parametrize("case", cases("check_cases.json"))
def test_state(case: Dict[str, Any]) -> None:
    seen = Seen(None)
    if "probed" in case:
        entry = Entry(30, "0:50", "/x", "fuse", "source", tuple(case.get("options", ["rw"])))
        identity = Identity(case["ours"], "source", "detail", case.get("endpoint_gone", False))
        seen = Seen(entry, Probed(**case["probed"]), identity)
    state, detail = classify(MOUNTS[case["kind"]], seen, deadline=5.0)
    assert state == case["state"]
    assert detail or state in ("ok",), "a state that is not ok says why"


@pytest.mark.parametrize("case", cases("repair_cases.json"))
def test_decision(case: Dict[str, Any]) -> None:
    mount = MOUNTS[case["kind"]]
    now = 1_800_000_000.0
    status = MountStatus(mount.name, mount.kind, mount.path, case["state"], checked_at=now)
    repaired_at = now - case.get("since", now)
    record = HealthRecord({}, case["failures"], repairs=case.get("repairs", 0), repaired_at=repaired_at)
    assert decide(mount, status, record, interval=30.0) == case["action"]


def test_a_record_counts_degrades_and_forgets() -> None:
    bad = MountStatus("data", "mountpoint-s3", "/mnt/data", "stale")
    record = HealthRecord({})
    for expected in (False, False, True, True):
        record = record.after(bad, give_up_after=3)
        assert record.degraded is expected
    good = MountStatus("data", "mountpoint-s3", "/mnt/data", "ok")
    after = record.after(good, give_up_after=3)
    assert (after.failures, after.degraded, after.repairs) == (0, False, 0)
