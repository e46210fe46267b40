"""What a node says of its mounts where others can read it, and how often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.node.health.check_cycle import EVERY, check_mounts_and_start_repairs
from hyperpod_kit.remote.reports.validate_mounts import judge_report
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import NodeResponse

EFS = EfsMount("home", "/efs/trainer", "fs-0123456789abcdef0", "fsap-0123456789abcdef0", required=False)
LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")


def told(fake: Any) -> list[dict[str, Any]]:
    path = Path(fake.node.paths.provisioning_log)
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["step"] == "mounts"]


def test_a_change_is_told_at_once_and_silence_never_lasts(make_node: Any) -> None:
    fake = make_node([EFS, LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    check_mounts_and_start_repairs(fake.node)
    check_mounts_and_start_repairs(fake.node)
    [first] = told(fake)
    assert first["status"] == "failed" and first["instance_id"] == fake.node.facts.instance_id
    assert [(mount["name"], mount["state"], mount.get("required", True)) for mount in first["mounts"]] == [
        ("home", "absent", False),
        ("fsx", "ok", True),
    ]
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    check_mounts_and_start_repairs(fake.node)
    assert [line["status"] for line in told(fake)] == ["failed", "ok"]
    fake.clock.now += EVERY - 1
    check_mounts_and_start_repairs(fake.node)
    assert len(told(fake)) == 2
    fake.clock.now += 2
    check_mounts_and_start_repairs(fake.node)
    assert len(told(fake)) == 3


def test_a_clock_that_was_set_back_does_not_silence_a_node(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    check_mounts_and_start_repairs(fake.node)
    fake.clock.now -= 7200
    check_mounts_and_start_repairs(fake.node)
    assert len(told(fake)) == 2


def test_a_line_is_a_report_that_the_other_side_takes(make_node: Any) -> None:
    fake = make_node([EFS, LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    check_mounts_and_start_repairs(fake.node)
    [line] = told(fake)
    facts = fake.node.facts
    target = NodeTarget(facts.instance_id, facts.group, facts.role, facts.address)
    found = judge_report(
        target, NodeResponse(json.dumps(line), at=line["checked_at"]), [EFS, LUSTRE], 60.0, line["checked_at"] + 1
    )
    assert found.healthy and [mount.state for mount in found.mounts] == ["absent", "ok"]


def test_a_log_that_cannot_be_written_stops_no_check(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    Path(fake.node.paths.provisioning_log).mkdir(parents=True)
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    done = check_mounts_and_start_repairs(fake.node)
    assert done is not None and any(
        "the state could not be reported outside the node" in words for words in done.messages
    )
