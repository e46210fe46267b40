"""Ranks in containers: what can only happen there."""

from __future__ import annotations

import signal
from typing import Callable, cast

import pytest
from containers import PLAIN, PYTHON

from hyperpod_kit.checkpoint.repository.format import layout
from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.profiles import CONTAINER
from tests.faults.site import Site
from tests.support.wait import until

pytestmark = pytest.mark.profiles(CONTAINER.name)
Row = Callable[..., None]
AT_MOST = 2
"""Attempts of a job whose ranks never begin. One, where srun's code is that of the rank that has said why and not of
one that was ended for its sake."""
STEPS, EVERY = 400, 100
"""Ten seconds between two saves, as --pause 0.1 has it: what is found out within them costs no second save."""


def saves_of(job: Job) -> tuple[set[int], set[int]]:
    """Steps whose save was committed, and steps whose save some rank could not write and said so."""
    lines = job.lines()
    names = [layout.parse_checkpoint_id(str(line["saved"])) for line in lines if "saved" in line]
    return {name.step for name in names if name}, {int(line["failed"]) for line in lines if "failed" in line}


@pytest.mark.machines
@pytest.mark.parametrize("who", ["a worker", "the batch host"])
def test_a_mount_is_repaired_under_a_container(job: Job, site: Site, row: Row, who: str) -> None:
    """The node mounts it anew within seconds; the container that runs keeps the dead one, and its trainer goes on."""
    machines = cast(MachineSite, site)
    job.submit("--steps", str(STEPS), "--every", str(EVERY), "--pause", "0.1", "--keep-on")
    job.at_step(EVERY + 5)
    host = job.show()["BatchHost"]
    victim = host if who == "the batch host" else next(one for one in job.rows("attempt")[-1]["nodes"] if one != host)
    fault = job.broken(lambda: machines.break_mount(victim, "kill-daemon"))
    seconds = job.resumed(fault, 90)
    job.ended_well(STEPS)
    lost = max(line["step"] for line in job.progress() if line["attempt"] == fault.attempt)
    # The batch host has the job's log on the same mount: only a new run gets one that is written.
    assert job.classes[0] == "storage" and job.show()["Restarts"] == str(int(who == "the batch host")), job.told()
    saved, failed = saves_of(job)
    first = {step for step in range(EVERY, lost + 1, EVERY)}
    assert first <= saved | failed, "a save was lost and nobody said so"
    assert len(failed) <= 1, job.told()
    row(
        f"the mount of {who} is killed and repaired by the node, a container runs",
        "noticed in the container, the ranks are started anew in one that sees the repaired mount; "
        "at most one save fails, and says so",
        seconds,
        f"saves every {EVERY // 10} s, {len(failed)} failed",
    )


@pytest.mark.quick
def test_an_image_without_python(job: Job, row: Row) -> None:
    job.container = job.container.replace(PYTHON, PLAIN)
    job.submit("--steps", "20")
    assert job.finish() in ("HELD", "SPECIAL_EXIT"), job.told()
    assert job.show()["ExitCode"] == "86:0" and len(job.rows("attempt")) <= AT_MOST, job.told()
    assert "this container has no Python 3.8 or newer" in job.log and "--container-python PATH" in job.log
    row(
        "an image without Python",
        "no rank is started: held after at most two attempts, exit 86, with the option to type",
        None,
    )


@pytest.mark.quick
def test_an_image_that_is_not_there(job: Job, row: Row) -> None:
    job.container = job.container.replace(PYTHON, "none.sqsh")
    job.submit("--steps", "20")
    assert job.finish() in ("HELD", "SPECIAL_EXIT"), job.told()
    assert job.show()["ExitCode"] == "86:0" and len(job.rows("attempt")) == 2, job.told()
    assert "none.sqsh" in job.log and "no rank has begun in the container" in job.log
    row("an image that is not there", "no rank is started: held after two attempts, exit 86", None)


@pytest.mark.quick
def test_the_root_is_in_no_mount_of_the_container(job: Job, row: Row) -> None:
    image, mounts = job.container.split()
    job.container = f"{image} --container-mounts={mounts.partition('=')[2].split(',')[-1]}"
    if job.site.kind == "machines":
        job.container = image
    job.submit("--steps", "20")
    assert job.finish() in ("HELD", "SPECIAL_EXIT"), job.told()
    assert job.show()["ExitCode"] == "86:0" and len(job.rows("attempt")) <= AT_MOST, job.told()
    assert "no mount of this container contains" in job.log, job.told()
    row(
        "the checkpoint root is in no mount of the container",
        "no rank is started: held after at most two attempts, exit 86, with the option to type",
        None,
    )


def test_a_rank_of_a_job_with_a_named_container_is_killed(job: Job, row: Row) -> None:
    """Its unpacked image is there still when the next attempt begins."""
    job.container += f" --container-name={job.name}"
    job.submit("--steps", "60").running()
    seconds = job.resumed(job.send(signal.SIGKILL))
    job.ended_well(60)
    assert job.classes == ["crash", "done"] and job.rows("ended")[0]["first"]["signal"] == 9, job.told()
    assert job.rows("ended")[0]["reached"] > 0, "a rank in a container says how far it came"
    until(lambda: not job.processes(1), what="an end of all of it")
    row("a rank is SIGKILLed, the container has a name", "retried in the same unpacked image", seconds)


@pytest.mark.needs("pyxis")
def test_a_container_that_pyxis_cannot_start(job: Job, row: Row) -> None:
    """pyxis joins a container by a process in it, which is nobody it knows where process ids are the container's."""
    job.submit("--steps", "20", sbatch=("-N2", "--export=ALL,ENROOT_UNSHARE_PID=y"))
    assert job.finish() in ("HELD", "SPECIAL_EXIT"), job.told()
    assert job.show()["ExitCode"] == "86:0" and len(job.rows("attempt")) == AT_MOST, job.told()
    assert "no rank has begun in the container" in job.log and "container exited too soon" in job.log
    row("a container that pyxis cannot start (`ENROOT_UNSHARE_PID`)", "held after two attempts, exit 86", None)
