"""A Slurm that tracks processes by cgroup, with our Epilog, and a shared memory of its own for each of its nodes.

Its nodes are of one host without systemd, so the Epilog hands over to a process of a session of its own, which lives in
the control group of slurmd; on machines it is a unit. Everything else is as on a cluster: real ranks with torch, real
agents, real ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from tests.support.job_events import job_events
from tests.support.wait import until
from tests.unit.job.cgroup_slurm import MOUNT, CgroupSlurm

REPOSITORY = Path(__file__).resolve().parents[2]
SAVER = Path(__file__).with_name("saver.py")
MAIN = REPOSITORY / "hyperpod_kit/job/__main__.py"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")

PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
"""Ranks are an ordinary user's, who may not look into the home in which the tests' own interpreter may lie."""

PROGRAM = """\
#!/bin/bash
export HPK_ROOT={base}/of-$SLURMD_NODENAME HPK_SHM_DIR={shm}/$SLURMD_NODENAME
mkdir -p "$HPK_ROOT/run/hyperpod-kit"
{throttle}
exec /usr/bin/python3 -I -S -c '
import sys
sys.path.insert(0, "{repository}")
from hyperpod_kit.checkpoint.commands import cli
sys.exit(cli.main(sys.argv[2:]))
' "$@"
"""

RANK = """\
#!/bin/bash
export HPK_SHM_DIR={shm}/$SLURMD_NODENAME PYTHONPATH={path} GLOO_SOCKET_IFNAME=lo
{throttle}
exec {python} {saver} "$@"
"""


class Disk:
    """`rate`: bytes a second that each node may write on it, 0 for all that there is: blkio's throttle on the device
    below `place`. Direct writes, as ours are, are counted for who makes them."""

    def __init__(self, place: Path, rate: int, nodes: Sequence[str]) -> None:
        # No name of ours: what boots machines looks for groups that those have left.
        self._stem = MOUNT / "blkio" / f"tests-{secrets.token_hex(4)}"
        self._groups = [self._of(node) for node in nodes] if rate else []
        self._rate = rate
        number = os.stat(place).st_dev
        self._device = f"{os.major(number)}:{os.minor(number)}"
        for group in self._groups:
            group.mkdir()
            # A rank puts itself there, as its user.
            (group / "cgroup.procs").chmod(0o666)
        self._limit(rate)

    def _limit(self, rate: int) -> None:
        for group in self._groups:
            (group / "blkio.throttle.write_bps_device").write_text(f"{self._device} {rate}")

    @contextlib.contextmanager
    def slower(self, rate: int) -> Iterator[None]:
        """Writes at `rate` bytes a second for as long as it is held."""
        self._limit(rate)
        try:
            yield
        finally:
            self._limit(self._rate)

    def _of(self, node: str) -> Path:
        return self._stem.with_name(f"{self._stem.name}-{node}")

    @property
    def join(self) -> str:
        """A line of a shell script, on a node."""
        return f"echo $$ >{self._of('$SLURMD_NODENAME')}/cgroup.procs" if self._groups else ""

    def close(self) -> None:
        for group in self._groups:
            until(lambda: _removed(group), what=f"an empty {group}")  # noqa: B023


def _removed(group: Path) -> bool:
    """Whether it is gone, after whatever is in it was killed."""
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        group.rmdir()
    return not group.exists()


class Site:
    """`memory`: MB of a node that jobs may ask for; `rate` of each node's disk, 0: as it is."""

    def __init__(self, base: Path, *, nodes: int = 2, memory: int = 0, rate: int = 0) -> None:
        self.base = base
        self.shm = Path(tempfile.mkdtemp(prefix="hpk-cgroup-", dir="/dev/shm"))
        self.slurm = CgroupSlurm(
            base,
            nodes=nodes,
            memory=memory,
            more=f"Epilog={base}/epilog.sh\nPrologEpilogTimeout=60\nPrologFlags=Alloc\n",
        )
        self.disk = Disk(base, rate, self.slurm.nodes)

    def start(self) -> None:
        self.base.chmod(0o755)
        self.shm.chmod(0o755)
        for node in self.slurm.nodes:
            (self.shm / node).mkdir()
            (self.shm / node).chmod(0o1777)
        words = {
            "base": self.base,
            "shm": self.shm,
            "repository": REPOSITORY,
            "python": PYTHON,
            "path": os.pathsep.join([str(REPOSITORY), *(one for one in sys.path if "site-packages" in one)]),
            "saver": SAVER,
            "throttle": self.disk.join,
        }
        for name, text in (("hyperpod-kit", PROGRAM), ("rank.sh", RANK)):
            (self.base / name).write_text(text.format(**words))
            (self.base / name).chmod(0o755)
        epilog = (REPOSITORY / "slurm/epilog.sh").read_text()
        epilog = epilog.replace("/opt/hyperpod-kit/current/bin/hyperpod-kit", f"{self.base}/hyperpod-kit")
        (self.base / "epilog.sh").write_text(epilog.replace("/run/hyperpod-kit", f"{self.base}/run"))
        (self.base / "epilog.sh").chmod(0o755)
        self.slurm.start()

    def stop(self) -> None:
        try:
            self.slurm.stop()
        finally:
            self.disk.close()
            shutil.rmtree(self.shm, ignore_errors=True)

    def left_in_memory(self) -> List[str]:
        """Captures that lie in the nodes' shared memory."""
        return [str(path) for path in self.shm.glob("*/hyperpod-kit*/**/*.img")]


class SavingJob:
    """One job of `site` whose ranks save `mb` each, again and again, on two nodes.

    `then`: what its script does behind srun; `run`: options of `job run`, which starts the ranks where they are given.
    """

    def __init__(self, site: Site, *, mb: float, options: str = "", then: str = "", run: Optional[str] = None) -> None:
        self.site = site
        self.place = Path(tempfile.mkdtemp(prefix="job-", dir=site.base))
        self.place.chmod(0o777)
        self.root = self.place / "root"
        self.ranks = 2
        script = self.place / "job"
        values = self.place / "values"
        with values.open("wb") as file:
            file.truncate(int(mb * (1 << 20)) // 4 * 4)
        rank = f"{site.base}/rank.sh {self.root} {self.place}/events {self.place}/meet {values}"
        step = f"srun --kill-on-bad-exit=1 {rank}"
        if run is not None:
            step = f"/usr/bin/python3 -I -S {MAIN} run --json-lines --checkpoint-root {self.root} {run} -- {rank}"
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N2 -n2 --open-mode=append --requeue -o {self.place}/out {options}\n"
            f"export OMP_NUM_THREADS=1\n{step}\n{then}\n"
        )
        self.id = site.slurm.sbatch(str(script), cwd=self.place)

    def events(self, rank: int) -> List[Dict[str, Any]]:
        try:
            lines = (self.place / f"events.{rank}").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def pids(self) -> List[int]:
        """Of the ranks of the newest start."""
        return [[one["pid"] for one in self.events(rank) if "pid" in one][-1] for rank in range(self.ranks)]

    def captured(self) -> List[int]:
        """The steps whose copies are complete on all ranks, and that were given up by none."""
        found = [{one["captured"] for one in self.events(rank) if "captured" in one} for rank in range(self.ranks)]
        lost = {one["lost"] for rank in range(self.ranks) for one in self.events(rank) if "lost" in one}
        return sorted(set.intersection(*found) - lost)

    def committed(self) -> List[int]:
        """The steps of the checkpoints that are there."""
        return sorted(entry.name.step for entry in self._entries())

    def durable(self) -> List[int]:
        """The steps of the checkpoints whose every byte is proved."""
        for entry in self._entries():
            verify.verify_checkpoint(str(self.root), entry.checkpoint_id)
        return self.committed()

    def _entries(self) -> List[catalog.CheckpointEntry]:
        return [one for one in catalog.list_checkpoints(str(self.root)) if one.committed] if self.root.exists() else []

    def at_capture(self, count: int, seconds: float = 120.0) -> None:
        """Returns when all ranks have captured so many."""
        try:
            until(lambda: len(self.captured()) >= count, seconds, what=f"{count} captures")
        except AssertionError as err:
            raise AssertionError(f"{err}\n{self.told()}") from None

    def ended(self, seconds: float = 120.0) -> str:
        """How it ended, once Slurm has its nodes back."""
        until(lambda: self.site.slurm.state(self.id) in ENDED, seconds, what=f"the end of job {self.id}")
        return self.site.slurm.state(self.id)

    def reported(self, event: str) -> List[Dict[str, Any]]:
        """What `job run` has said of one kind."""
        return job_events(self.place / "out", event)

    def starts(self) -> List[Dict[str, Any]]:
        """What rank 0 has said of itself, at each start."""
        return [one for one in self.events(0) if "pid" in one]

    def told(self) -> str:
        out = self.place / "out"
        return f"{out.read_text() if out.exists() else ''}\n{self.site.slurm.call('squeue')}"


@contextlib.contextmanager
def a_site(**how: Any) -> Iterator[Site]:
    # Not under pytest's own directory, into which the jobs' user must not look; munge wants a short, safe path.
    base = Path(tempfile.mkdtemp(prefix="hpk-slurm-"))
    site = Site(base, **how)
    try:
        site.start()
        yield site
    finally:
        site.stop()
        shutil.rmtree(base, ignore_errors=True)
