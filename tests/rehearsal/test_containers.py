"""Containers on the cluster: real enroot and pyxis, for users of the kit and for those who never heard of it."""

from __future__ import annotations

import json
import re
import shlex
from typing import Iterator, Optional

import containers
import pytest
from containers import IMAGES, PLAIN, PYTHON, SH
from driver import TRAIN, Driver, events, wait_until

from tests.rehearsal.jobs import finish, restored, until_committed
from tests.support.rows import full

pytestmark = pytest.mark.needs("containers", "user-namespaces")

CONF = "/opt/slurm/etc"
MOUNTS = f"--container-mounts=/fsx:/fsx,{TRAIN}:{TRAIN}:ro,/mnt/data:/mnt/data:ro"
TASK_PROLOG = "TaskProlog=/opt/hyperpod-kit/current/slurm/task_prolog.sh"


@pytest.fixture(scope="module")
def pyxis(cluster: Driver) -> Iterator[Driver]:
    """The cluster with pyxis in its plugstack.conf, as whoever installs it puts it there: behind our block."""
    saved = cluster.on("controller", f"cat {CONF}/plugstack.conf")
    try:
        containers.add_pyxis(cluster)
        yield cluster
    finally:
        cluster.on("controller", f"printf %s {shlex.quote(saved)} >{CONF}/plugstack.conf")
        containers.reconfigure(cluster)


def srun(driver: Driver, image: str, command: str, *options: str, user: Optional[str] = None, env: str = "") -> str:
    """What a task in a container prints, with errors of Slurm's and the exit code in the last line.

    Without srun's news: a job may well be "queued and waiting for resources" for a moment.
    """
    line = shlex.join(["srun", "-Q", "-t2", f"--container-image={IMAGES}/{image}", *options, "sh", "-c", command])
    return driver.on("controller", f"cd /tmp; {env} {line} 2>&1; echo exit $?", user=user)


@pytest.mark.parametrize("user", ["trainer", *full(None)])
@pytest.mark.parametrize("image", [PYTHON, *full(PLAIN, SH)])
def test_a_user_who_never_heard_of_the_kit(pyxis: Driver, image: str, user: Optional[str]) -> None:
    out = srun(pyxis, image, "echo uid $(id -u); type python3 bash; true", user=user)
    has = {PYTHON: ("python3 is /usr/bin/python3", "bash is /usr/bin/bash"), PLAIN: ("bash is /usr/bin/bash",), SH: ()}
    lines = out.splitlines()
    assert lines[0] == f"uid {2001 if user else 0}" and lines[-1] == "exit 0", out
    assert {line for line in lines if " is " in line} == set(has[image]), "it is the image that it should be"


@pytest.mark.full
def test_the_task_prolog_of_an_earlier_bundle_ends_nobody_and_is_found(pyxis: Driver) -> None:
    pyxis.on("controller", f"cp {CONF}/slurm.conf /tmp/slurm.conf.kept; echo {TASK_PROLOG} >>{CONF}/slurm.conf")
    try:
        containers.reconfigure(pyxis)
        assert srun(pyxis, SH, "echo started", user="trainer").split() == ["started", "exit", "0"]
        found = json.loads(pyxis.on("controller", "hyperpod-kit job doctor --json", check=False))["findings"]
        assert [(one["code"], one["severity"]) for one in found if one["code"] == "S016"] == [("S016", "error")]
    finally:
        pyxis.on("controller", f"cp /tmp/slurm.conf.kept {CONF}/slurm.conf")
        containers.reconfigure(pyxis)
    assert "S016" not in pyxis.on("controller", "hyperpod-kit job doctor --json", check=False)


@pytest.mark.full
def test_a_bare_srun_is_told_its_checkpoint_in_an_image_without_python(pyxis: Driver) -> None:
    root = "/fsx/trainer/bare-container"
    pyxis.on("controller", f"install -d -o trainer -g trainer /fsx/trainer {root}")
    told = srun(
        pyxis,
        SH,
        "echo from $HPK_RESUME_FROM",
        "-N2",
        "-n4",
        "-O",
        user="trainer",
        env=f"HPK_AUTO_RESUME=1 HPK_CHECKPOINT_ROOT={root}",
    )
    assert told.splitlines().count("from none") == 4 and told.endswith("exit 0\n"), told
    assert told.count("starts at step 0: no checkpoint was ever committed") == 1
    refused = srun(pyxis, SH, "echo started", user="trainer", env="HPK_AUTO_RESUME=1 HPK_CHECKPOINT_ROOT=/away/run")
    assert "no checkpoint was chosen from /away/run: error: cannot use /away/run: /away does not exist" in refused
    assert "started" not in refused.splitlines() and "HPK_AUTO_RESUME=0 starts it as it is" in refused
    assert refused.endswith("exit 1\n")


SCRIPT = """\
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 --requeue --open-mode=append --auto-resume=1
#SBATCH --chdir=/fsx/trainer --output=/fsx/trainer/train-%j.out
exec hyperpod-kit job run --json-lines --checkpoint-root {root} \\
    --srun-args="--container-image={image} {mounts} {more}" -- \\
    {train}/bin/python3 {train}/gpt/train.py --data /mnt/data --checkpoint-root {root} --steps {steps} \\
    --save-every {every} --out {root}/weights.pt
"""


LONG = 150
"""Steps that take some ten times as long as a look at the job."""


def submit(driver: Driver, root: str, image: str, more: str = "", steps: int = 40, every: int = 5) -> str:
    script = SCRIPT.format(
        root=root, image=f"{IMAGES}/{image}", mounts=MOUNTS, train=TRAIN, more=more, steps=steps, every=every
    )
    driver.on(
        "controller",
        f"install -d -o trainer -g trainer /fsx/trainer; printf %s {shlex.quote(script)} "
        ">/fsx/trainer/contained.sbatch",
    )
    return driver.on("controller", "sbatch --parsable /fsx/trainer/contained.sbatch", user="trainer").strip()


@pytest.mark.full
def test_a_job_in_an_image_without_python_is_held_with_the_reason(pyxis: Driver) -> None:
    job = submit(pyxis, "/fsx/trainer/no-python", PLAIN)
    try:
        wait_until("end of the job", lambda: pyxis.job_state(job) == "SPECIAL_EXIT", timeout=180)
    finally:
        pyxis.on("controller", f"scancel {job}", check=False)
    output = pyxis.output(job)
    assert "this container has no Python 3.8 or newer" in output and "--container-python PATH" in output
    # One, where srun's code is that of the rank that has said why.
    assert len([event for event in events(output) if event.get("event") == "attempt"]) <= 2, output


@pytest.mark.full
@pytest.mark.parametrize(
    ("option", "tier"),
    [("", "memory"), ("--container-unshare=ipc", "storage")],
)
def test_a_job_in_a_container_that_is_killed_resumes(pyxis: Driver, option: str, tier: str) -> None:
    """From memory where the memory outlives the container; where it does not, the log says so."""
    root = f"/fsx/trainer/in-container-{tier}"
    job = submit(pyxis, root, PYTHON, option, steps=LONG)  # it must not have ended when its rank is killed
    until_committed(pyxis, job, root, 2)
    victim = pyxis.job_nodes(job)[1]
    pyxis.on(victim, "kill -KILL $(pgrep -f '^[^ ]*python3 [^ ]*gpt/train.py' | head -n 1)")
    assert finish(pyxis, job) == "COMPLETED", pyxis.output(job)
    output = pyxis.output(job)
    ended = [event for event in events(output) if event.get("event") == "ended"]
    assert [event["class"] for event in ended] == ["crash", "done"] and ended[0]["first"]["signal"] == 9, output
    assert restored(output)["step"] > 0 and restored(output)["tier"] == tier, output
    assert ("captures in memory are lost with the container" in output) == bool(option), output
    assert ended[0]["reached"] > 0, "how far a rank came is known outside of the container"
    for node in {node["instance_id"] for node in pyxis.nodes() if node["group"] == "worker-group"}:
        wait_until("free memory", lambda at=node: not pyxis.on(at, "find /dev/shm -type f").split(), timeout=180)  # type: ignore[misc]
        assert pyxis.on(node, "ls /var/lib/enroot/data-2001 2>/dev/null", check=False).split() == []


@pytest.mark.full  # a minute and a half of a machine's time; a row of `make faults PROFILE=container` too
def test_a_mount_that_the_node_repairs_costs_a_container_no_step(pyxis: Driver) -> None:
    """The container keeps the dead mount; the save that fails there is in memory, from which the next one resumes."""
    root = "/fsx/trainer/repaired"
    job = submit(pyxis, root, PYTHON, steps=200, every=50)
    until_committed(pyxis, job, root, 1)
    victim = pyxis.job_nodes(job)[1]
    pyxis.kit("rehearse", "break-mount", "--name", pyxis.name, "kill-daemon", victim, "/fsx")
    assert finish(pyxis, job) == "COMPLETED", pyxis.output(job)
    output = pyxis.output(job)
    ended = [event for event in events(output) if event.get("event") == "ended"]
    assert ended[0]["class"] == "storage" and ended[-1]["class"] == "done", output
    # A new start may come before the node has repaired the mount, and fail because of that; where the mount is back by
    # the time that the node is asked about it, nothing is left that says so.
    between = {event["class"] for event in ended[1:-1]}
    assert between <= {"storage"} or ("crash" in between and "/fsx cannot be mounted" in output), output
    assert "memory" in str(restored(output)["tier"]) and restored(output)["step"] >= 49, output
    lost = {found for found in re.findall(r"save of step (\d+): failed", output)}
    assert len(lost) <= 1, output
