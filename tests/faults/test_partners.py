"""Machines that die with their memory: their partners hold copies of it, storage is not asked for a byte of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest

from hyperpod_rehearsal.records.profiles import STOCK
from tests.faults.job import Fault, Job
from tests.faults.memory_nodes import NODES, MemorySite
from tests.faults.roots import BucketRoot
from tests.faults.torch_trainer import undisturbed

pytestmark = pytest.mark.profiles(STOCK.name)
Row = Callable[..., None]
RANKS, STEPS, STORED, HELD = 3, 40, 5, 20
LONG = 240.0


@pytest.fixture
def site(memory_site: MemorySite) -> Iterator[MemorySite]:
    yield memory_site
    memory_site.settle()


@pytest.fixture
def held(job: Job) -> Job:
    """Three ranks on nodes of their own with spares beside them: step 5 is on storage, the steps 10, 15 and 20 in
    memory, and no rank goes on."""
    pytest.importorskip("torch")
    job.submit(
        *("--steps", str(STEPS), "--stored", str(STORED), "--hold", str(HELD)),
        sbatch=(f"-N{NODES}", "--no-kill"),
        options=f"--nodes {RANKS}",
        program="torch_trainer.py",
    )
    job._wait("held ranks", lambda: sum("held" in line for line in job.lines()) == RANKS, LONG)
    assert len(job.checkpoint_root.committed()) == 1
    return job


def resumed(job: Job, fault: Fault) -> float:
    """Seconds to the first step after it."""
    return job.resumed(fault, LONG)


def beginnings(job: Job) -> set[tuple[int, str]]:
    """Where the ranks of the last attempt began: (step, tier)."""
    return {
        (line["at"], line["tier"])
        for line in job.lines()
        if "tier" in line and line["attempt"] == job.attempt() and "at" in line
    }


def ended_alike(job: Job) -> None:
    """Every byte of every rank is that of a run that nobody disturbed."""
    assert job.finish(LONG) == "COMPLETED", job.told()
    assert job.weights() == undisturbed(RANKS, STEPS), job.told()


def test_one_machine_of_three_is_lost_with_storage_cut_off(held: Job, site: MemorySite, row: Row) -> None:
    """From before the machine's death until training goes on no byte of a shard is read or written."""
    root = cast(BucketRoot, held.checkpoint_root)
    victim = held.node_of(1)
    root.fault("seq-.*/shard", status=503)
    fault = held.broken(lambda: site.kill_machine(victim))
    seconds = resumed(held, fault)
    assert beginnings(held) == {(HELD, "memory")}, held.told()
    root.back()
    ended_alike(held)
    assert held.classes == ["node_lost", "done"] and held.show()["Restarts"] == "0"
    row(
        "one machine of three is killed, storage gives no byte of a shard (`Manager(partners=True)`)",
        "a spare takes its place, its rank goes on from the partner's memory, bit by bit",
        seconds,
    )


def test_a_machine_and_its_partner_are_lost(held: Job, site: MemorySite, row: Row) -> None:
    victims = [held.node_of(1), held.node_of(2)]
    seconds = resumed(held, held.broken(lambda: [site.kill_machine(victim) for victim in victims]))
    assert beginnings(held) == {(STORED, "storage")}, held.told()
    ended_alike(held)
    row(
        "a machine and the one that holds its copies are killed (`Manager(partners=True)`)",
        "goes on from storage, bit by bit",
        seconds,
    )


def test_the_copy_of_a_lost_machine_is_damaged(held: Job, site: MemorySite, row: Row) -> None:
    victim, holder = held.node_of(1), held.node_of(2)
    site.spoil(holder, 1)
    seconds = resumed(held, held.broken(lambda: site.kill_machine(victim)))
    assert beginnings(held) == {(STORED, "storage")}, held.told()
    ended_alike(held)
    row(
        "a machine is killed, a bit of its partner's copy has turned (`Manager(partners=True)`)",
        "the copy is found out, goes on from storage, bit by bit",
        seconds,
    )
