"""Whom Slurm signals, read from where a task is: texts of real tasks."""

from __future__ import annotations

import pytest

from hyperpod_kit.slurm.tracking import only_tasks_are_signalled

V1 = "9:name=systemd:/system.slice/slurmd.service\n6:freezer:/{}\n4:memory:/\n0::/system.slice/slurmd.service\n"


@pytest.mark.parametrize(
    ("cgroups", "only_tasks"),
    [
        (V1.format("slurm_ip-10-1-42-18/uid_0/job_1/step_0"), True),
        (V1.format("slurm/uid_2001/job_12/step_batch/task_0"), True),
        ("0::/system.slice/slurmstepd.scope/job_1/step_0/user/task_0\n", True),
        ("0::/system.slice/n1_slurmstepd.scope/job_1/step_0/user/task_0\n", True),
        (V1.format(""), False),
        # Limits by task/cgroup, tracking by something else.
        ("6:freezer:/\n4:memory:/slurm/uid_0/job_1/step_0\n0::/\n", False),
        ("0::/\n", False),
        ("", False),
    ],
)
def test_which_processes_of_a_step_hear_a_signal(cgroups: str, only_tasks: bool) -> None:
    assert only_tasks_are_signalled(cgroups) is only_tasks
