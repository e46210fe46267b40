"""How many ranks a step has that leaves nodes of its allocation spare."""

from __future__ import annotations

from hyperpod_kit.job.step.srun_step import task_count_variables


def test_ranks_follow_the_nodes_that_are_used() -> None:
    per_node = {"SLURM_NTASKS_PER_NODE": "4", "SLURM_NTASKS": "12"}
    assert task_count_variables(per_node, ["n1", "n2"]) == {"SLURM_NTASKS": "8", "SLURM_NPROCS": "8"}


def test_nothing_is_changed_where_nobody_said_how_many_a_node_has() -> None:
    assert (
        task_count_variables({"SLURM_NTASKS": "12"}, ["n1", "n2"]) == {}
        and task_count_variables({"SLURM_NTASKS_PER_NODE": "4"}, []) == {}
    )
