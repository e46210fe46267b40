"""Nodes on loopback that have a memory and processes of their own, as machines have: what partners' copies are for.

Each slurmd is in namespaces of its own: its /dev/shm, its processes, its name. The network is this host's.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
from pathlib import Path
from typing import Any, List

from hyperpod_rehearsal.machines import processes
from tests.faults.roots import PrivateBuckets
from tests.faults.site import TORCH_TRAINER, PrivateSite
from tests.support.damage import flip
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm

NODES = 5
BOOT = """\
set -e
mount -t tmpfs -o size=1g,mode=1777 memory /dev/shm
mount --bind "$1" /etc/hosts
hostname "$2"
shift 2
"$@" &
wait
"""
"""A first process that reaps what has lost its parent, as a machine's does."""


def own_address() -> str:
    """This host's, not loopback: agents of several nodes do not talk at that. Nothing is sent. Raises OSError."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.connect(("192.0.2.1", 9))
        return str(sock.getsockname()[0])


class MemorySlurm(PrivateSlurm):
    """Jobs are root's, since the interpreter with torch may lie where nobody else can look."""

    def __init__(self, base: Path, **more: Any) -> None:
        super().__init__(base, **{**more, "nodes": NODES, "user": 0, "containers": None})

    def start(self) -> None:
        names = " ".join(f"{self.prefix}{number}" for number in range(1, self.count + 1))
        (self.base / "hosts").write_text(f"127.0.0.1 localhost\n{own_address()} {names}\n")
        super().start()

    def stop(self) -> None:
        with contextlib.suppress(AssertionError):
            self.call("scancel", "--user=root", check=False)
            until(lambda: not self.call("squeue", "-h", "-o", "%i").split(), what="empty queue")
        for node in self.up():
            self.kill_machine(node)
        super().stop()

    def _there(self, argv: List[str], cwd: Path, node: str = "") -> List[str]:
        if not node.startswith(self.prefix):
            return argv
        kinds = ["--mount", "--ipc", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        return ["unshare", *kinds, "--", "sh", "-c", BOOT, "sh", f"{self.base}/hosts", node, *argv]

    def up(self) -> List[str]:
        """The nodes that have not been killed."""
        return [tag for tag in self._daemons if tag.startswith(self.prefix)]

    def kill_machine(self, node: str) -> None:
        """SIGKILL every process there; its memory goes with the last."""
        first = self._first(node)
        self.kill_daemon(node)
        until(lambda: not Path(f"/proc/{first}").exists(), what=f"the end of {node}")

    def memory(self, node: str) -> Path:
        """Its /dev/shm, as this host sees it."""
        return Path(f"/proc/{self._first(node)}/root/dev/shm")

    def _first(self, node: str) -> int:
        [first] = processes.children(self._daemons[node].pid)
        return first


class MemorySite(PrivateSite):
    """Checkpoints in S3, which can be cut off; ranks with torch."""

    python = f"{sys.executable} -I"

    def __init__(self, slurm: MemorySlurm, buckets: PrivateBuckets) -> None:
        super().__init__(slurm, buckets)
        self.machines = slurm
        shutil.copy(TORCH_TRAINER, self.here)

    def kill_machine(self, node: str) -> None:
        self.machines.kill_machine(node)

    def copies(self, node: str, rank: int) -> List[Path]:
        """The images of that rank's captures that `node` holds for another."""
        return sorted(self.machines.memory(node).rglob(f"partners/hpk-*-{rank:05}-*.img"))

    def spoil(self, node: str, rank: int) -> None:
        """Turn a bit in the middle of each of them."""
        found = self.copies(node, rank)
        assert found, f"{node} holds nothing of rank {rank}"
        for image in found:
            flip(image, image.stat().st_size // 2)

    def settle(self) -> None:
        """Machines that were killed come back, empty."""
        for node in self.nodes:
            if node not in self.machines.up():
                self.machines.start_node(node)
        super().settle()
