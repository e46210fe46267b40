"""One rehearsal cluster for the whole session, driven by the user's own commands, taken down whatever happens."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Iterator

import containers
import corpus
import environment
import pytest
from driver import CONFIG, TRAIN, Driver, wait_until
from leftovers import leftovers

from hyperpod_rehearsal.records.layout import lock_file_path_with_directory_made
from tests.rehearsal import jobs, limited_disk
from tests.support import own_rehearsals

CACHE = Path(os.environ.get("HPK_CACHE", Path.home() / ".cache" / "hyperpod-kit"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.rehearsal)
            item.add_marker(pytest.mark.needs("machines", "machine-packages"))


def _turn(item: pytest.Item) -> int:
    """First what looks for anything that a demo left on the whole machine: no other test's cluster may be up then.

    Last those with a second cluster in the same rehearsal, where `controller` would name two nodes.
    """
    path = Path(item.path)
    if path.name == "test_abort.py":
        return 0
    return 2 if path.parent == Path(__file__).parent / "storage" else 1


@pytest.fixture(scope="session", autouse=True)
def alone() -> Iterator[None]:
    """One run of these tests in a checkout: a second would take the first one's rehearsal down, which has its name.

    Those of other checkouts have rehearsals of their own, beside these.
    """
    own_rehearsals.use()
    # Not in /tmp: what another user has put under a name that we always take, we would write to.
    with open(lock_file_path_with_directory_made(f"tests-{own_rehearsals.CHECKOUT}"), "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pytest.exit(f"these tests run in this checkout already (pid {lock.read() or 'unknown'}): wait for them", 3)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A rehearsal with its endpoints up, the corpus and the bundle in their buckets, no cluster yet."""
    CACHE.mkdir(parents=True, exist_ok=True)
    driver = Driver("test", tmp_path_factory.mktemp("rehearsal"))
    driver.down()  # what an interrupted run left up would be taken for a fresh one
    try:
        trees = [] if containers.missing() else [containers.build(CACHE)]
        disk = limited_disk.shares(tmp_path_factory.mktemp("admin") / "tools")
        driver.up({environment.build(CACHE): TRAIN, **disk}, trees=trees)
        os.environ.update(driver.environment)
        corpus.upload(driver.environment["AWS_ENDPOINT_URL"], "sagemaker-hyperpod-kit-data", "corpus/")
        driver.kit("upload", str(CONFIG))
        yield driver
    finally:
        driver.down()
    assert leftovers(driver.name) == set(), "the rehearsal left something behind"


@pytest.fixture(scope="session")
def cluster(endpoint: Driver, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The example's cluster, created by AWS's own CLI from the request that `create-cluster --dry-run` prints."""
    request = tmp_path_factory.mktemp("request") / "request.json"
    request.write_text(endpoint.kit("create-cluster", str(CONFIG), "--dry-run", "--json"))
    endpoint.aws("sagemaker", "create-cluster", "--cli-input-json", f"file://{request}")
    seen: list[str] = []

    def in_service() -> bool:
        answer = endpoint.aws("sagemaker", "describe-cluster", "--cluster-name", "demo")
        status = str(answer["ClusterStatus"])
        if status not in seen:
            seen.append(status)
        assert status != "Failed", answer.get("FailureMessage")
        return status == "InService"

    wait_until("InService", in_service, timeout=240)
    # On a busy machine nodes can be up before the first look.
    assert set(seen) <= {"Creating", "InService"}
    return endpoint


@pytest.fixture(scope="session")
def undisturbed(cluster: Driver) -> str:
    """The weights that every run of 90 steps of the small model on two nodes must end with."""
    job = cluster.submit(jobs.SCRIPT, "90", *jobs.SMALL, root="/fsx/trainer/calm")
    assert jobs.finish(cluster, job) == "COMPLETED", cluster.output(job)
    return jobs.weights(cluster.output(job))


@pytest.fixture(scope="session")
def undisturbed_example(cluster: Driver) -> str:
    """The same of the example's own model, whose steps take long enough for what happens beside them."""
    job = cluster.submit(jobs.SCRIPT, "90", root="/fsx/trainer/calm-example")
    assert jobs.finish(cluster, job) == "COMPLETED", cluster.output(job)
    return jobs.weights(cluster.output(job))
