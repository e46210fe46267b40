"""The sandbox, with the project's own example and with its shims alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hyperpod_rehearsal.sandbox import sandbox, sandbox_root, sandbox_shim

EXAMPLE = Path(__file__).parents[2] / "provisioning_parameters.example.json"


@pytest.fixture
def shim(tmp_path):
    """Runs a shim by name below a temporary root."""
    root = tmp_path / "root"
    for directory in ("sandbox", "proc/self", "etc/systemd/system"):
        (root / directory).mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("1 0 0:1 / / rw - overlay overlay rw\n")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "sandbox/shown.json").write_text(sandbox_root.made_up_mount_listing_by_type_json())
    program = tmp_path / "shim"
    shutil.copyfile(sandbox_shim.__file__, program)
    program.chmod(0o755)

    def run(*argv):
        link = tmp_path / argv[0]
        if not link.exists():
            link.symlink_to(program)
        return subprocess.run(
            [str(link), *argv[1:]],
            env={**os.environ, "HPK_ROOT": str(root)},
            timeout=20,
            stdout=subprocess.PIPE,
            text=True,
        )

    run.root = root  # type: ignore[attr-defined]
    return run


def mountinfo(shim):
    return (shim.root / "proc/self/mountinfo").read_text()


def test_every_call_is_recorded_in_order(shim):
    shim("modprobe", "lustre")
    shim("chown", "-R", "a b", "/x")
    lines = (shim.root / "sandbox/commands.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [["modprobe", "lustre"], ["chown", "-R", "a b", "/x"]]


def test_mounts_come_and_go_in_mountinfo(shim):
    shim("mount", "-t", "efs", "-o", "tls", "fs-1:/", "/efs/home")
    shim("mount", "-t", "lustre", "-o", "noatime", "fs.example@tcp:/abcdefgh", "/fsx")
    assert " /efs/home rw,nosuid,nodev,relatime shared:1 - nfs4 127.0.0.1:/ rw" in mountinfo(shim)
    assert "lustre 10.0.0.1@tcp:/abcdefgh rw" in mountinfo(shim) and (shim.root / "fsx").is_dir()
    shim("umount", "--lazy", "/fsx")
    assert "/fsx" not in mountinfo(shim) and "/efs/home" in mountinfo(shim)


def test_starting_a_unit_runs_its_commands(shim):
    (shim.root / "etc/systemd/system/data.service").write_text(
        "[Service]\nExecStart=/usr/bin/mount-s3 --foreground bucket /mnt/data\n"
    )
    assert shim("systemctl", "is-active", "data").returncode == 3
    assert shim("systemctl", "enable", "--now", "data").returncode == 0
    assert "fuse mountpoint-s3" in mountinfo(shim)
    assert shim("systemctl", "is-enabled", "data.service").returncode == 0
    pid = shim("systemctl", "show", "--property", "MainPID", "data.service").stdout.splitlines()[0]
    cmdline = (shim.root / "proc" / pid.partition("=")[2] / "cmdline").read_text()
    assert cmdline.split("\0")[-3:-1] == ["bucket", "/mnt/data"]


def test_users_are_found_after_they_were_made(shim):
    assert shim("getent", "passwd", "trainer").returncode == 2
    shim("groupadd", "--gid", "2001", "trainer")
    shim("useradd", "--uid", "2001", "--gid=2001", "trainer")
    assert shim("getent", "passwd", "2001").stdout.startswith("trainer:x:2001:2001:")


def test_scontrol_says_nothing_before_slurm_is_configured(shim):
    assert shim("scontrol", "--version").returncode == 1
    shim("systemctl", "start", "slurmd")
    assert "is UP" in shim("scontrol", "ping").stdout


@pytest.mark.full
@pytest.mark.timeout(120)
def test_the_example_with_every_kind_of_mount_runs_on_every_kind_of_node(tmp_path):
    values = json.loads(EXAMPLE.read_text())
    kit_values = values["hyperpod_kit"]
    kit_values["cluster"]["instance_groups"][1]["instance_type"] = "ml.p5.48xlarge"
    kit_values["mounts"] += [
        {"kind": "s3files", "name": "files", "path": "/files", "file_system_id": "fs-0123456789abcdef1"},
        {
            "kind": "openzfs",
            "name": "homes",
            "path": "/home",
            "dns_name": "fs-0123456789abcdef2.fsx.us-east-1.amazonaws.com",
        },
        {"kind": "nvme", "name": "scratch", "path": "/scratch", "groups": ["worker-group"]},
        {
            "kind": "mountpoint-s3",
            "name": "cached",
            "path": "/mnt/cached",
            "bucket": "sagemaker-other",
            "cache_dir": "/scratch/s3",
            "groups": ["worker-group"],
        },
    ]
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    result = sandbox.run_sandbox(str(config))
    assert [run.role for run in result.runs] == ["controller", "compute"]
    for run in result.runs:
        assert run.exit_code == 0, run.output
        programs = {command[0] for command in run.commands}
        assert {"mount", "mount-s3", "systemctl", "useradd"} <= programs
        assert all(json.loads(line)["step"] for line in run.log), run.log
    assert result.exit_code == 0 and result.root == "" and result.not_exercised


@pytest.mark.full
@pytest.mark.timeout(120)
def test_homes_need_no_root_there(tmp_path):
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"].update(mounts=[], homes={"file_system_id": "fs-0123456789abcdef0"})
    config = tmp_path / "parameters.json"
    config.write_text(json.dumps(values))
    point = {
        "user": "trainer",
        "file_system_id": "fs-0123456789abcdef0",
        "uid": 2001,
        "gid": 2001,
        "root": "/home/trainer",
        "id": "fsap-0123456789abcdef0",
    }
    (tmp_path / "parameters.access-points.json").write_text(
        json.dumps({"format": "hpk-access-points/1", "access_points": [point]})
    )
    result = sandbox.run_sandbox(str(config))
    for run in result.runs:
        assert run.exit_code == 0, run.output
        assert ("chown", "--no-dereference", "0:2001", "/home/.homes/trainer") in run.commands
        assert ("nft", "--file", "-") in run.commands
        assert any(
            command[:2] == ("mount", "-t") and command[-1] == "/home/.homes/trainer/home" for command in run.commands
        ), run.commands
