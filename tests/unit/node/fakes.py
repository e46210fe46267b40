"""A Node whose commands are answered by the test and whose clock does not wait. Loaded by conftest.py."""

from __future__ import annotations

from pathlib import Path
from typing import List, Sequence

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.node_config import HealthPolicy, NodeConfig, User
from hyperpod_kit.node.health.check_cycle import CheckCycle, check_mounts_and_start_repairs
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.facts import NodeFacts
from hyperpod_kit.node.machine.paths import NodePaths
from tests.support.clock import FakeClock
from tests.support.runner import RecordingRunner

DEADLINE = 120.0
"""Seconds for a prober's answer, which comes: a busy machine takes long to start a prober."""


class FakeNode:
    """`node` under `root`; `mounted` and `unmounted` write what the kernel would list."""

    def __init__(self, root: Path, mounts: Sequence[Mount], users: Sequence[User] = (), role: str = "compute") -> None:
        self.root, self.runner, self.clock = root, RecordingRunner(otherwise=""), FakeClock(1_800_000_000.0)
        config = NodeConfig(
            "demo",
            "on_create",
            {"g": role},
            tuple(mounts),
            tuple(users),
            HealthPolicy(interval=30.0, deadline=DEADLINE, degraded_after=3),
        )
        facts = NodeFacts("ip-10-1-0-20", "10.1.0.20", "i-0w", "g", role, "us-east-1", "aws", "10.1.0.10")
        self.node = Node(NodePaths(str(root)), config, facts, self.runner, self.clock)
        self.table: List[str] = []
        (root / "proc/self").mkdir(parents=True)
        self._write()

    def _write(self) -> None:
        (self.root / "proc/self/mountinfo").write_text("".join(line + "\n" for line in self.table))

    def mounted(
        self, path: str, fs_type: str, source: str, options: str = "rw", *, flags: str = "rw,nosuid,nodev"
    ) -> None:
        (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        number = 50 + len(self.table)
        self.table.append(f"{number} 1 0:{number} / {path} {flags} shared:7 master:1 - {fs_type} {source} {options}")
        self._write()

    def unmounted(self, path: str) -> None:
        self.table = [line for line in self.table if line.split(" ")[4] != path]
        self._write()

    def serve_s3(self, unit: str, argv: Sequence[str], pid: int = 4321) -> None:
        """The unit's process, as systemd and /proc show it."""
        self.runner.on(f"systemctl show --property MainPID {unit}", out=f"MainPID={pid}\n")
        process = self.root / "proc" / str(pid)
        process.mkdir(parents=True, exist_ok=True)
        (process / "cmdline").write_text("\0".join(argv) + "\0")
        (process / "status").write_text("Uid:\t0\t0\t0\t0\n")


def ticked(node: Node) -> CheckCycle:
    """The timer's check, which no other one keeps away."""
    done = check_mounts_and_start_repairs(node)
    assert done is not None
    return done
