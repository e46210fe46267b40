"""Several `job run` in one allocation, on a real Slurm: each has its own steps, and a root of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from hyperpod_kit.errors import RunIsOwned
from hyperpod_kit.job import cli
from hyperpod_kit.job.run.sole_run import JobRunLock
from tests.support.job_events import job_events
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm, running

MAIN = Path(cli.__file__).with_name("__main__.py")
TRAINER = Path(__file__).with_name("toy_trainer.py")


def test_a_root_is_taken_once_and_free_again_when_its_run_ends(tmp_path: Path) -> None:
    pauses: List[float] = []
    first, other, second = (
        JobRunLock(str(tmp_path / "a")),
        JobRunLock(str(tmp_path / "b")),
        JobRunLock(str(tmp_path / "a")),
    )
    first.take("7", pauses.append, 0.0)
    other.take("7", pauses.append, 0.0)
    with pytest.raises(RunIsOwned) as caught:
        second.take("7", pauses.append, 0.0)
    assert f"pid {os.getpid()}" in caught.value.message and f"{tmp_path}/a is used" in caught.value.message
    assert not pauses, "nothing was waited for"
    # Another job on this host is none of its business: ownership.py tells jobs apart, and names them.
    with contextlib.closing(JobRunLock(str(tmp_path / "a"))) as another_job:
        another_job.take("8", pauses.append, 0.0)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(RunIsOwned):
        JobRunLock(str(tmp_path / "link")).take("7", pauses.append, 0.0)
    second.take("7", lambda seconds: first.close(), 60.0)
    second.close()
    other.close()


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    with running(nodes=2) as cluster:
        yield cluster


class SharedAllocation:
    """A job whose batch script starts a `job run` for each of these logs, on these roots."""

    def __init__(self, slurm: PrivateSlurm, roots: Dict[str, str]) -> None:
        self.slurm = slurm
        self.place = Path(tempfile.mkdtemp(prefix="work-", dir=slurm.base))
        self.place.chmod(0o777)
        run = f"/usr/bin/python3 -I -S {MAIN} run --json-lines"
        one = f"{run} --srun-args='-N1 -n1 --exact' --checkpoint-root {self.place}"
        train = f"/usr/bin/python3 -I {TRAINER} --steps 100000 --pause 0.05"
        runs = [
            f"{one}/{root} -- {train} >{self.place}/{log}.log 2>&1 &\n"
            f"until [ -e {self.place}/{root}/.hpk/attempts.jsonl ]; do sleep 0.1; done\n"
            for log, root in roots.items()
        ]
        script = self.place / "job.sbatch"
        script.write_text(
            "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2 --auto-resume=1 --open-mode=append\n"
            f"#SBATCH -o {self.place}/out\nsrun -N1 -n1 --overlap --job-name=monitor sleep 600 &\n"
            f"{''.join(runs)}wait\n"
        )
        self.id = slurm.sbatch(str(script), cwd=self.place)

    def events(self, log: str, kind: str) -> List[Dict[str, Any]]:
        return job_events(self.place / f"{log}.log", kind)

    def checkpoints(self, root: str) -> int:
        return len(list((self.place / root).glob("seq-*/MANIFEST.json")))

    def trainer(self, root: str) -> int:
        """Its pid."""
        return next(pid for pid in self.slurm.processes() if self._is_trainer(pid, root))

    def _is_trainer(self, pid: int, root: str) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return words[2:3] == [os.fsencode(TRAINER)] and f"HPK_CHECKPOINT_ROOT={self.place}/{root}".encode() in variables

    def monitors(self) -> int:
        return self.slurm.call("squeue", "--steps", "-h", "-j", self.id, "-o", "%j").split().count("monitor")

    def saves_more(self, root: str) -> None:
        count = self.checkpoints(root)
        try:
            until(lambda: self.checkpoints(root) > count, what=f"a checkpoint in {root}", timeout=120)
        except AssertionError as err:
            logs = "".join(path.read_text() for path in self.place.iterdir() if path.is_file())
            raise AssertionError(f"{err}\n{self.slurm.call('squeue', '--steps')}{logs}") from None


@pytest.mark.timeout(400)
@pytest.mark.rehearsal
@pytest.mark.needs("slurm")
def test_a_killed_rank_of_one_disturbs_no_step_of_another(slurm: PrivateSlurm) -> None:
    job = SharedAllocation(slurm, {"a": "a", "b": "b", "again": "a"})
    job.saves_more("a")
    job.saves_more("b")
    [first] = {event["attempt"] for event in job.events("a", "attempt")}
    assert first == job.events("b", "attempt")[0]["attempt"], "by its attempt a step cannot be told from the other's"
    log = job.place / "again.log"
    until(lambda: "error: " in log.read_text(), what="the refusal of the root", timeout=60)
    assert f"{job.place}/a is used by another `job run` of this job" in log.read_text()
    beside = job.trainer("b")
    os.kill(job.trainer("a"), signal.SIGKILL)
    until(lambda: len(job.events("a", "attempt")) == 2, what="another attempt", timeout=120)
    job.saves_more("a")
    job.saves_more("b")
    assert job.trainer("b") == beside and job.monitors() == 1
    assert (len(job.events("b", "attempt")), job.events("b", "ended")) == (1, [])
    assert [event["class"] for event in job.events("a", "ended")] == ["crash"]
    slurm.call("scancel", job.id)
