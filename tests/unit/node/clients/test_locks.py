"""Somebody else installs something, or was killed while doing so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.clients import apt
from hyperpod_kit.node.clients.install import install_missing_mount_clients
from hyperpod_kit.node.machine.context import Node
from tests.support.wait import Deadline, until
from tests.unit.node.clients.debian_root import DebianRoot

DATA = S3Mount("data", "/mnt/data", "bucket")
PROGRAM = "usr/bin/mount-s3"
LOCKS = ("var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock", "var/cache/apt/archives/lock")


@contextlib.contextmanager
def held(path: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    program = str(Path(__file__).with_name("lock_holder.py"))
    holder = subprocess.Popen([sys.executable, program, str(path), str(seconds)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.wait(10)
        if holder.stdout is not None:
            holder.stdout.close()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_waited_for(debian: DebianRoot, lock: str) -> None:
    s3 = debian.listed(debian.deb("mount-s3", "1.22.0", files=[PROGRAM]))
    with held(debian.root / lock, 1.0) as holder:
        changed, _ = install_missing_mount_clients(debian.node([DATA], [s3]))
        assert holder.poll() is not None, "it was installed while another process held the lock"
    assert changed and debian.installed() == {"mount-s3": "1.22.0 install installed"}


@pytest.mark.parametrize("lock", LOCKS)
def test_and_with_a_bound(debian: DebianRoot, lock: str) -> None:
    deb = debian.deb("mount-s3", "1.22.0", files=[PROGRAM])
    with held(debian.root / lock, 60) as holder:
        deadline = Deadline(20)
        with pytest.raises(
            NodeError,
            match="cannot install mount-s3: the package lock is held "
            rf"by process {holder.pid} \(\w",
        ) as caught:
            apt.install_package_files_only(debian.node([DATA]), [str(deb)], ["mount-s3"], seconds=1.0)
        assert not deadline.has_passed()
    assert caught.value.hint and debian.installed() == {}


def test_holding_waits_too(debian: DebianRoot) -> None:
    node = debian.node([])
    apt.install_package_files_only(node, [str(debian.deb("lustre-client-utils", "2.15"))], ["lustre-client-utils"])
    with held(debian.root / LOCKS[0], 60), pytest.raises(NodeError, match="cannot hold lustre-client-utils: the pack"):
        apt.hold_packages(node, ["lustre-client-utils"], seconds=0.5)
    with held(debian.root / LOCKS[0], 1.0) as holder:
        apt.hold_packages(node, ["lustre-client-utils"], seconds=30.0)
        assert holder.poll() is not None
    assert debian.installed() == {"lustre-client-utils": "2.15 hold installed"}


def running_dpkg(lock: Path) -> int:
    """Process that holds dpkg's lock, 0 for none, from the kernel's list."""
    inode = str(lock.stat().st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5].endswith(f":{inode}") and "->" not in fields:
            return int(fields[4])
    return 0


@pytest.mark.parametrize("which", ["preinst", "postinst"])
def test_killed_in_the_middle_then_run_again(debian: DebianRoot, which: str) -> None:
    """SIGKILL to apt, dpkg and the package's own script, as when the machine dies; then the same once more."""
    go, at = debian.root / "tmp/go", debian.root / "tmp/at"
    deb = debian.deb("mount-s3", "1.22.0", files=[PROGRAM], **{which: f"echo $$ >{at}; [ -e {go} ] || exec sleep 60"})
    node = debian.node([DATA], [debian.listed(deb)])
    with pytest.raises(NodeError):
        threaded_kill(node, debian, at)
    state = debian.installed()["mount-s3"]
    assert "half" in state or "unpacked" in state
    go.touch()
    assert install_missing_mount_clients(node)[0] is True
    assert debian.installed() == {"mount-s3": "1.22.0 install installed"}
    assert [call for call in debian.calls if call.startswith("dpkg --configure -a")]
    assert install_missing_mount_clients(node) == (False, "")


def threaded_kill(node: Node, debian: DebianRoot, at: Path) -> None:
    """Install while another thread kills everybody who takes part, once the package's script runs."""

    def kill() -> None:
        until(lambda: at.exists() and at.read_text().strip(), what="the package's script")
        # Who waits for others goes first, lest it ends by itself once they are dead.
        for pid in (running_dpkg(debian.root / LOCKS[0]), running_dpkg(debian.root / LOCKS[1]), int(at.read_text())):
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        install_missing_mount_clients(node)
    finally:
        killer.join()
