"""A disk that fills while a user trains, on a machine, by the commands that users and admins type: told at 80 %,
stopped at the limit, and what is newest survives."""

from __future__ import annotations

import json
import re
from typing import Any, Iterator

import pytest
from driver import Driver, wait_until

from tests.rehearsal import limited_disk
from tests.rehearsal.jobs import SCRIPT, attempts_on, finish, restored
from tests.rehearsal.limited_disk import admin

AT, OWN = "/scratch", "/scratch/trainer"
ROOT = f"{OWN}/run"
WORK = "/fsx/trainer/full-disk"
"""Of all that is large and no checkpoint: what is stopped at the limit is to be a save."""

pytestmark = [pytest.mark.full, pytest.mark.needs("mkfs.btrfs", "btrfs")]


@pytest.fixture(scope="module")
def node(cluster: Driver) -> Iterator[str]:
    """A worker with a disk of 256 MiB, and a directory of the user's on it that a limit can be set for."""
    worker = next(one["instance_id"] for one in cluster.nodes() if one["group"] == "worker-group")
    try:
        limited_disk.attach(cluster, worker, AT)
        admin(cluster, worker, f"btrfs subvolume create {OWN} && chown trainer: {OWN}")
        yield worker
    finally:
        limited_disk.detach(cluster, worker, AT)


def trained(driver: Driver, node: str, steps: int) -> str:
    """What a job on this machine alone printed; its checkpoints are on the machine's own disk."""
    host = driver.on(node, "hostname").strip()
    options = ("--auto-resume=1", "--nodes=1", f"--nodelist={host}")
    elsewhere = ("--work", WORK, "--out", f"{WORK}/weights.pt")
    job = driver.submit(SCRIPT, str(steps), *elsewhere, root=ROOT, options=options)
    finish(driver, job)
    return driver.output(job)


def used(driver: Driver, node: str) -> int:
    """Bytes, as the file system counts them."""
    (body,) = json.loads(admin(driver, node, f"hyperpod-kit storage quota show {OWN} --json || true"))["directories"]
    return int(body["bytes"])


def checked(driver: Driver, node: str) -> dict[str, Any]:
    """What the timer of an admin would find, and whom it tells."""
    line = "hyperpod-kit storage quota check /etc/hpk-quotas.json --state /var/lib/hpk-quota-state.json --json || true"
    found: dict[str, Any] = json.loads(admin(driver, node, line))
    return found


def test_a_user_is_warned_once_stopped_at_the_limit_and_keeps_the_newest_checkpoint(cluster: Driver, node: str) -> None:
    quotas = {"directories": {OWN: ["trainer@example.com"]}, "sinks": {"motd": "/etc/motd.d/hyperpod-kit-quota"}}
    cluster.on(node, f"mkdir -p /etc/motd.d; echo '{json.dumps(quotas)}' >/etc/hpk-quotas.json")
    admin(cluster, node, f"hyperpod-kit storage quota set {OWN} --bytes 200MiB")
    assert "checkpoints_durable" in trained(cluster, node, 5)
    first = attempts_on(cluster, node, ROOT)
    assert len(first) == 1 and checked(cluster, node)["new"] == []

    # One checkpoint is 85 % of it from now on: the owner is told, once, and reads it when he logs in.
    limit = int(used(cluster, node) / 0.85)
    admin(cluster, node, f"hyperpod-kit storage quota set {OWN} --bytes {limit}B")
    assert checked(cluster, node)["new"] == [OWN]
    again = checked(cluster, node)
    assert (again["new"], again["above"], again["failed"]) == ([], [OWN], [])
    assert f"{OWN} is 8" in cluster.on(node, "cat /etc/motd.d/hyperpod-kit-quota")

    said = trained(cluster, node, 10)
    for words in (f"{OWN} has a limit of {limit:,} bytes", f"hyperpod-kit storage quota show {OWN}"):
        assert words in said, said
    assert attempts_on(cluster, node, ROOT) == first
    assert cluster.on(node, f"hyperpod-kit checkpoint verify {ROOT}", user="trainer")

    # There is room again: what waited in memory comes to the disk, and the next job begins with it.
    admin(cluster, node, f"hyperpod-kit storage quota set {OWN} --bytes 250MiB")
    wait_until("the save that waited", lambda: len(attempts_on(cluster, node, ROOT)) == 2, timeout=240)
    assert checked(cluster, node)["new"] == []
    assert restored(trained(cluster, node, 15))["step"] == 9


def test_the_newest_valid_checkpoint_survives_a_rule_on_a_full_disk(cluster: Driver, node: str) -> None:
    before = attempts_on(cluster, node, ROOT)
    assert len(before) >= 2
    cluster.on(node, f"cat /dev/urandom >{AT}/ballast; truncate -s -2M {AT}/ballast; sync", check=False)
    share = int(re.findall(r"\d+", cluster.on(node, f"df --output=pcent {AT} | tail -1"))[0])
    assert share >= 97, share
    rule = f"hyperpod-kit storage tier {ROOT} --delete --above 80 --until 70 --keep 1"
    said = admin(cluster, node, f"{rule}; echo exit $?")
    assert said.splitlines()[-1] == "exit 1" and "more must be freed" in said, said
    assert attempts_on(cluster, node, ROOT) == before[-1:]
    assert cluster.on(node, f"hyperpod-kit checkpoint verify {ROOT}", user="trainer")
    cluster.on(node, f"rm {AT}/ballast")
    assert restored(trained(cluster, node, 20))["step"] == 14
