"""Every kind of mount broken in every way on a running node: what the check says, and who repairs it, when.

A fault is made on all kinds at once, as one scenario a module; each kind is a test of its own over what was seen.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import Any, Dict

import pytest
from driver import Driver, wait_until

from hyperpod_rehearsal.mounts.s3files import S3FILES_ID
from hyperpod_rehearsal.records.layout import Layout

WORKER = "storage-worker/0"
DEADLINE = 2.0
"""Seconds that a probe may take in the configuration of these tests (conftest.py)."""

PATHS = {
    "efs": "/efs/trainer",
    "s3files": "/mnt/files",
    "lustre": "/fsx",
    "openzfs": "/zfs",
    "mountpoint-s3": "/mnt/data",
    "nvme": "/scratch",
}
SERVED = [kind for kind in PATHS if kind != "nvme"]
"""Kinds with a process on the node that can die or hang."""


@dataclass
class Worker:
    """The node that is broken."""

    driver: Driver

    def on(self, command: str, check: bool = True) -> str:
        return self.driver.on(WORKER, command, check=check)

    def look(self) -> Dict[str, Dict[str, Any]]:
        """A fresh check of every mount, by kind."""
        found = json.loads(self.on("hyperpod-kit node mounts --json", check=False))["mounts"]
        return {mount["kind"]: mount for mount in found}

    def states(self) -> Dict[str, str]:
        return {kind: mount["state"] for kind, mount in self.look().items()}

    def timer(self, verb: str) -> None:
        """Start or stop what watches the mounts."""
        self.on(f"systemctl {verb} {self._units('timer')}")

    def tick(self) -> None:
        """One run of what the timer starts; it fails when a mount is not healthy."""
        self.on(f"systemctl start {self._units('service')}", check=False)

    @staticmethod
    def _units(kind: str) -> str:
        return f"$(systemctl list-unit-files --no-legend 'hyperpod-kit-health*.{kind}' | cut -d' ' -f1)"

    def break_all(self, fault: str, kinds: list[str], undo: bool = False) -> None:
        self.driver.kit(
            "rehearse",
            "break-mount",
            "--name",
            self.driver.name,
            *(["--undo"] if undo else []),
            fault,
            WORKER,
            *(PATHS[kind] for kind in kinds),
        )

    def await_ok(self, timeout: float = 180) -> Dict[str, str]:
        """States once all are ok; the last ones when they are not in time."""
        last = self.states()

        def look() -> bool:
            last.update(self.states())
            return set(last.values()) == {"ok"}

        try:
            wait_until("every mount ok", look, timeout=timeout)
        except Exception:
            return last
        return last


@pytest.fixture(scope="module")
def worker(storage: Driver) -> Worker:
    """The node, with a mount-s3 unit that systemd does not bring back: here the timer must."""
    found = Worker(storage)
    unit = found.on("systemctl list-units --plain --no-legend 'hyperpod-kit-*data*.service' | cut -d' ' -f1").strip()
    found.on(
        f"mkdir -p /run/systemd/system/{unit}.d && "
        f"printf '[Service]\nRestart=no\nExecStopPost=\n' >/run/systemd/system/{unit}.d/test.conf && "
        "systemctl daemon-reload"
    )
    return found


@pytest.fixture(scope="module")
def killed(worker: Worker) -> Dict[str, Any]:
    worker.timer("stop")
    worker.break_all("kill-daemon", SERVED)
    seen = worker.states()
    listed = worker.on("cut -d' ' -f2 /proc/mounts").split()
    worker.timer("start")
    return {"seen": seen, "listed": listed, "later": worker.await_ok()}


@pytest.mark.parametrize("kind", SERVED)
def test_a_killed_daemon_is_stale_though_listed_and_the_timer_repairs_it(killed: Dict[str, Any], kind: str) -> None:
    assert killed["seen"][kind] == "stale" and PATHS[kind] in killed["listed"]
    assert killed["later"][kind] == "ok"


def test_what_has_no_daemon_is_not_disturbed(killed: Dict[str, Any]) -> None:
    assert killed["seen"]["nvme"] == "ok"


@pytest.fixture(scope="module")
def hung(worker: Worker) -> Dict[str, Any]:
    worker.timer("stop")
    worker.break_all("hang-daemon", SERVED)
    script = "start=$(date +%s%N); hyperpod-kit node mounts --json; echo; echo $(( $(date +%s%N) - start ))"
    answer, spent = worker.on(script, check=False).strip().rsplit("\n", 1)
    # The bracket keeps the pattern from finding the command that looks for it.
    waiting = worker.on("ps -e -o stat=,args= | grep '^D.*[h]yperpod-kit' || true")
    seen = {mount["kind"]: mount["state"] for mount in json.loads(answer)["mounts"]}
    ours = [kind for kind in SERVED if kind != "mountpoint-s3"]
    worker.timer("start")
    # mount-s3 is a process of this node: the timer kills it. A server that hangs is waited for, and comes back.
    worker.break_all("hang-daemon", ours, undo=True)
    return {"seen": seen, "seconds": int(spent) / 1e9, "waiting": waiting, "later": worker.await_ok()}


@pytest.mark.full  # of a mount on this machine: tests/unit/node/test_check_cycle_hangs.py
@pytest.mark.parametrize("kind", SERVED)
def test_a_stopped_daemon_is_hung_and_the_mount_comes_back(hung: Dict[str, Any], kind: str) -> None:
    assert hung["seen"][kind] == "hung" and hung["later"][kind] == "ok"


@pytest.mark.full
def test_a_check_of_hung_mounts_returns_in_time_and_leaves_nothing_waiting(hung: Dict[str, Any]) -> None:
    assert hung["seconds"] < DEADLINE + 1 and hung["waiting"] == ""


def standing(worker: Worker, fault: str, kinds: list[str]) -> Dict[str, Any]:
    """A fault that only a person may undo: seen, still there after a tick of the timer, undone."""
    worker.break_all(fault, kinds)
    seen = worker.states()
    worker.tick()
    after_tick = worker.states()
    worker.break_all(fault, kinds, undo=True)
    return {"seen": seen, "after_tick": after_tick, "later": worker.await_ok()}


@pytest.fixture(scope="module")
def replaced(worker: Worker) -> Dict[str, Any]:
    return standing(worker, "other-target", list(PATHS))


@pytest.mark.full
@pytest.mark.parametrize("kind", PATHS)
def test_another_source_in_its_place_is_the_wrong_target_and_left_alone(replaced: Dict[str, Any], kind: str) -> None:
    assert (replaced["seen"][kind], replaced["after_tick"][kind]) == ("wrong_target", "wrong_target")
    assert replaced["later"][kind] == "ok"


@pytest.fixture(scope="module")
def covered(worker: Worker) -> Dict[str, Any]:
    return standing(worker, "cover", list(PATHS))


@pytest.mark.full
@pytest.mark.parametrize("kind", PATHS)
def test_another_source_on_top_of_it_is_the_wrong_target(covered: Dict[str, Any], kind: str) -> None:
    assert (covered["seen"][kind], covered["after_tick"][kind], covered["later"][kind]) == (
        "wrong_target",
        "wrong_target",
        "ok",
    )


@pytest.fixture(scope="module")
def protected(worker: Worker) -> Dict[str, Any]:
    return standing(worker, "read-only", list(PATHS))


@pytest.mark.full
@pytest.mark.parametrize("kind", PATHS)
def test_a_mount_that_became_read_only_says_so(protected: Dict[str, Any], kind: str) -> None:
    assert (protected["seen"][kind], protected["after_tick"][kind], protected["later"][kind]) == (
        "readonly",
        "readonly",
        "ok",
    )


@pytest.fixture(scope="module")
def unmounted(worker: Worker) -> Dict[str, Any]:
    worker.timer("stop")
    worker.break_all("unmount", list(PATHS))
    seen = worker.states()
    worker.timer("start")
    return {"seen": seen, "later": worker.await_ok()}


@pytest.mark.full
@pytest.mark.parametrize("kind", PATHS)
def test_an_unmounted_one_is_absent_and_the_timer_mounts_it(unmounted: Dict[str, Any], kind: str) -> None:
    assert (unmounted["seen"][kind], unmounted["later"][kind]) == ("absent", "ok")


@pytest.mark.full
def test_a_root_that_is_gone_on_its_server_is_stale_and_mounted_again(worker: Worker) -> None:
    worker.timer("stop")
    # No other cluster of the rehearsal mounts this file system.
    root = Layout.for_name(worker.driver.name).file_systems["s3files"] / S3FILES_ID / "trainer"
    shutil.rmtree(root)
    seen: Dict[str, Any] = {}

    def stale() -> bool:
        seen.update(worker.look()["s3files"])
        return bool(seen["state"] == "stale")

    # The kernel of the node believes for a second what it knew.
    wait_until("the check to see it", stale, timeout=180)
    assert "no longer exists on its server" in seen["detail"], seen
    worker.timer("start")
    assert worker.await_ok()["s3files"] == "ok"
    worker.on("touch /mnt/files/written-again")
    assert (root / "written-again").exists()
