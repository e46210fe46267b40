"""Another bundle is installed in place on the nodes of a job that runs, from the earlier bundle to this one and back,
on a real Slurm whose nodes have bundles of their own."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, cast

import pytest

from tests.support import bundles
from tests.support.bundles import REPOSITORY, BundleRoot
from tests.support.job_events import job_events
from tests.support.rows import full
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm, running

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm", "mounts", "git-history")]

TRAINER = Path(__file__).with_name("toy_trainer.py")
NODES = ("n1", "n2")


class BundledSlurm(PrivateSlurm):
    """Each node's /opt/hyperpod-kit is its own, empty at first."""

    def root(self, node: str) -> Path:
        return self.base / f"root-{node}"

    def start_node(self, name: str) -> None:
        home = self.root(name) / "opt/hyperpod-kit"
        home.mkdir(parents=True)
        self._nodes[name] = cast(Any, BundleRoot(home))
        super().start_node(name)


@pytest.fixture(scope="module")
def slurm() -> Iterator[BundledSlurm]:
    with running(BundledSlurm, nodes=len(NODES)) as cluster:
        assert isinstance(cluster, BundledSlurm)
        yield cluster


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    """Release -> its bundle as a node downloads it."""
    base = tmp_path_factory.mktemp("bundles")
    trees = {"earlier": bundles.earlier_sources(base / "tree"), "this": REPOSITORY}
    for name, tree in trees.items():
        bundles.write(bundles.files_of(tree), base / name)
    return {name: base / name for name in trees}


class BundledJob:
    """A job of two nodes through the installed program; its trainer counts steps until it is ended."""

    def __init__(self, slurm: BundledSlurm) -> None:
        self.slurm = slurm
        self.place = Path(tempfile.mkdtemp(prefix="work-", dir=slurm.base))
        self.place.chmod(0o777)
        self.root = self.place / "root"
        script = self.place / "job.sbatch"
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --auto-resume=1\n#SBATCH -o {self.place}/out\n"
            # Not every bundle knows the option; such a one writes these lines without it.
            f'program="/opt/hyperpod-kit/current/bin/hyperpod-kit job run"\nlines=$($program --help | grep -om1 -e'
            " --json-lines)\n"
            f"exec $program $lines --checkpoint-root {self.root} -- "
            f"/usr/bin/python3 -I {TRAINER} --steps 100000 --pause 0.05\n"
        )
        self.id = slurm.sbatch(str(script), cwd=self.place)

    def events(self, kind: str) -> List[Dict[str, Any]]:
        return job_events(self.place / "out", kind)

    def checkpoints(self) -> List[Path]:
        return sorted(self.root.glob("seq-*/MANIFEST.json"))

    def rank(self, number: int) -> int:
        """The pid of that rank's trainer, once it runs."""

        def running() -> int:
            for pid in self.slurm.processes():
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[2:3] == [os.fsencode(TRAINER)] and f"SLURM_PROCID={number}".encode() in variables:
                    return pid
            return 0

        return until(running, what=f"rank {number}", timeout=60)

    def survives_a_killed_rank(self, number: int) -> None:
        """Of the running attempt that rank dies: the next one goes on from the newest checkpoint, and saves more."""
        before = len(self.checkpoints())
        until(lambda: len(self.checkpoints()) > before, what="a checkpoint", timeout=120)
        count = len(self.events("attempt"))
        os.kill(self.rank(number), signal.SIGKILL)
        until(lambda: len(self.events("attempt")) > count, what="another attempt", timeout=120)
        before = len(self.checkpoints())
        try:
            until(lambda: len(self.checkpoints()) > before, what="a checkpoint after it", timeout=120)
        except AssertionError as err:
            raise AssertionError(f"{err}\n{(self.place / 'out').read_text()}") from None
        attempts, ends = self.events("attempt"), self.events("ended")
        assert len(attempts) == count + 1, "it was tried again once"
        assert attempts[-1]["from"].startswith("seq-") and attempts[-1]["rejected"] == []
        assert (ends[-1]["class"], ends[-1]["first"]["rank"], ends[-1]["first"]["signal"]) == ("crash", number, 9)
        assert not self.events("gave_up")

    def end(self) -> None:
        self.slurm.call("scancel", self.id)
        until(lambda: self.slurm.state(self.id) == "CANCELLED", what="the end of the job", timeout=120)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("before", "after"), [("earlier", "this"), *full(("this", "earlier"))])
def test_a_bundle_is_changed_in_place_node_by_node(
    slurm: BundledSlurm, staged: Dict[str, Path], before: str, after: str
) -> None:
    """The second node was replaced: it has never had the bundle that the batch host's `job run` is of."""
    bundles.install(staged[before], slurm.root("n1"))
    bundles.install(staged[after], slurm.root("n2"))
    job = BundledJob(slurm)
    job.survives_a_killed_rank(1)
    bundles.install(staged[after], slurm.root("n1"))
    job.survives_a_killed_rank(1)
    job.survives_a_killed_rank(0)
    for node in NODES:
        bundles.install(staged[before], slurm.root(node))
    job.survives_a_killed_rank(0)
    job.end()


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_node_without_the_program_is_named_and_no_checkpoint_is_blamed(
    slurm: BundledSlurm, staged: Dict[str, Path]
) -> None:
    for node in NODES:
        bundles.install(staged["this"], slurm.root(node))
    job = BundledJob(slurm)
    until(job.checkpoints, what="a checkpoint", timeout=120)
    current = slurm.root("n2") / "opt/hyperpod-kit/current"
    away = current.with_name("away")
    current.rename(away)
    os.kill(job.rank(0), signal.SIGKILL)
    until(
        lambda: job.events("ended")[-1:] and job.events("ended")[-1]["class"] == "launch_failed", what="it", timeout=60
    )
    # As an administrator mends it, while the job launches again.
    away.rename(current)
    count = len(job.checkpoints())
    until(lambda: len(job.checkpoints()) > count, what="a checkpoint after it", timeout=120)
    failed = [event for event in job.events("ended") if event["class"] == "launch_failed"]
    program = "/opt/hyperpod-kit/current/lib/hyperpod_kit/job/__main__.py"
    assert f"could not be launched: {program}: No such file or directory (n2)" in failed[0]["message"]
    assert "hyperpod-kit diff shows which bundle n2 has" in job.events("launch_failed")[0]["message"]
    assert all(event["rejected"] == [] for event in job.events("attempt")) and not job.events("gave_up")
    job.end()
