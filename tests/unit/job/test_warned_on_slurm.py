"""`Manager(save_on_signal=True)` in a step of `job run`, on a real Slurm, as an ordinary user: whoever is told, both
ranks save one step, the job is queued again once, and it goes on behind that step."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.job import cli
from hyperpod_kit.job.base.report import PREFIX
from tests.support.wait import until
from tests.unit.job.private_slurm import REPOSITORY, PrivateSlurm, running

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.rehearsal,
    pytest.mark.needs("slurm"),
]

TRAINER = Path(__file__).with_name("warned_trainer.py")
MAIN = Path(cli.__file__).with_name("__main__.py")
PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=120
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
ENDLESS = 10**6
USER = 65534
LIBRARIES = [path for path in sys.path if path.endswith("-packages")]


def interpreter() -> str:
    """One for our libraries that an ordinary user may start: this one may lie in root's home."""
    version = ".".join(map(str, sys.version_info[:2]))
    for python in map(Path, (sys.executable, f"/usr/bin/python{version}")):
        if python.exists() and all(part.stat().st_mode & 0o001 for part in python.resolve().parents):
            return str(python)
    pytest.fail(f"no Python {version} that an ordinary user may start: install python{version}, or clone elsewhere")


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    with running(nodes=2, user=USER, more=PREEMPTION) as cluster:
        yield cluster


class Training:
    """One job of two ranks, each on a node of its own, and what was said in it."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self.slurm = slurm
        self.place = Path(tempfile.mkdtemp(prefix="work-", dir=slurm.base))
        self.memory = Path(tempfile.mkdtemp(prefix="hpk-warned-", dir="/dev/shm"))
        for folder in (self.place, self.memory):
            folder.chmod(0o777)
        self.id = ""

    def submit(self, *words: str, options: str = "", program: str = "", tasks: str = "-N2 --ntasks-per-node=1") -> None:
        script = self.place / "job.sbatch"
        paths = os.pathsep.join([str(REPOSITORY), *LIBRARIES])
        script.write_text(
            f"#!/bin/bash\n#SBATCH {tasks} --open-mode=append --requeue --auto-resume=1\n"
            f"#SBATCH -o {self.place}/out\n{options}\n"
            f"export HPK_SHM_DIR={self.memory} PYTHONPATH={paths} GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1\n"
            f"exec /usr/bin/python3 -I -S {MAIN} run --json-lines --checkpoint-root {self.place}/root -- "
            f"{interpreter()} {program} {TRAINER} {ENDLESS} {' '.join(words)}\n"
        )
        self.id = self.slurm.sbatch(str(script), cwd=self.place)

    def said(self, word: str) -> list[dict[str, Any]]:
        """What the ranks said of it, or `job run` where `word` is one of its events."""
        found = []
        for line in (self.place / "out").read_text().splitlines() if (self.place / "out").exists() else ():
            text = line[len(PREFIX) :] if line.startswith(PREFIX) else line
            if text.startswith("{"):
                one = json.loads(text)
                found += [one] if word in one.get("event", one) else []
        return found

    def until_said(self, word: str, count: int) -> list[dict[str, Any]]:
        def enough() -> bool:
            assert not self.said("gave_up")
            return len(self.said(word)) >= count

        until(enough, timeout=240, what=f"{count} x {word!r} in {self.place}/out")
        return self.said(word)

    def exits(self) -> list[int | None]:
        """How the ranks ended, as their wrappers put it down."""
        records = sorted((self.place / "root" / ".hpk").glob("exits/*/*.json"))
        return [json.loads(path.read_text())["code"] for path in records]

    def committed(self) -> list[int]:
        names = [
            layout.parse_checkpoint_id(path.parent.name) for path in (self.place / "root").glob("seq-*/MANIFEST.json")
        ]
        return sorted(name.step for name in names if name)

    def cancel(self, *how: str) -> None:
        self.slurm.call("scancel", *how, self.id, as_user=True)


@pytest.fixture
def training(slurm: PrivateSlurm) -> Iterator[Training]:
    made = Training(slurm)
    try:
        yield made
    finally:
        print((made.place / "out").read_text() if (made.place / "out").exists() else "no output")
        if made.id and slurm.state(made.id) in ("PENDING", "RUNNING", "COMPLETING"):
            slurm.call("scancel", made.id)
            until(lambda: slurm.state(made.id) not in ("PENDING", "RUNNING", "COMPLETING"), timeout=120, what="its end")
        shutil.rmtree(made.memory, ignore_errors=True)


def goes_on(training: Training) -> int:
    """Both ranks saved one step and ended with 75, the job was queued once more, and began behind it. The step."""
    begun = training.until_said("begins", 4)
    first, second = training.said("saved")
    assert {one["code"] for one in (first, second)} == {75} and first["saved"] == second["saved"] > 0
    step = int(first["saved"])
    assert [one["begins"] for one in begun] == [0, 0, step + 1, step + 1]
    assert training.committed() == [step]
    (ended,) = training.said("ended")
    assert ended["class"] == "again" and training.exits() == [75, 75]
    assert len(training.said("requeue")) == 1 and training.slurm.state(training.id) == "RUNNING"
    assert "Restarts=1 " in training.slurm.call("scontrol", "-o", "show", "job", training.id)
    return step


@pytest.mark.parametrize("told", ["steps", "job run", "both"])
def test_whoever_is_told_the_same_step_is_saved_and_gone_on_from(training: Training, told: str) -> None:
    whom = {"steps": (), "job run": ("--batch",), "both": ("--full",)}[told]
    training.submit("5" if told == "both" else "0")
    training.until_said("begins", 2)
    training.cancel("--signal=USR1", *whom)
    if told == "both":  # and once more while the ranks, which have saved, are about to end
        until(training.committed, timeout=120, what="a checkpoint")
        training.cancel("--signal=USR1", *whom)
    goes_on(training)
    assert len(training.said("warned")) == (told != "steps")


@pytest.mark.parametrize("signal", ["B:USR1@60", "USR1@60"])
def test_the_time_limit(training: Training, signal: str) -> None:
    training.submit(options=f"#SBATCH --time=2 --signal={signal}")
    goes_on(training)


def test_a_preemption(training: Training) -> None:
    training.submit(options="#SBATCH -p low --signal=B:USR1@60")
    training.until_said("begins", 2)
    other = training.slurm.sbatch("-p", "high", "-n4", "--wrap", "sleep 1", "-o", "/dev/null", cwd=training.place)
    goes_on(training)
    assert training.slurm.state(other) == "COMPLETED"


def test_a_preemption_that_sends_term_alone(training: Training) -> None:
    training.submit(options="#SBATCH -p low")
    training.until_said("begins", 2)
    training.slurm.sbatch("-p", "high", "-n4", "--wrap", "sleep 1", "-o", "/dev/null", cwd=training.place)
    begun = training.until_said("begins", 4)
    first, second = training.said("saved")
    assert first["saved"] == second["saved"] and training.exits() == [75, 75]
    assert [one["begins"] for one in begun[2:]] == [first["saved"] + 1] * 2


def test_a_cancelled_job_has_saved_and_stays_cancelled(training: Training) -> None:
    training.submit()
    training.until_said("begins", 2)
    training.cancel()
    until(lambda: training.slurm.state(training.id) == "CANCELLED", timeout=120, what="the end")
    first, second = training.until_said("saved", 2)
    assert first["saved"] == second["saved"] and training.committed() == [first["saved"]]
    assert training.said("requeue") == [] and training.until_said("ended", 1)[0]["class"] == "cancelled"


@pytest.mark.parametrize("told", ["job run", "steps"])
def test_under_torchrun_that_forwards_the_signal(training: Training, told: str) -> None:
    words = "--signals-to-handle=SIGUSR1,SIGTERM,SIGINT,SIGHUP,SIGQUIT --shutdown-timeout=80"
    program = f"-m torch.distributed.run --standalone --nproc-per-node=2 {words}"
    training.submit(program=program, tasks="-N1 -n1")
    training.until_said("begins", 2)
    training.cancel("--signal=USR1", *(("--batch",) if told == "job run" else ()))
    begun = training.until_said("begins", 4)
    first, second = training.said("saved")
    assert first["saved"] == second["saved"] and training.committed() == [first["saved"]]
    assert [one["begins"] for one in begun[2:]] == [first["saved"] + 1] * 2
    assert training.said("ended")[0]["class"] == ("preempted" if told == "job run" else "crash")
    assert len(training.said("requeue")) == (told == "job run")
