"""A Slurm on loopback that tracks processes by cgroup, as most clusters do: whatever a step has started dies with it.

Control groups of version 1, where the host lets us make some. They lie in `slurm_<node>` of each hierarchy; the nodes'
names are drawn, so that no other Slurm on this host has the same, and the groups are removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from pathlib import Path
from typing import List

from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm

MOUNT = Path("/sys/fs/cgroup")
HIERARCHIES = ("freezer", "memory", "cpuset", "cpuacct", "devices")

CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainCores=no
ConstrainDevices=no
ConstrainSwapSpace=no
ConstrainRAMSpace={ram}
"""


def missing_hierarchy() -> str:
    """Which control groups of version 1 are lacking here; empty when they are there."""
    for name in ("freezer", "memory"):
        if not (MOUNT / name / "cgroup.procs").exists():
            return f"this host has no cgroup hierarchy of version 1 at {MOUNT / name}"
        probe = MOUNT / name / f"probe-{secrets.token_hex(4)}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as err:
            return f"no control group can be made in {MOUNT / name}: {err.strerror}"
    return ""


class CgroupSlurm(PrivateSlurm):
    """`memory`: MB that jobs may ask for of a node. With it, steps are held to what `--mem` gives them
    (TaskPlugin=task/cgroup), counted as the kernel does it: with the shared memory that they have touched."""

    def __init__(self, base: Path, *, nodes: int = 2, memory: int = 0, more: str = "") -> None:
        self._memory = memory
        super().__init__(
            base,
            nodes=nodes,
            prefix=f"g{secrets.token_hex(3)}n",
            node=f"RealMemory={memory}" if memory else "",
            more="ProctrackType=proctrack/cgroup\n"
            + ("TaskPlugin=task/cgroup\nSelectTypeParameters=CR_Core_Memory\n" if memory else "")
            + more,
        )

    def _cgroup_conf(self) -> str:
        return CGROUP_CONF.format(ram="yes" if self._memory else "no")

    @property
    def nodes(self) -> List[str]:
        return [f"{self.prefix}{number}" for number in range(1, self.count + 1)]

    def groups(self, hierarchy: str, node: str) -> List[Path]:
        """The groups of a node, those within others first."""
        top = MOUNT / hierarchy / f"slurm_{node}"
        return [Path(path) for path, _, _ in os.walk(top, topdown=False)]

    def stop(self) -> None:
        """Also with the groups, whatever is left in them."""
        try:
            super().stop()
        finally:
            for hierarchy in HIERARCHIES:
                for node in self.nodes:
                    for group in self.groups(hierarchy, node):
                        _remove(group)


def _remove(group: Path) -> None:
    """End what is in it, and remove it."""

    def gone() -> bool:
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            group.rmdir()
        return not group.exists()

    with contextlib.suppress(OSError):
        (group / "freezer.state").write_text("THAWED")
    until(gone, 10, what=f"an empty {group}")
