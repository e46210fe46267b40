"""on_create.sh of a real bundle, below a temporary root."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings

SCRIPTS = Path(__file__).parents[3] / "lifecycle_scripts"


def test_a_worker_is_created_and_the_second_run_changes_nothing(make_sandbox: Any) -> None:
    sandbox = make_sandbox("compute")
    first = sandbox.on_create()
    assert first.returncode == 0, first.stdout + first.stderr
    steps = {line["step"]: line["status"] for line in sandbox.log}
    assert {
        "verify-bundle": "ok",
        "install-bundle": "changed",
        "users": "changed",
        "mount:home": "changed",
        "mount:data": "changed",
        "mount:fsx": "changed",
        "units": "changed",
        "health": "changed",
        "spank-plugin": "changed",
        "containers": "changed",
        "logind": "changed",
        "slurm-worker": "changed",
        "summary": "ok",
        "apply": "ok",
    }.items() <= steps.items()
    assert "slurm-controller" not in steps
    assert (
        "mount -t efs -o _netdev,nosuid,nodev,noresvport,tls,iam,accesspoint=fsap-0123456789abcdef0 "
        "fs-0123456789abcdef0:/ "
        "/efs/trainer"
    ) in sandbox.calls
    assert (
        "mount -t lustre -o nosuid,nodev,noatime,flock "
        "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh "
        "/fsx"
    ) in sandbox.calls
    shown = (sandbox.root / "etc/enroot/mounts.d/50-hyperpod-kit.fstab").read_text().splitlines()[1:]
    assert [line.split()[:2] for line in shown] == [["/opt/hyperpod-kit"] * 2, ["/run/hyperpod-kit"] * 2]
    assert all({"ro", "nofail", "x-create=dir"} <= set(line.split()[3].split(",")) for line in shown)
    before = len(sandbox.log)
    second = sandbox.on_create()
    assert second.returncode == 0, second.stdout + second.stderr
    again = sandbox.log[before:]
    assert [line["step"] for line in again if line["status"] != "ok"] == []
    assert "changed=0" in second.stdout
    assert json.loads((sandbox.root / "var/lib/hyperpod-kit/status.json").read_text())["changed"] == 0


@pytest.mark.full
def test_on_hyperpod_our_plugin_leaves_srun_to_hyperpods_own(make_sandbox: Any) -> None:
    """Two plugins with one option: the first in the file has it, and the other is silently never asked."""
    sandbox = make_sandbox("controller")
    (sandbox.root / "opt/sagemaker_cluster").mkdir(parents=True)
    done = sandbox.on_create()
    assert done.returncode == 0, done.stdout + done.stderr
    plugstack = (sandbox.root / "opt/slurm/etc/plugstack.conf").read_text()
    assert "optional /opt/hyperpod-kit/spank/auto_resume.so contexts=allocator\n" in plugstack
    conf = (sandbox.root / "opt/slurm/etc/slurm.conf").read_text()
    assert "Prolog=/opt/hyperpod-kit" in conf and "Alloc" not in conf


@pytest.mark.full
def test_a_controller_gets_the_hooks_before_slurmctld_starts(make_sandbox: Any) -> None:
    sandbox = make_sandbox("controller")
    done = sandbox.on_create()
    assert done.returncode == 0, done.stdout + done.stderr
    conf = (sandbox.root / "opt/slurm/etc/slurm.conf").read_text()
    assert "Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh" in conf
    assert "PrologFlags=Contain,Alloc" in conf and "TaskProlog" not in conf
    plugstack = (sandbox.root / "opt/slurm/etc/plugstack.conf").read_text()
    assert "optional /opt/hyperpod-kit/spank/auto_resume.so\n" in plugstack
    drop_in = (sandbox.root / "etc/systemd/system/hyperpod-kit-sweep.service.d/user.conf").read_text()
    assert drop_in.endswith(f"\n[Service]\nUser={parse_slurm_conf_settings(conf).get('slurmuser', 'root')}\n")
    assert "systemctl start slurmctld.service" in sandbox.calls
    assert "systemctl start slurmd.service" not in sandbox.calls


@pytest.mark.parametrize(
    "harm, named",
    [
        (lambda staging: (staging / "lib.tar.gz").write_text("print()\n"), "lib.tar.gz is damaged"),
        (lambda staging: (staging / "bin/hyperpod-kit").write_text(":\n"), "bin/hyperpod-kit: FAILED"),
        (lambda staging: (staging / "slurm/prolog.sh").unlink(), "slurm/prolog.sh"),
        (lambda staging: (staging / "slurm/json.py").write_text("print()\n"), "slurm/json.py is not listed"),
        (lambda staging: (staging / "units/a unit").symlink_to("/etc/passwd"), "units/a unit is not listed"),
        (lambda staging: (staging / "SHA256SUMS").unlink(), "SHA256SUMS is missing"),
        (lambda staging: (staging / "bundle.json").write_text("{}"), "bundle.json is missing or does not carry the id"),
    ],
)
def test_a_damaged_bundle_is_refused_before_anything_runs(make_sandbox: Any, harm: Any, named: str) -> None:
    sandbox = make_sandbox()
    harm(sandbox.staging)
    done = sandbox.on_create()
    assert done.returncode == 1
    assert named in sandbox.log[-1]["error"]
    assert sandbox.log[-1]["hint"] == "hyperpod-kit upload"
    assert not (sandbox.root / "opt/hyperpod-kit").exists()
    assert not (sandbox.root / "recorder/calls").exists()


@pytest.mark.full
def test_modes_that_s3_lost_come_back(make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    for path in sandbox.staging.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert sandbox.on_create().returncode == 0
    current = sandbox.root / "opt/hyperpod-kit/current"
    assert oct((current / "slurm/prolog.sh").stat().st_mode & 0o777) == "0o755"
    assert oct((current / "bin/hyperpod-kit").stat().st_mode & 0o777) == "0o755"
    assert oct((current / "node_config.json").stat().st_mode & 0o777) == "0o644"


@pytest.mark.full
def test_a_mount_that_fails_fails_the_node_but_not_the_other_mounts(make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    config = json.loads((sandbox.staging / "node_config.json").read_text())
    assert config["failure_pause"] == 0.0
    done = sandbox.on_create(HPK_TEST_FAIL="fail-hyperpod-kit-mount-home.service")
    assert done.returncode == 1
    steps = {line["step"]: line for line in sandbox.log}
    assert steps["mount:home"]["status"] == "failed"
    assert steps["mount:data"]["status"] == "changed"
    assert steps["slurm-worker"]["status"] == "skipped"
    assert sandbox.log[-1]["step"] == "apply" and sandbox.log[-1]["status"] == "failed"
    assert "systemctl start slurmd.service" not in sandbox.calls


def test_nothing_refers_to_the_download_directory(make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    assert sandbox.on_create().returncode == 0
    for path in sandbox.root.rglob("*"):
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
            assert str(sandbox.staging) not in path.read_text(errors="replace"), path


@pytest.mark.full
def test_the_same_program_runs_by_hand_with_awss_arguments(make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    script = str(sandbox.staging / "lifecycle_script.py")
    done = sandbox.run(
        [
            "/usr/bin/python3",
            script,
            "-rc",
            f"{sandbox.root}/opt/ml/config/resource_config.json",
            "-pp",
            "provisioning_parameters.json",
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    missing = sandbox.run(["/usr/bin/python3", script, "-rc", "/nowhere.json"])
    assert (missing.returncode, missing.stderr) == (2, "error: /nowhere.json: no such file\n")


@pytest.mark.full
def test_the_nodes_own_commands(make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    assert sandbox.on_create().returncode == 0
    found = sandbox.node("mounts", "--json")
    data = json.loads(found.stdout)
    assert found.returncode == 0
    assert (data["node"], data["instance_id"], data["role"]) == ("ip-10-1-0-20", "i-0w", "compute")
    assert data["bundle_id"] == sandbox.bundle.bundle_id
    assert {mount["name"]: (mount["state"], mount["source"]) for mount in data["mounts"]} == {
        "fsx": ("ok", "10.1.0.1@tcp:/abcdefgh"),
        "home": ("ok", "fs-0123456789abcdef0:/ fsap-0123456789abcdef0"),
        "data": ("ok", "s3://sagemaker-hyperpod-kit-data/corpus/"),
    }
    assert sandbox.node("gate").returncode == 0
    assert json.loads(sandbox.node("facts", "--json").stdout)["controller_address"] == "10.1.0.10"
    assert "mount:home" in sandbox.node("plan").stdout
    # Somebody unmounts: seen, repaired by what one check orders, seen again.
    sandbox.run(["umount", "/fsx"])
    assert sandbox.node("mounts", "fsx").returncode == 1
    seen = sandbox.node("health", "--json")
    assert (seen.returncode, json.loads(seen.stdout)["repairs_ordered"]) == (1, ["fsx"]), seen.stderr
    assert "fsx: ok -> absent" in seen.stderr
    healed = sandbox.node("health", "--json")
    assert healed.returncode == 0, healed.stderr
    assert json.loads(healed.stdout)["mounts"]["fsx"]["last_repair"].endswith("serves again")
    assert sandbox.node("mounts", "fsx").returncode == 0
    assert sandbox.node("repair", "fsx").stderr == "fsx: nothing to repair: the mount works\n"
    for wrong, code, words in (
        (("mounts", "nosuch"), 3, "no mount nosuch on a compute node; it has: fsx, home, data"),
        (("mounts", "ensure", "data"), 2, "is mounted by its daemon's unit"),
    ):
        done = sandbox.node(*wrong)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr


@pytest.mark.full
def test_a_daemon_gets_its_new_options_and_no_other_mount_is_disturbed(make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    assert sandbox.on_create().returncode == 0
    unit = sandbox.root / "opt/hyperpod-kit/current/units/hyperpod-kit-s3-data.service"
    unit.write_text(unit.read_text().replace('--file-mode "0644"', '--file-mode "0640"'))
    before = len(sandbox.calls)
    done = sandbox.node("apply", "--mode", "on_create")
    assert done.returncode == 0, done.stdout + done.stderr
    changing = [call for call in sandbox.calls[before:] if call.startswith(("systemctl restart", "systemctl start"))]
    assert changing == ["systemctl restart hyperpod-kit-s3-data.service"]
    assert "changed=0" in sandbox.node("apply", "--mode", "on_create").stdout


def test_a_node_that_does_not_know_itself_says_so_in_the_log(make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    config = sandbox.root / "opt/ml/config/resource_config.json"
    config.write_text(config.read_text().replace('"worker-group"', '"new-group"'))
    done = sandbox.on_create()
    assert done.returncode == 1
    facts = next(line for line in sandbox.log if line["step"] == "facts")
    assert "this node is in instance group new-group" in facts["error"]
    assert "hyperpod-kit upload" in facts["hint"]


@pytest.mark.full
def test_on_init_complete_leaves_slurm_to_the_platform(make_sandbox: Any) -> None:
    sandbox = make_sandbox("controller")
    done = sandbox.run(["/bin/bash", str(sandbox.staging / "on_init_complete.sh")])
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line["step"] for line in sandbox.log]
    assert "slurm-hooks" in steps and "slurm-controller" not in steps


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], timeout=20).returncode == 0
    text = script.read_bytes()
    assert text.startswith(b"#!/bin/bash\n") and b"\r" not in text
