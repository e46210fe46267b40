"""Tasks of an array and components of a heterogeneous job: each acts for itself alone, under faults."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, cast

import pytest

from tests.faults.job import SCRIPT, Job
from tests.faults.machines import MachineSite
from tests.faults.site import Site

Row = Callable[..., None]
STEPS = 80
TASKS = 8
STRUCK = (1, 3, 6, 7)
"""Tasks of which a rank is killed. The last one has the array's own number."""


class Array:
    """One array; each task has a root and a log of its own, unless `root` is the same for all."""

    def __init__(self, site: Site, tasks: int, *trainer: str, root: str = "-$SLURM_ARRAY_TASK_ID") -> None:
        lead = Job(site)
        script = site.here / f"{lead.name}.sbatch"
        text = SCRIPT.replace("{name}.out", "{name}-%a.out")
        script.write_text(
            text.format(
                there=site.there,
                name=lead.name,
                program="trainer.py",
                run=site.run,
                root=lead.checkpoint_root.told + root,
                more=lead.checkpoint_root.script,
                options=lead.checkpoint_root.options,
                python=site.python,
                library=site.library,
                trainer=" ".join(trainer),
            )
        )
        script.chmod(0o755)
        self.id = (
            site.slurm(
                "sbatch", "--parsable", f"--array=0-{tasks - 1}", "-N1", "-c1", f"{site.there}/{script.name}", user=True
            )
            .strip()
            .split(";")[0]
        )
        self.tasks = [Job(site, f"{lead.name}-{number}", f"{self.id}_{number}") for number in range(tasks)]


@pytest.mark.full
@pytest.mark.quick
def test_ranks_of_four_of_eight_tasks_are_killed_twice(site: Site, row: Row) -> None:
    array = Array(site, TASKS, "--steps", str(STEPS), "--pause", "0.1")

    def strike(number: int) -> float:
        task = array.tasks[number]
        return max(task.running(180).resumed(task.send(signal.SIGKILL, rank=0), 120) for _ in range(2))

    with ThreadPoolExecutor(len(STRUCK)) as hands:
        seconds = list(hands.map(strike, STRUCK))
    for number, task in enumerate(array.tasks):
        task.ended_well(STEPS, 1, timeout=180)
        assert task.classes == (["crash", "crash", "done"] if number in STRUCK else ["done"]), task.told()
        assert {one["job"] for one in task.rows()} == {f"{array.id}_{number}"}
        assert task.show()["Restarts"] == "0"
    row(
        "a rank is SIGKILLed in four tasks of an array of eight, twice",
        "each is retried in its own allocation; no other task loses a restart",
        max(seconds),
    )


@pytest.mark.quick
def test_two_tasks_never_share_a_root(site: Site) -> None:
    array = Array(site, 3, "--steps", str(STEPS), root="")
    one = Job(site, array.tasks[0].name.rpartition("-")[0])
    refused = [task for task in array.tasks if task.finish() == "FAILED"]
    assert len(refused) == 2
    [owner] = [task for task in array.tasks if task not in refused]
    for task in refused:
        assert f"is used by job {owner.id}, which is RUNNING, and job {task.id} is another task" in task.log, task.log
        assert "-$SLURM_ARRAY_TASK_ID" in task.log
    assert {line["job"] for line in one.rows()} == {owner.id}


def het(job: Job) -> Job:
    return job.submit(
        "--steps", str(STEPS), "--pause", "0.1", sbatch=("-N1", ":", "-N1", "--ntasks-per-node=1", "--requeue")
    ).running()


@pytest.mark.full
@pytest.mark.quick
def test_a_heterogeneous_job_loses_a_rank_of_each_component_and_is_warned(job: Job, site: Site, row: Row) -> None:
    het(job)
    seconds = [job.resumed(job.send(signal.SIGKILL, rank=rank)) for rank in (1, 0)]
    job.running()
    job.broken(lambda: site.slurm("scancel", "--batch", "--signal=USR1", job.id))
    job.ended_well(STEPS, timeout=180)
    assert job.classes == ["crash", "crash", "again", "done"] or job.classes == ["crash", "crash", "preempted", "done"]
    assert all(len(set(line["nodes"])) == len(line["nodes"]) for line in job.rows("attempt"))
    row(
        "a rank is SIGKILLed in each component of a heterogeneous job (`sbatch -N1 : -N1`)",
        "one step over all components, retried in the allocation",
        max(seconds),
    )


@pytest.mark.machines
def test_a_machine_of_a_heterogeneous_job_is_killed(job: Job, site: Site, row: Row) -> None:
    het(job)
    victim = job.rows("attempt")[-1]["nodes"][1]
    fault = job.broken(lambda: cast(MachineSite, site).kill_machine(victim))
    seconds = job.resumed(fault, 180)
    job.ended_well(STEPS, timeout=180)
    assert told_of(job, victim), job.told()
    row("the machine of a heterogeneous job's second component is killed", "all components are requeued", seconds)


@pytest.mark.machines
def test_a_task_whose_machine_is_killed_is_not_called_cancelled(site: Site, row: Row) -> None:
    """The array's last task; a sibling on another machine goes on."""
    array = Array(site, 2, "--steps", "150", "--pause", "0.1")
    task = array.tasks[1].running(120)
    victim = task.rows("attempt")[-1]["nodes"][0]
    fault = task.broken(lambda: cast(MachineSite, site).kill_machine(victim))
    seconds = task.resumed(fault, 240)
    assert told_of(task, victim), task.told()
    for one in array.tasks:
        assert one.finish(240) == "COMPLETED", one.told()
    row("the machine of an array's last task is killed", "that task is requeued, its sibling goes on", seconds)


def told_of(job: Job, victim: str) -> bool:
    """The ledger blames the machine, and nothing says that anybody cancelled the job."""
    first: Any = job.rows("ended")[0]
    return first["class"] == "node_lost" and first["lost"] == [victim] and "cancelled" not in job.log
