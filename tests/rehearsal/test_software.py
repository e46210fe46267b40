"""A newer AMI: fresh root volumes under a running cluster, the controller's too."""

from __future__ import annotations

import pytest
from driver import CONFIG, Driver, wait_until


@pytest.mark.full  # two machines after one another are made anew
def test_nodes_come_back_set_up_and_slurm_knows_its_jobs(cluster: Driver) -> None:
    group_of_head, head = "controller-machine", "controller-machine/0"
    submitted = cluster.on(head, "sbatch --parsable --hold --wrap 'sleep 1'", user="trainer").strip()
    for group in ("worker-group", group_of_head):
        before = cluster.data("list-cluster-nodes", str(CONFIG), "--group", group)["nodes"]
        for node in before:
            cluster.on(node["instance_id"], "touch /of-the-old-root")
        cluster.kit(
            *("update-software", str(CONFIG), "--group", group, "--batch", "1", "--yes"),
            *("--wait", "--interval", "1", "--timeout", "280"),
        )
        after = cluster.data("list-cluster-nodes", str(CONFIG), "--group", group)["nodes"]
        assert [node["instance_id"] for node in after] == [node["instance_id"] for node in before]
        for node in after:
            assert cluster.on(node["instance_id"], "test -e /of-the-old-root || echo fresh").strip() == "fresh"
        wait_until(
            "healthy mounts", lambda: cluster.data("validate-mounts", str(CONFIG), check=False)["healthy"], timeout=180
        )
    assert submitted in cluster.on(head, "squeue -h -o %i", user="trainer").split()
    cluster.on(head, f"scancel {submitted}", user="trainer")
    wait_until(
        "idle nodes",
        lambda: set(cluster.on(head, "sinfo -h -o %T", user="trainer").split()) == {"idle"},
        timeout=180,
    )
