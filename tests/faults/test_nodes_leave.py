"""Commands that take nodes, typed while a job runs on some of them."""

from __future__ import annotations

from typing import Callable, Iterator, cast

import pytest

from tests.faults.job import Job
from tests.faults.machines import WORKERS, MachineSite
from tests.faults.profiles import OF_2026, PROFILE
from tests.faults.site import Site
from tests.support.wait import until

pytestmark = pytest.mark.machines
Row = Callable[..., None]
STEPS = 400
ENDLESS = ("--steps", "100000", "--pause", "0.1")
POLL = ("--wait", "--interval", "1", "--timeout", "240")


@pytest.fixture
def site(site: Site) -> Iterator[MachineSite]:
    found = cast(MachineSite, site)
    yield found
    found.settle()
    found.set_workers(WORKERS)
    found.driver.kit("update-cluster", str(found.config), "--yes", *POLL)
    found.list_nodes()
    until(lambda: len(set(found.slurm("sinfo", "-h", "-N", "-o", "%N").split())) == WORKERS, 120, what="nodes in Slurm")


def test_fewer_nodes_with_a_job(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS).running()
    nodes = sorted(job.rows("attempt")[-1]["nodes"])
    site.set_workers(WORKERS - 1)
    shown = site.driver.data("update-cluster", str(site.config), "--dry-run")
    assert [found["id"] for found in shown["jobs"]] == [job.id], shown
    site.driver.kit("update-cluster", str(site.config), "--yes", "--when-idle", *POLL)

    def left() -> bool:
        site.list_nodes()
        return len(site.nodes) == WORKERS - 1

    until(left, 120, what="end of a node")
    assert sorted(site.nodes) == nodes, "the node without a job has gone"
    done = len(job.progress())
    job._wait("steps after it", lambda: len(job.progress()) > done + 20, 120)
    assert len(job.rows("attempt")) == 1 and job.show()["JobState"] == "RUNNING", job.told()
    row(
        "`update-cluster --when-idle` to one node fewer under a job",
        "the node without a job goes, the job does not notice",
        None,
    )


def test_a_node_of_a_job_is_replaced(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1").running()
    victim = job.show()["BatchHost"]
    address = victim[len("ip-") :].replace("-", ".")
    newest = job.checkpoints()[-1].name
    before = {node["instance_id"] for node in site.driver.nodes()}
    fault = job.broken(
        lambda: site.driver.kit("replace-node", str(site.config), address, "--yes", "--drain", "--drain-timeout", "240")
    )
    resumed = job.resumed(fault, 120)
    begun = job.rows("attempt")[-1]
    assert begun["from"] >= newest, job.told()
    if victim in begun["nodes"]:  # since 2026 the next node can have the address of the one before at once
        booted_at, _ = begun["starts"][begun["nodes"].index(victim)]
        assert PROFILE.name in OF_2026 and booted_at > fault.at, job.told()
    job.ended_well(STEPS)

    def replaced() -> bool:
        nodes = site.driver.nodes()
        return len({node["instance_id"] for node in nodes} - before) == 1 and {n["status"] for n in nodes} == {
            "Running"
        }

    until(replaced, 240, what="another node")
    row(
        "`replace-node --drain` of the batch host of a job",
        "the job is queued again at once and goes on elsewhere, then the node is replaced",
        resumed,
    )
