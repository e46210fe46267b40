"""Jobs on the cluster: resumed after a machine died, from the right checkpoint, or not at all."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from driver import Driver, events, steps, wait_until

from tests.rehearsal.jobs import SCRIPT, SMALL, attempts, finish, restored, until_committed, weights


def flip(driver: Driver, path: str) -> None:
    """Flip one bit in the middle of a file, in place."""
    program = (
        "import os, sys; f = open(sys.argv[1], 'r+b'); f.seek(os.path.getsize(sys.argv[1]) // 2); "
        "b = f.read(1); f.seek(-1, 1); f.write(bytes([b[0] ^ 1])); f.close()"
    )
    driver.on("controller", f"python3 -c {shlex.quote(program)} {shlex.quote(path)}")


def test_a_job_survives_the_death_of_a_machine_with_the_same_weights(cluster: Driver, undisturbed: str) -> None:
    root, go = "/fsx/trainer/killed", "/fsx/trainer/killed-go"
    # It is alive until it is killed, however fast its steps are.
    job = cluster.submit(SCRIPT, "90", *SMALL, "--hold-at", "60", "--hold-until", go, root=root)
    until_committed(cluster, job, root, 2)
    victim = cluster.job_nodes(job)[0]  # the batch host itself
    before = {node["instance_id"] for node in cluster.nodes()}
    cluster.kit("rehearse", "kill-node", "--name", cluster.name, victim)
    cluster.on("controller", f"touch {go}", user="trainer")
    assert finish(cluster, job) == "COMPLETED", cluster.output(job)
    output = cluster.output(job)
    got = restored(output)
    assert got["step"] > 0 and got["tier"], output
    after = cluster.nodes()
    assert {node["instance_id"] for node in after} - before, "the machine was replaced"
    assert weights(output) == undisturbed
    told = json.loads(cluster.on("controller", f"hyperpod-kit job status --root {root} --json", user="trainer"))
    first = told["attempts"][0]
    assert (first["kind"], first["nodes_lost"]) == ("node_lost", [victim]) and "cancelled" not in json.dumps(told)
    # Rank 0's last lines may have gone down with its machine; it went on from the step after the one it restored.
    seen = steps(output)
    again = len(seen) - len(set(seen))
    assert first["reached"] - got["step"] == told["totals"]["lost"] >= again, (told, seen)


@pytest.mark.full
def test_an_agent_that_dies_has_a_successor_at_once_and_a_second_job_gets_one_clear_error(
    cluster: Driver, undisturbed: str
) -> None:
    root, go = "/fsx/trainer/agent", "/fsx/trainer/agent-go"
    job = cluster.submit(SCRIPT, "90", *SMALL, "--hold-at", "60", "--hold-until", go, root=root)
    until_committed(cluster, job, root, 1)
    nodes = cluster.job_nodes(job)
    # The agent's lock names it: [[pid, start time], [the trainer's]].
    agent = json.loads(cluster.on(nodes[0], "cat /dev/shm/hyperpod-kit/*/hpk-*-00000.lock"))[0][0]
    cluster.on(nodes[0], f"kill -KILL {agent}")
    second = cluster.submit(SCRIPT, "90", root=root, options=("--auto-resume=1", "--nodes=1"))
    assert finish(cluster, second) == "FAILED"
    assert f"is used by job {job}, which is RUNNING" in cluster.output(second) and not events(cluster.output(second))
    cluster.on("controller", f"touch {go}", user="trainer")
    assert finish(cluster, job) == "COMPLETED", cluster.output(job)
    output = cluster.output(job)
    assert "a new agent (pid " in output and "has replaced it" in output, "it is heard"
    assert weights(output) == undisturbed, output
    assert re.findall(r"attempt \S+ (\w+).* \([\d.]+ s\)$", output, re.M) == ["finished"], output
    for node in nodes:
        wait_until("free memory", lambda at=node: not cluster.on(at, "find /dev/shm -type f").split(), timeout=180)  # type: ignore[misc]


@pytest.mark.full
def test_a_corrupt_newest_checkpoint_is_passed_over_and_all_corrupt_is_refused(cluster: Driver) -> None:
    root = "/fsx/trainer/corrupt"
    first = cluster.submit(SCRIPT, "20", root=root)
    assert finish(cluster, first) == "COMPLETED", cluster.output(first)
    *_, previous, newest = attempts(cluster, root)

    flip(cluster, f"{root}/{newest}/shard-00000.safetensors")
    second = cluster.submit(SCRIPT, "25", root=root)
    assert finish(cluster, second) == "COMPLETED", cluster.output(second)
    output = cluster.output(second)
    assert restored(output)["checkpoint_id"] == previous
    assert re.search(rf"{newest}.*shard-00000", output), output

    for attempt in attempts(cluster, root):
        flip(cluster, f"{root}/{attempt}/shard-00001.safetensors")
    third = cluster.submit(SCRIPT, "30", root=root)
    state = finish(cluster, third)
    output = cluster.output(third)
    assert state in ("HELD", "SPECIAL_EXIT", "FAILED"), (state, output)
    assert "NoValidCheckpoint" in output
    assert steps(output) == [], "it must not start from scratch"
    cluster.on("controller", f"scancel {third}", check=False)
