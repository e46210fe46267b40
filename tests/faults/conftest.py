"""One cluster for all rows of the table of faults.

HPK_FAULTS=machines boots it (`make faults`: all rows). Otherwise it is a Slurm on loopback: with HPK_FAULTS=private all
rows that need no machine of their own are run, without it the quick ones. HPK_FAULTS_PROFILE names the profile, another
Slurm with it (`make faults PROFILE=hyperpod`; default: stock).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Callable, Iterator, List, Optional

import pytest

from tests.faults.accounting import AccountedSlurm
from tests.faults.job import Job
from tests.faults.machines import PREEMPTION, SENDS_SIGNAL, container_tree, machine_site
from tests.faults.memory_nodes import MemorySite, MemorySlurm
from tests.faults.profiles import CONTAINER, IN_S3, MOUNTPOINT, PROFILE
from tests.faults.roots import PrivateBuckets
from tests.faults.site import PrivateSite, Site
from tests.faults.table import Table
from tests.unit.job.private_slurm import PrivateSlurm

FOLDER = "tests/faults/"
MACHINES = os.environ.get("HPK_FAULTS") == "machines"
EVERYTHING = MACHINES or os.environ.get("HPK_FAULTS") == "private"


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    ours = [item for item in items if item.nodeid.startswith(FOLDER)]
    cluster = ("machines", "machine-packages") if MACHINES else ("slurm",)
    needs = pytest.mark.needs(*cluster, *(("containers",) if PROFILE == CONTAINER else ()))
    dropped = set()
    for item in ours:
        item.add_marker(pytest.mark.rehearsal)
        item.add_marker(needs)
        if not _of_profile(item) or not _is_wanted(item):
            dropped.add(item)
    config.hook.pytest_deselected(items=list(dropped))
    items[:] = [item for item in items if item not in dropped]


def _is_wanted(item: pytest.Item) -> bool:
    of_machines = item.get_closest_marker("machines") is not None
    if MACHINES:
        # What goes wrong with requests is made on loopback: the rehearsal's own S3 serves everything else too.
        return of_machines or not IN_S3
    return not of_machines and (EVERYTHING or item.get_closest_marker("quick") is not None)


def _of_profile(item: pytest.Item) -> bool:
    """Whether a row makes sense in this profile: `@pytest.mark.profiles(…)` names those in which it does."""
    named = item.get_closest_marker("profiles")
    return named is None or PROFILE.name in named.args


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What failed, at once: all rows take many minutes."""
    if report.failed and "tests/faults/" in report.nodeid:
        print(f"\n{report.nodeid} failed after {report.duration:.0f} s\n{report.longreprtext[-8000:]}", flush=True)


@pytest.fixture(scope="session")
def faults_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if MACHINES:
        with machine_site(tmp_path_factory.mktemp("faults")) as site:
            yield site
        return
    more = PREEMPTION.format(parameters=SENDS_SIGNAL)
    with private_site(PrivateSlurm, more=more, release=PROFILE.release) as found:
        yield found


@pytest.fixture
def accounted_site() -> Iterator[Site]:
    """A Slurm on loopback that has QOS, for one row, also beside the machines."""
    with private_site(AccountedSlurm, release=PROFILE.release) as site:
        yield site
        site.settle()


@pytest.fixture(scope="session")
def memory_site() -> Iterator[MemorySite]:
    """Nodes on loopback that have a memory of their own, also beside the machines."""
    base = Path(tempfile.mkdtemp(prefix="hpk-faults-"))
    cluster = MemorySlurm(base)
    try:
        cluster.start()
        with contextlib.closing(PrivateBuckets(base / "s3")) as buckets:
            yield MemorySite(cluster, buckets)
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def private_site(make: Callable[..., PrivateSlurm], **more: str) -> Iterator[Site]:
    # Not under pytest's own directory, into which the job's user must not look; munge wants a short, safe path.
    base = Path(tempfile.mkdtemp(prefix="hpk-faults-"))
    cluster = make(base, nodes=4, containers=container_tree(), **more)
    try:
        cluster.start()
        with contextlib.ExitStack() as stack:
            buckets: Optional[PrivateBuckets] = None
            if IN_S3:
                served_to = cluster.user if PROFILE == MOUNTPOINT else None
                buckets = stack.enter_context(contextlib.closing(PrivateBuckets(base / "s3", served_to)))
            yield PrivateSite(cluster, buckets)
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def site(faults_site: Site) -> Iterator[Site]:
    yield faults_site
    faults_site.settle()


@pytest.fixture
def job(site: Site) -> Job:
    return Job(site)


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    found = Table()
    yield found
    print("\n" + found.show())


@pytest.fixture
def row(table: Table, request: pytest.FixtureRequest) -> Callable[..., None]:
    """row(fault, what happens, seconds): called last, by a test that has shown it."""
    name = request.node.originalname or request.node.name

    def write(fault: str, happens: str, seconds: float | None = None, more: str = "") -> None:
        table.row(PROFILE.name, name, fault, happens, seconds, more)
        if EVERYTHING:
            table.write(PROFILE.name, loopback=not MACHINES)  # each at once: a run may be cut short

    return write
