"""Ends that Slurm brings: the time limit, preemption, scancel, and a slurmctld that dies."""

from __future__ import annotations

import signal
import time
from typing import Callable

import pytest

from tests.faults.job import Job
from tests.faults.profiles import IN_FOLDERS
from tests.faults.site import Site
from tests.support.wait import scaled, until

Row = Callable[..., None]
SRUN_ALONE = 60
"""Seconds that srun waits at least where nobody tells it that nodes have registered."""


def nothing_lost(job: Job) -> None:
    """The second attempt goes on exactly where the first one was told to save."""
    first, second = job.rows("attempt")[:2]
    last = max(line["step"] for line in job.progress() if line["attempt"] == first["attempt"])
    assert second["step"] == last and job.classes[0] == "again", job.told()


def test_the_time_limit(job: Job, row: Row) -> None:
    # Slurm looks at limits every half minute or so, and may warn up to a minute early.
    job.submit("--steps", "900", "--every", "10000", "--pause", "0.1", sbatch=("-N2", "--time=2", "--signal=B:USR1@60"))
    until(lambda: "USR1" in job.log, 120, what="warning")
    warned = next(line["t"] for line in reversed(job.progress()))
    until(lambda: len(job.rows("attempt")) > 1, what="second attempt")
    job.at_step(job.rows("attempt")[1]["step"] + 1)
    nothing_lost(job)
    seconds = next(line["t"] for line in job.progress() if line["attempt"] == job.attempt()) - warned
    row("time limit with `--signal=B:USR1@60`", "saved, requeued, 0 steps lost", round(seconds, 1))


def preempted(job: Job, site: Site, kind: str) -> float:
    """Seconds until it runs again after a job of 3 s took all nodes. `kind`: -p or --qos."""
    job.submit(
        "--steps",
        "100",
        "--every",
        "10000",
        "--pause",
        "0.1",
        sbatch=("-N2", "--exclusive", "--signal=B:USR1@30", kind, "patient"),
    ).at_step(5)
    seconds = job.resumed(
        job.broken(
            lambda: site.slurm(
                "sbatch",
                kind,
                "urgent",
                "-N",
                str(len(site.nodes)),
                "--exclusive",
                "-o",
                "/dev/null",
                "--wrap",
                "sleep 3",
                user=True,
            )
        ),
        120,
    )
    nothing_lost(job)
    job.ended_well(100)
    assert len(job.rows("attempt")) == 2, job.told()
    return seconds


def once_more(job: Job) -> str:
    """Whether Slurm took the end of the job for its preemption, in words: the run that follows does nothing."""
    restarts = int(job.show()["Restarts"])
    assert restarts == (2 if "nothing to do" in job.log else 1), job.told()
    return "and at its end queued once more, where nothing is done" if restarts == 2 else ""


def test_preemption_by_partition(job: Job, site: Site, row: Row) -> None:
    row(
        "preempted by a partition of higher priority",
        "saved, requeued, 0 steps lost; the other job ran 3 s",
        preempted(job, site, "-p"),
        once_more(job),
    )


@pytest.mark.needs("accounting")
def test_preemption_by_qos(accounted_site: Site, row: Row) -> None:
    job = Job(accounted_site)
    row(
        "preempted by a QOS of higher priority (slurmdbd, always on loopback)",
        "saved, requeued, 0 steps lost; the other job ran 3 s",
        preempted(job, accounted_site, "--qos"),
        once_more(job),
    )


def to_stage(job: Job, site: Site, stage: str) -> None:
    """Submit it, and bring it to where it is to be cancelled."""
    trainer = {"saving": ("--pause", "4", "--every", "10000"), "backing off": ("--every", "10000")}.get(stage, ())
    job.submit(
        "--steps",
        "5000",
        *trainer,
        sbatch=("-N2", "--begin=now+600") if stage == "pending" else ("-N2",),
        options="--backoff 60" if stage == "backing off" else "",
    )
    if stage == "pending":
        return
    until(lambda: job.rows("attempt"), what="an attempt")
    if stage == "saving":
        job.at_step(1)
        site.slurm("scancel", "--batch", "--signal=USR1", job.id, user=True)
        until(lambda: "requesting a save from the step" in job.log, what="a warning")
    elif stage == "backing off":
        # After one crash there is no pause; the second is from the same place, for nothing was saved.
        for number in (1, 2):
            until(lambda wanted=number: len(job.rows("attempt")) == wanted, what="an attempt")  # type: ignore[misc]
            job.send(signal.SIGKILL)
        until(lambda: "trying again in" in job.log, what="a pause")
    elif stage != "starting":
        job.running()
    if stage == "waiting for storage":
        job.checkpoint_root.away()
        until(lambda: "waiting up to" in job.log, what="waiting")
    if stage == "held":
        job.send(signal.SIGSTOP, rank=0)
        job.flip("shard-00000.safetensors", *job.checkpoint_root.committed())
        job.send(signal.SIGKILL, rank=0)
        assert job.finish() in ("HELD", "SPECIAL_EXIT"), job.told()
    if stage == "requeued":
        site.slurm("scontrol", "requeue", job.id, user=True)
        until(lambda: job.show().get("JobState") == "PENDING", what="requeue")


@pytest.mark.parametrize(
    "stage", ["pending", "starting", "running", "saving", "backing off", "waiting for storage", "requeued", "held"]
)
def test_scancel(job: Job, site: Site, row: Row, stage: str) -> None:
    to_stage(job, site, stage)
    site.slurm("scancel", job.id, user=True)
    if stage == "waiting for storage":
        until(lambda: job.show()["JobState"] == "CANCELLED", what="an end")
        job.checkpoint_root.back()
    assert job.finish() == "CANCELLED", job.told()
    attempts = len(job.rows("attempt"))
    until(lambda: not site.slurm("squeue", "-h", "-j", job.id, check=False).strip(), what="a free cluster")
    time.sleep(1.0)  # whatever would bring it back has had its chance: cred_expire counts from the requeue
    assert job.show()["JobState"] == "CANCELLED" and len(job.rows("attempt")) == attempts
    assert not job.processes(0) and not job.rows("requeue")
    row(f"scancel while {stage}", "ends, never comes back", None)


def test_slurmctld_is_killed(job: Job, site: Site, row: Row) -> None:
    # slurmctld writes its state down some seconds late: killed sooner, it has never heard of the job.
    job.submit("--steps", "160", "--pause", "0.1").at_step(80)
    site.kill_controller()
    before = job.progress()[-1]["step"]
    job.at_step(before + 20)
    site.start_controller()
    job.ended_well(160)
    assert job.classes == ["done"] and len(job.rows("attempt")) == 1
    row("slurmctld is killed, and started 2 s later", "the job does not notice", None, "no step is missed")


def test_slurmctld_is_killed_as_a_rank_dies(job: Job, site: Site, row: Row) -> None:
    """srun is asked for the next step before the nodes have registered with the new slurmctld: it would then say
    nothing for a minute or more."""
    job.submit("--steps", "200", "--pause", "0.1").at_step(80)
    site.kill_controller()
    fault = job.send(signal.SIGKILL)
    time.sleep(2)
    site.start_controller()
    seconds = job.resumed(fault, 2 * SRUN_ALONE)
    job.ended_well(200)
    assert job.classes == ["crash", "done"] and seconds < scaled(SRUN_ALONE), job.told()
    row(
        "slurmctld is killed as a rank dies, and started 2 s later",
        "waits until the nodes have registered, retried in the allocation",
        seconds,
    )


@pytest.mark.full
@pytest.mark.quick
@pytest.mark.profiles(*IN_FOLDERS)
def test_eight_ranks_take_one_decision(job: Job, site: Site, row: Row) -> None:
    """While another job's trainer commits into the same directory, eight ranks start: all are told the same."""
    import shutil
    import threading

    job.submit("--steps", "20").ended_well(20)
    late = Job(site)
    newest = job.checkpoints()
    late.root.mkdir(mode=0o777)
    late.root.chmod(0o777)
    shutil.copytree(newest[0], late.root / newest[0].name)
    over = threading.Event()

    def appear() -> None:
        for path in newest[1:]:
            if over.wait(0.3):
                return
            shutil.copytree(path, late.root / f".{path.name}")
            (late.root / f".{path.name}").rename(late.root / path.name)

    thread = threading.Thread(target=appear)
    thread.start()
    late.submit("--steps", "30", options="--srun-args '--ntasks=8 --ntasks-per-node=4 --overcommit'")
    until(lambda: len(said(late)) >= 8, what="eight ranks")
    over.set()
    thread.join()
    assert len(set(said(late)[:8])) == 1, late.told()
    row("8 ranks start while checkpoints appear", "one decision, the same for all", None)


def said(job: Job) -> list[str]:
    return [line["resumed"] for line in job.lines() if "resumed" in line]
