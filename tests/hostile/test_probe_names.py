"""Another user lays something in the way of the check's write, so that mounts look broken and nodes are drained."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import pytest

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.node_config import HealthPolicy
from hyperpod_kit.model.states import MountState
from hyperpod_kit.node.mounts.kinds.kind import MountIdentity
from hyperpod_kit.node.observe.check import deep_probe_mode_letters
from hyperpod_kit.node.observe.classify import MountObservation, classify
from hyperpod_kit.node.observe.health_record import HealthRecord
from hyperpod_kit.node.observe.probe import probe_all
from hyperpod_kit.node.slurm import drain
from hyperpod_kit.system.mountinfo import MountEntry
from tests.hostile.users import ATTACKER, ROOT, as_user, busy_as, place
from tests.support.rows import full, share

NODE = "ip-10-1-41-18"
NAME = f".hyperpod-kit-probe-{NODE}"
MOUNT = LustreMount("fsx", "/fsx", "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com", "abcdefgh")

pytestmark = ROOT


@pytest.fixture(params=[0o1777, 0o777], ids=["sticky", "everybody's"])
def fsx(request: pytest.FixtureRequest) -> Iterator[Path]:
    with place(request.param) as found:
        yield found


def look(fsx: Path) -> Tuple[str, str]:
    """What root's check says of the mount."""
    (probed,) = probe_all([(str(fsx), deep_probe_mode_letters(MOUNT))], 20.0, NAME)
    entry = MountEntry(1, "0:1", "/fsx", "lustre", "10.0.0.1@tcp:/abcdefgh", ("rw",))
    return classify(MOUNT, MountObservation(entry, probed, MountIdentity(True, entry.source)), 20.0)


def wish(state: str, policy: HealthPolicy) -> Any:
    """What Slurm is told when every check says so."""
    record = HealthRecord({})
    for tick in range(policy.degraded_after):
        record = record.after_check(
            MountStatus("fsx", "lustre", "/fsx", MountState(state), checked_at=1000.0 + 30 * tick), policy
        )

    class Asked:
        mounts = (MOUNT,)

        class paths:
            gate_refusal_record = last_drain_request_note = "/nonexistent"

    return drain.desired_reason_or_too_early(Asked(), {"fsx": record})  # type: ignore[arg-type]


def a_full_directory(path: str) -> None:
    os.mkdir(path)
    Path(path, "mine").touch()


def a_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)


LAID: Dict[str, Callable[[str], object]] = {
    "a directory": os.mkdir,
    "a directory that contains files": a_full_directory,
    "a closed directory": lambda path: os.mkdir(path, 0),
    "a file": lambda path: Path(path).write_text("mine"),
    "a link to nothing": lambda path: os.symlink("/nowhere", path),
    "a link to a file of root": lambda path: os.symlink("/etc/hostname", path),
    "a link to itself": lambda path: os.symlink(path, path),
    "a fifo": os.mkfifo,
    "a socket": a_socket,
}


@pytest.mark.parametrize("lay", share([pytest.param(lay, id=name) for name, lay in LAID.items()], 5))
def test_whatever_lies_under_the_probe_s_name_is_no_verdict(fsx: Path, lay: Callable[[str], object]) -> None:
    before = Path("/etc/hostname").read_bytes() if os.path.exists("/etc/hostname") else b""
    assert as_user(ATTACKER, lambda: lay(str(fsx / NAME))) == 0
    state, detail = look(fsx)
    assert state == "ok", detail
    assert wish(state, HealthPolicy(drain=True)) == drain.CLEAR
    assert [left.name for left in fsx.iterdir() if left.name != NAME] == [], "the check left something behind"
    if before:
        assert Path("/etc/hostname").read_bytes() == before


TAKE_EVERYTHING = """
import os, sys
folder, kind = sys.argv[1], sys.argv[2]
print("begun", flush=True)
while True:
    for name in os.listdir(folder):
        path = folder + "/" + name
        try:
            os.unlink(path)
        except OSError:
            pass
        try:
            os.mkdir(path) if kind == "directories" else os.symlink("/nowhere", path)
        except OSError:
            pass
"""


@pytest.mark.parametrize("kind", [*full("directories"), "links"])
def test_who_takes_each_name_as_it_appears_changes_no_verdict(fsx: Path, kind: str) -> None:
    with busy_as(ATTACKER, TAKE_EVERYTHING, str(fsx), kind) as process:
        for _ in range(12):
            state, detail = look(fsx)
            # It may take long where every name is taken; long is `slow`, and nothing is drained for that.
            assert state in ("ok", "slow"), detail
        assert process.poll() is None


def test_filling_what_all_share_closes_no_node_unless_the_configuration_says_so() -> None:
    assert wish("full", HealthPolicy(drain=True)) == drain.CLEAR
    assert wish("full", HealthPolicy(drain=True, refuse_when_full=True)) == "hyperpod-kit:mount:fsx:full"
    assert wish("hung", HealthPolicy(drain=True)) == "hyperpod-kit:mount:fsx:hung"


def test_checks_of_a_full_mount_do_not_count_towards_its_first_real_failure() -> None:
    """Filled for an hour and emptied again: the next short failure must not find the node half condemned."""
    policy = HealthPolicy(drain=True, degraded_after=3)
    record = HealthRecord({})
    full = MountStatus("fsx", "lustre", "/fsx", MountState.FULL, checked_at=1000.0)
    for tick in range(10):
        record = record.after_check(replace(full, checked_at=1000.0 + 30 * tick), policy)
        assert not record.is_usable_by_jobs and not record.degraded, "it is not well, and it is nobody's reason"
    record = record.after_check(replace(full, state=MountState.HUNG, checked_at=1300.0), policy)
    assert (record.failures, record.degraded) == (1, False)
