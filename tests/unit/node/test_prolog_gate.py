"""The Prolog's gate: bounded, names the mount, gives a repair its chance."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.commands.prolog_gate import (
    SECONDS,
    record_spool_failure,
    refusal_text,
    repair_or_record_failing_mounts,
)
from hyperpod_kit.node.slurm import spool

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


@contextlib.contextmanager
def mounted_tmpfs(directory: Path, options: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def make_spool(fake: Any, configured: str = "/var/spool/slurm/%n") -> Path:
    """The spool directory of a configless slurmd, and the slurm.conf that says so."""
    conf = Path(fake.node.paths.fetched_slurm_conf)
    conf.parent.mkdir(parents=True)
    conf.write_text(f"ClusterName=demo\nSlurmdSpoolDir={configured}\n")
    directory = Path(fake.node.paths.under_root(configured.replace("%n", fake.node.facts.node)))
    directory.mkdir(parents=True)
    return directory


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.needs("root")
def test_a_node_that_could_not_store_a_batch_script_starts_no_job(make_node: Any, drain: bool) -> None:
    fake = make_node([])
    policy = replace(fake.node.config.health, drain=drain)
    fake.node = replace(fake.node, config=replace(fake.node.config, health=policy))
    directory = make_spool(fake)
    with mounted_tmpfs(directory, "size=16k"):
        assert record_spool_failure(fake.node) == (
            f"hyperpod-kit: slurmd cannot store a job in its spool directory /var/spool/slurm/{fake.node.facts.node}: "
            "No space left on device"
        )
        assert list(directory.iterdir()) == [], "nothing is left of the probe"
    assert Path(fake.node.paths.gate_refusal_record).exists() == drain
    with mounted_tmpfs(directory, "size=1m"):
        assert record_spool_failure(fake.node) == "" and list(directory.iterdir()) == []
    with mounted_tmpfs(directory, "size=1m,ro"):
        assert record_spool_failure(fake.node).endswith(": Read-only file system")


def test_what_is_not_known_of_the_spool_directory_keeps_no_job_away(
    make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_node([])
    assert spool.spool_directory(fake.node) == "/var/spool/slurmd" and record_spool_failure(fake.node) == ""
    make_spool(fake)
    monkeypatch.setattr(spool, "_write_probe", lambda path: errno.EACCES)
    assert record_spool_failure(fake.node) == ""
    monkeypatch.setattr(spool, "_write_probe", lambda path: threading.Event().wait())
    monkeypatch.setattr(spool, "PROBE_SECONDS", 0.1)
    assert record_spool_failure(fake.node) == ""
