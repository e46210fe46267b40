"""The mount of one node hangs or is lost, or its disk is full: drained with our reason, the job runs elsewhere, the
node comes back.

`hang`: its server does not answer, and whoever touches it waits in the kernel. `lost`: the daemon is gone, and the
server refuses a new mount.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Callable, Iterator, cast

import pytest

from hyperpod_kit.node.slurm.spool import DEFAULT_DIRECTORY, SPOOL_REASON
from tests.faults.job import Job
from tests.faults.machines import REASON, MachineSite
from tests.faults.profiles import IN_S3
from tests.faults.site import Site
from tests.support.wait import until

pytestmark = pytest.mark.machines
Row = Callable[..., None]
STEPS = 1200 if IN_S3 else 300
"""Where checkpoints lie elsewhere, the ranks train on beside a mount that hangs, until the node is drained."""
WORDS = {"hang": "hangs", "lost": "is lost"}


@pytest.fixture
def site(site: Site) -> MachineSite:
    return cast(MachineSite, site)


@contextlib.contextmanager
def broken(site: MachineSite, node: str, fault: str) -> Iterator[None]:
    """The fault, from here to the end of the block."""
    if fault == "hang":
        site.break_mount(node, "hang-daemon")
    else:
        site.lose_mount(node)
    try:
        yield
    finally:
        if fault == "hang":
            site.break_mount(node, "hang-daemon", undo=True)
        else:
            site.give_mount_back(node)


def drained(site: MachineSite, node: str) -> str:
    def reason() -> str:
        state, why = site.node(node)
        return why if "DRAIN" in state and why.startswith(REASON) else ""

    return until(reason, 90, what=f"drain of {node} with our reason")


def given_back(site: MachineSite, node: str) -> None:
    """Undrained by nobody but the node itself."""

    # Slurm 24.11 leaves the reason standing.
    until(lambda: "DRAIN" not in site.node(node)[0], 90, what=f"{node} undrained, which is {site.node(node)}")


@pytest.mark.parametrize("who", ["a worker", "the batch host"])
@pytest.mark.parametrize("fault", WORDS)
def test_a_mount_goes_in_mid_job(job: Job, site: MachineSite, row: Row, fault: str, who: str) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1").running()
    host = job.show()["BatchHost"]
    victim = host if who == "the batch host" else next(one for one in job.rows("attempt")[-1]["nodes"] if one != host)
    hit, at = job.attempt(), time.time()
    with broken(site, victim, fault):
        drained(site, victim)
        seconds = job.resumed_after(hit, at, 150)
        assert victim not in job.rows("attempt")[-1]["nodes"], job.told()
        until(lambda: not site.waiting(victim), what="nothing that waits in the kernel")
    given_back(site, victim)
    job.ended_well(STEPS, timeout=240)
    assert "crash" not in job.classes, job.classes
    row(
        f"the mount of {who} {WORDS[fault]} in mid-job",
        "drained with our reason, the job goes on elsewhere, undrained when the mount is back",
        seconds,
    )


@pytest.mark.parametrize("fault", WORDS)
def test_a_mount_goes_before_the_start(job: Job, site: MachineSite, row: Row, fault: str) -> None:
    """Just before: neither Slurm nor the node's own checks know of it yet, and Slurm takes this node first."""
    victim = sorted(site.nodes)[0]
    at = time.time()
    with broken(site, victim, fault):
        job.submit("--steps", str(STEPS), "--pause", "0.1")
        seconds = job.resumed_after("", at, 150)
        assert victim not in job.rows("attempt")[-1]["nodes"] and job.rows("attempt")[-1]["nodes"], job.told()
        drained(site, victim)
        until(lambda: not site.waiting(victim), what="nothing that waits in the kernel")
    given_back(site, victim)
    job.ended_well(STEPS, timeout=240)
    row(
        f"a mount {WORDS[fault]} just before the start",
        "the gate refuses, the job starts elsewhere by itself, undrained when the mount is back",
        seconds,
        f"from submission, {job.show()['Restarts']} requeue",
    )


def test_an_administrators_drain_is_left_alone(site: MachineSite, row: Row) -> None:
    node = sorted(site.nodes)[-1]

    def wish() -> str | None:
        """What the node would have Slurm say; None before it has had to say anything."""
        try:
            return str(json.loads(site.on(node, "cat", "/var/lib/hyperpod-kit/drain.json", check=False))["wish"])
        except ValueError:
            return None

    site.slurm("scontrol", "update", f"nodename={node}", "state=drain", "reason=fan 3 rattles")
    with broken(site, node, "hang"):
        until(lambda: (wish() or "").startswith(REASON), what="the node's own verdict")
        assert site.node(node)[1] == "fan 3 rattles"
    until(lambda: wish() == "", what="the end of it")
    state, why = site.node(node)
    assert "DRAIN" in state and why == "fan 3 rattles"
    row("a mount hangs on a node that an administrator has drained", "the administrator's drain and reason stay", None)


@contextlib.contextmanager
def full_spool(site: MachineSite, node: str) -> Iterator[None]:
    """slurmd's spool directory, with what it holds (a configuration that was fetched), on a full file system."""
    filled = "/run/full-spool"
    lines = (
        f"mkdir {filled} && mount -t tmpfs -o size=4m tmpfs {filled}",
        f"cp -a {DEFAULT_DIRECTORY}/. {filled}/ && mount --bind {filled} {DEFAULT_DIRECTORY}",
        f"! dd if=/dev/zero of={DEFAULT_DIRECTORY}/zeros bs=4k 2>/dev/null",
    )
    site.on(node, "sh", "-c", " && ".join(lines))
    try:
        yield
    finally:
        site.on(node, "sh", "-c", f"umount --lazy {DEFAULT_DIRECTORY} {filled} && rmdir {filled}")


def test_a_node_without_room_for_a_batch_script(job: Job, site: MachineSite, row: Row) -> None:
    """Without the gate Slurm would hold the job (`launch failed requeued held`) until somebody releases it."""
    victim = sorted(site.nodes)[0]
    at = time.time()
    with full_spool(site, victim):
        job.submit("--steps", str(STEPS), "--pause", "0.1")
        seconds = job.resumed_after("", at, 150)
        assert victim not in job.rows("attempt")[-1]["nodes"] and job.rows("attempt")[-1]["nodes"], job.told()
        until(lambda: site.node(victim)[1] == SPOOL_REASON, what="a node that stays drained", timeout=120)
    given_back(site, victim)
    job.ended_well(STEPS, timeout=240)
    row(
        "the disk of slurmd's spool directory is full just before the start",
        "the gate refuses, the job starts elsewhere by itself, undrained when there is room",
        seconds,
        f"from submission, {job.show()['Restarts']} requeue",
    )
