"""From what is seen of a mount to its state, and from the state to a repair: the pure part, case by case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.node_config import HealthPolicy
from hyperpod_kit.model.states import REPAIRS, MountState
from hyperpod_kit.node.health.repair import BEFORE_START
from hyperpod_kit.node.health.repair_policy import repair_action_due_after_back_off
from hyperpod_kit.node.mounts.kinds.kind import MountIdentity
from hyperpod_kit.node.observe.classify import MountObservation, classify
from hyperpod_kit.node.observe.health_record import LONGEST_PAUSE, HealthRecord, seconds_before_next_repair
from hyperpod_kit.node.observe.probe import Probed
from hyperpod_kit.system.mountinfo import MountEntry

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
    seen = MountObservation(None)
    if "probed" in case:
        entry = MountEntry(30, "0:50", "/x", "fuse", "source", tuple(case.get("options", ["rw"])))
        identity = MountIdentity(case["ours"], "source", "detail", case.get("endpoint_gone", False))
        seen = MountObservation(entry, Probed(**case["probed"]), identity)
    state, detail = classify(MOUNTS[case["kind"]], seen, deadline=5.0)
    assert state == case["state"]
    assert detail or state in ("ok",), "a state that is not ok says why"
    assert case.get("detail", "") in detail


@pytest.mark.parametrize("case", cases("repair_cases.json"))
def test_decision(case: Dict[str, Any]) -> None:
    mount = MOUNTS[case["kind"]]
    now = 1_800_000_000.0
    status = MountStatus(mount.name, mount.kind, mount.path, case["state"], checked_at=now)
    repaired_at = now - case.get("since", now)
    record = HealthRecord({}, case["failures"], repairs=case.get("repairs", 0), repaired_at=repaired_at)
    assert repair_action_due_after_back_off(mount, status, record, interval=30.0) == case["action"]


def status(state: str, at: float) -> MountStatus:
    return MountStatus("data", "mountpoint-s3", "/mnt/data", MountState(state), checked_at=at)


def test_a_record_counts_degrades_and_forgets() -> None:
    policy = HealthPolicy(interval=30.0, degraded_after=3)
    record = HealthRecord({})
    for tick, expected in enumerate((False, False, True, True)):
        record = record.after_check(status("stale", 1000.0 + 30 * tick), policy)
        assert record.degraded is expected
    assert (record.failures, record.since, record.state) == (4, 1000.0, "stale")
    after = record.after_check(status("slow", 1120.0), policy)
    assert (after.failures, after.degraded, after.since) == (0, False, 1120.0)


def test_the_back_off_is_forgotten_only_when_the_mount_has_served_for_as_long() -> None:
    policy = HealthPolicy(interval=30.0)
    record = HealthRecord({}, repairs=3)  # the next pause is 120 s
    ticks = [record := record.after_check(status("ok", 1000.0 + 30 * tick), policy) for tick in range(5)]
    assert [one.repairs for one in ticks] == [3, 3, 3, 3, 0]
    relapse = ticks[2].after_check(status("stale", 1090.0), policy).after_check(status("ok", 1120.0), policy)
    assert (relapse.healthy_since, relapse.repairs) == (1120.0, 3)
    assert (
        seconds_before_next_repair(0, 30.0) == 0.0
        and seconds_before_next_repair(1, 30.0) == 30.0
        and seconds_before_next_repair(10_000, 30.0) == LONGEST_PAUSE
    )


def test_a_clock_that_was_set_back_does_not_keep_the_back_off_for_ever() -> None:
    policy = HealthPolicy(interval=30.0)
    record = HealthRecord({}, repairs=3, healthy_since=9000.0).after_check(status("ok", 1000.0), policy)
    assert record.healthy_since == 1000.0
    assert record.after_check(status("ok", 1120.0), policy).repairs == 0


def test_every_repair_that_is_carried_out_has_its_row() -> None:
    assert set(BEFORE_START) == set(REPAIRS)
