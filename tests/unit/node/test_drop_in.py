"""Our bundle beside, or in place of, lifecycle scripts that are not ours and are shaped as AWS's base scripts are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

# The outline of AWS's on_create.sh: tracing, its own lines in the same log, everything below teed into it as well.
THEIRS = """\
#!/bin/bash
set -ex
LOG_FILE=$HPK_ROOT/var/log/provision/provisioning.log
mkdir -p "${LOG_FILE%/*}"
echo "env var SAGEMAKER_RESOURCE_CONFIG_PATH is set" | tee -a "$LOG_FILE"
"""

INSTEAD_OF_THEIRS = """\
python3 -u hyperpod-kit/lifecycle_script.py -rc "$SAGEMAKER_RESOURCE_CONFIG_PATH" -pp provisioning_parameters.json \\
    > >(tee -a "$LOG_FILE") 2>&1
exit $?
"""

AFTER_THEIRS = """\
printf '%s\\n' ClusterName=demo TaskPlugin=task/none SchedulerParameters=permit_job_expansion \\
    >"$HPK_ROOT/opt/slurm/etc/slurm.conf"
systemctl start slurmctld.service
python3 hyperpod-kit/lifecycle_script.py -rc "$SAGEMAKER_RESOURCE_CONFIG_PATH" --mode on_init_complete
"""


def run_theirs(sandbox: Any, directory: Path, more: str) -> subprocess.CompletedProcess[str]:
    script = directory / "their_on_create.sh"
    script.write_text(THEIRS + more)
    config = f"{sandbox.root}/opt/ml/config/resource_config.json"
    return subprocess.run(
        ["/bin/bash", str(script)],
        cwd=directory,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=sandbox.environment(SAGEMAKER_RESOURCE_CONFIG_PATH=config),
    )


@pytest.mark.full
def test_in_place_of_awss_own_program(make_sandbox: Any, tmp_path: Path) -> None:
    """Their on_create.sh starts our lifecycle_script.py, with their arguments; the parameters' file is not there."""
    sandbox = make_sandbox("compute")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "hyperpod-kit").symlink_to(sandbox.staging)
    assert not (theirs / "provisioning_parameters.json").exists()
    done = run_theirs(sandbox, theirs, INSTEAD_OF_THEIRS)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (sandbox.root / "var/log/provision/provisioning.log").read_text().splitlines()
    # Their tee and our own lines share the file, and every line of both is whole.
    assert lines[0].startswith("env var SAGEMAKER_RESOURCE_CONFIG_PATH")
    assert [json.loads(line)["step"] for line in lines if line.startswith("{")][-1] == "apply"
    assert {line["step"]: line["status"] for line in sandbox.log}["mount:home"] == "changed"


@pytest.mark.full
def test_after_awss_scripts_in_a_directory_of_its_own(make_sandbox: Any, tmp_path: Path) -> None:
    """Their scripts have started Slurm; ours adds the mounts and its lines to slurm.conf, and starts nothing twice: it
    stops slurmctld once, while its state moves to shared storage."""
    sandbox = make_sandbox("controller")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "hyperpod-kit").symlink_to(sandbox.staging)
    # A file of theirs with the name of one of ours, and one that a whole-directory check would not know.
    (theirs / "lifecycle_script.py").write_text("raise SystemExit('this is theirs')\n")
    done = run_theirs(sandbox, theirs, AFTER_THEIRS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line["step"]: line.get("detail") for line in sandbox.log}[
        "mode"
    ] == "applied in mode on_init_complete; the bundle was made for on_create"
    steps = [line["step"] for line in sandbox.log]
    assert "slurm-hooks" in steps and "slurm-controller" not in steps
    orders = [call for call in sandbox.calls if call.endswith("slurmctld.service") and " is-" not in call]
    assert [call.split()[1] for call in orders] == ["start", "stop", "start"]
    conf = (sandbox.root / "opt/slurm/etc/slurm.conf").read_text()
    # What auto-resume needs of HyperPod's own settings is as it was.
    assert "TaskPlugin=task/none\n" in conf and conf.count("TaskPlugin") == 1
    assert "SchedulerParameters=permit_job_expansion\n" in conf
    assert "scontrol reconfigure" in sandbox.calls


def test_by_hand_in_the_mode_that_the_bundle_was_made_for(make_sandbox: Any) -> None:
    sandbox = make_sandbox("compute")
    wanted = json.loads((sandbox.staging / "node_config.json").read_text())["lifecycle_mode"]
    done = sandbox.run(["/usr/bin/python3", str(sandbox.staging / "lifecycle_script.py"), "--help"])
    assert f"default: {wanted}," in " ".join(done.stdout.split())
