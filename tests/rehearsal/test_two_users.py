"""A user trains while another user of the same nodes tries everything that a user can: the job does not notice.

What the other user tries is tests/rehearsal/mallory.py. What it may do is listed in docs/threat-model.md.
"""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from driver import DemoError, Driver, events, steps, wait_until

from tests.rehearsal.jobs import SCRIPT, finish, until_committed, weights

pytestmark = pytest.mark.full  # each attack by itself is in tests/hostile

PROGRAM = Path(__file__).with_name("mallory.py")
MALLORY, TRAINER = 4001, 2001
ROOT = "/fsx/trainer/two-users"
STOP, PORTS = "/tmp/mallory-stop", "/tmp/mallory-ports"
OURS = r"""ss -Hltnp | grep -E "$(pgrep -f 'agent_main|job run' | sed 's/.*/pid=&,/' | paste -sd'|')" | awk '{print $4}'
"""
"""The addresses at which processes of the kit listen, as root sees them."""


@pytest.fixture(scope="module")
def mallory(cluster: Driver) -> Iterator[Driver]:
    """A cluster whose nodes have one more user, with the program in its hands."""
    text = base64.b64encode(PROGRAM.read_bytes()).decode()
    for node in [item["instance_id"] for item in cluster.nodes()]:
        cluster.on(
            node,
            f"id mallory >/dev/null 2>&1 || useradd -m --uid {MALLORY} --shell /bin/bash mallory; "
            f"echo {text} | base64 -d >/tmp/mallory.py",
        )
    try:
        yield cluster
    finally:
        for node in [item["instance_id"] for item in cluster.nodes()]:
            cluster.on(
                node,
                f"scancel --user mallory; find /dev/shm /tmp /var/tmp /fsx -xdev -uid {MALLORY} -delete; "
                f"rmdir /fsx/.hyperpod-kit-probe-*; rm -f {STOP} {PORTS}; userdel -r mallory",
                check=False,
            )


@pytest.fixture(scope="module")
def attacked(mallory: Driver) -> Dict[str, Any]:
    """A job of 90 steps, attacked all the time on each node; the sweep runs in the middle of it."""
    nodes = [item["instance_id"] for item in mallory.nodes()]
    command = f"nice -n 19 timeout 240 python3 /tmp/mallory.py {TRAINER} {ROOT} {STOP} {PORTS}"
    with ThreadPoolExecutor(len(nodes)) as pool:
        at_work = {node: pool.submit(mallory.on, node, command, user="mallory", timeout=300) for node in nodes}
        try:
            job = mallory.submit(SCRIPT, "90", root=ROOT)
            until_committed(mallory, job, ROOT, 1)
            for node in nodes:
                mallory.on(node, f"({OURS}) >{PORTS}", check=False)
            wait_until(
                "a job that lies",
                lambda: (
                    mallory.on("controller", "squeue -h -u mallory") or any(work.done() for work in at_work.values())
                ),
                timeout=180,
            )
            mallory.on("controller", "systemctl start hyperpod-kit-sweep.service", check=False)
            state = finish(mallory, job)
        except DemoError as err:  # what the job said tells why
            state = str(err)
        finally:
            for node in nodes:
                mallory.on(node, f"touch {STOP}")
    said = {node: json.loads(work.result().splitlines()[-1]) for node, work in at_work.items()}
    return {"said": said, "state": state, "output": mallory.output(job)}


def test_nothing_that_must_be_refused_worked(attacked: Dict[str, Any]) -> None:
    effects = [f"{node}: {effect}" for node, said in attacked["said"].items() for effect in said["effects"]]
    assert effects == []
    kinds = {kind for said in attacked["said"].values() for kind in said["tried"]}
    assert kinds >= {"signal", "proc", "write", "rename", "port", "slurm", "lie", "kit", "journal", "lock"}, kinds


def test_the_job_went_through_in_one_attempt_with_the_same_weights(
    attacked: Dict[str, Any], undisturbed_example: str
) -> None:
    output = attacked["output"]
    assert attacked["state"] == "COMPLETED", output
    assert weights(output) == undisturbed_example
    assert len(steps(output)) == len(set(steps(output))) == 90
    assert re.findall(r"attempt \S+ (\w+).* \([\d.]+ s\)$", output, re.M) == ["finished"], output


def test_no_mount_and_no_node_is_worse_for_it(mallory: Driver, attacked: Dict[str, Any]) -> None:
    mallory.kit("validate-mounts", str(mallory.config))
    states = mallory.on("controller", "sinfo -h -N -o '%N %T %E'").splitlines()
    worse = [line for line in states if re.search(r"drain|down", line.split()[1])]
    assert not worse, worse


def test_a_later_job_of_the_victim_starts_and_saves_where_names_were_taken(
    mallory: Driver, attacked: Dict[str, Any]
) -> None:
    job = mallory.submit(SCRIPT, "95", root=ROOT)
    assert finish(mallory, job) == "COMPLETED", mallory.output(job)
    output = mallory.output(job)
    assert [event["restored"]["step"] for event in events(output) if "restored" in event] == [89], output
