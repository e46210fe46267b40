"""The Prolog's gate: bounded, names the mount, gives a repair its chance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.commands.prolog_gate import SECONDS, refusal_text, repair_or_record_failing_mounts

EFS = EfsMount("home", "/efs/trainer", "fs-0123456789abcdef0", "fsap-0123456789abcdef0")
LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
OPTIONAL = S3Mount("extra", "/mnt/extra", "sagemaker-extra", required=False)
ORDER = "systemctl start --no-block hyperpod-kit-repair@home.service"


def test_the_gate_names_the_mount(make_node: Any) -> None:
    fake = make_node([EFS, LUSTRE, OPTIONAL])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    bad = repair_or_record_failing_mounts(fake.node)
    assert refusal_text(bad) == (
        "hyperpod-kit: mount home at /efs/trainer is absent: nothing is mounted at /efs/trainer"
    )
    assert [call for call in fake.runner.calls if "start" in call] == [ORDER]
    assert sum(fake.clock.slept) <= SECONDS
    assert not Path(fake.node.paths.gate_refusal_record).exists()
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    assert repair_or_record_failing_mounts(fake.node) == []


def test_a_repair_in_time_opens_it(make_node: Any) -> None:
    fake = make_node([EFS])
    fake.runner.on(ORDER, do=lambda: fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/"))
    assert repair_or_record_failing_mounts(fake.node) == []


def test_it_leaves_a_mark_where_slurm_is_told(make_node: Any) -> None:
    fake = make_node([EFS])
    policy = replace(fake.node.config.health, drain=True)
    fake.node = replace(fake.node, config=replace(fake.node.config, health=policy))
    assert repair_or_record_failing_mounts(fake.node)
    assert json.loads(Path(fake.node.paths.gate_refusal_record).read_text())["at"] == fake.clock.now


def test_the_home_of_somebody_else_keeps_no_job_away(make_node: Any) -> None:
    fake = make_node([EFS, replace(EFS, name="home-bob", path="/home/.homes/bob/home", owner="bob")])
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    assert repair_or_record_failing_mounts(fake.node, "alice") == []
    assert [status.name for status in repair_or_record_failing_mounts(fake.node, "bob")] == ["home-bob"]
    assert repair_or_record_failing_mounts(fake.node), "a job of nobody knows whom may be bob's"
