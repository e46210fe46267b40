"""`sbatch --auto-resume=1` on a real Slurm of our own: the plugin, the requeues and the holds are Slurm's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from hyperpod_kit.job import cli
from tests.support.job_events import job_events
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm, running
from tests.unit.job.toy_trainer import commit_checkpoint

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]

PYTHON = "/usr/bin/python3"
TRAINER = Path(__file__).with_name("toy_trainer.py")
MAIN = Path(cli.__file__).with_name("__main__.py")


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    with running() as cluster:
        yield cluster


class Work:
    """One job's directory, writable for the job's user."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self.slurm = slurm
        self.place = Path(tempfile.mkdtemp(prefix="work-", dir=slurm.base))
        self.place.chmod(0o777)
        self.root = self.place / "root"
        self.id = ""

    def submit(self, *trainer: str, options: str = "#SBATCH --auto-resume=1", run: str = "") -> Work:
        script = self.place / "job.sbatch"
        words = " ".join(trainer)
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --open-mode=append\n{options}\n"
            f"#SBATCH -o {self.place}/out\n"
            f"exec {PYTHON} -I -S {MAIN} run --json-lines --checkpoint-root {self.root} {run} -- "
            f"{PYTHON} -I {TRAINER} {words}\n"
        )
        self.id = self.slurm.sbatch(str(script), cwd=self.place)
        return self

    def events(self, kind: str) -> List[Dict[str, Any]]:
        return job_events(self.place / "out", kind)

    def checkpoints(self) -> List[Path]:
        return sorted(self.root.glob("seq-*/MANIFEST.json"))

    def ranks(self) -> List[int]:
        """The processes of the trainer, without those of its wrappers."""
        trainer = f"\0-I\0{TRAINER}\0".encode()
        job = f"SLURM_JOB_ID={self.id}".encode()
        return [
            pid
            for pid in self.slurm.processes()
            if Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[2].startswith(trainer[1:])
            and job in Path(f"/proc/{pid}/environ").read_bytes()
        ]

    def state(self, *wanted: str) -> str:
        def reached() -> str:
            state = self.slurm.state(self.id)
            return state if state in wanted else ""

        try:
            return until(reached, what=f"{wanted} of job {self.id}")
        except AssertionError as err:
            raise AssertionError(f"{err}\n{self.slurm.call('squeue')}{(self.place / 'out').read_text()}") from None

    def detail(self, name: str) -> str:
        line = self.slurm.call("scontrol", "-o", "show", "job", self.id)
        return next(word.split("=", 1)[1] for word in line.split() if word.startswith(name + "="))


@pytest.fixture
def work(slurm: PrivateSlurm) -> Work:
    return Work(slurm)


def test_a_crash_and_a_killed_rank_are_retried_in_the_allocation(work: Work) -> None:
    work.submit("--steps", "12", "--crash", "8:KILL", "--once", str(work.place / "once"))
    work.state("COMPLETED")
    assert [event["class"] for event in work.events("ended")] == ["crash", "done"]
    assert work.events("ended")[0]["first"]["signal"] == 9
    assert [event["step"] for event in work.events("attempt")] == [0, 5]
    assert work.detail("Restarts") == "0"


def kill_a_rank_on_drained_nodes(work: Work, reason: str) -> List[str]:
    """Kill a rank of a job whose nodes are all drained for this reason, and return the nodes."""
    work.submit("--steps", "60", "--pause", "0.2")
    until(work.checkpoints, what="checkpoint")
    nodes: List[str] = work.events("attempt")[0]["nodes"]
    hosts = ",".join(nodes)
    try:
        work.slurm.call("scontrol", "update", f"nodename={hosts}", "state=drain", f"reason={reason}")
        os.kill(work.ranks()[-1], signal.SIGKILL)
        until(lambda: len(work.events("attempt")) == 2 or work.events("requeue"), what="what follows the crash")
    finally:
        work.slurm.call("scontrol", "update", f"nodename={hosts}", "state=undrain")
    work.state("COMPLETED")
    return nodes


def test_a_crash_on_nodes_that_wait_for_a_patch_is_retried_in_the_allocation(work: Work) -> None:
    nodes = kill_a_rank_on_drained_nodes(work, "HyperPod:AutoPatch")
    assert [event["class"] for event in work.events("ended")] == ["crash", "done"]
    assert work.events("attempt")[1]["nodes"] == nodes
    assert (work.detail("Restarts"), work.events("requeue")) == ("0", [])


@pytest.mark.full
def test_a_crash_on_nodes_that_are_drained_for_a_fault_gives_them_back(work: Work) -> None:
    kill_a_rank_on_drained_nodes(work, "hyperpod-kit:device:gpu")
    assert work.detail("Restarts") == "1" and "0 of 2 nodes are left" in work.events("requeue")[0]["why"]


def test_a_cancelled_job_stays_cancelled(work: Work) -> None:
    work.submit("--steps", "5000")
    until(work.checkpoints, what="checkpoint")
    work.slurm.call("scancel", work.id, as_user=True)
    work.state("CANCELLED")
    until(lambda: work.events("ended"), what="last word")
    assert work.events("ended")[0]["class"] == "cancelled"
    assert (work.detail("Restarts"), work.events("requeue")) == ("0", [])


def test_doctor_reads_a_real_configuration(work: Work) -> None:
    done = work.slurm.call(PYTHON, "-I", "-S", str(MAIN), "doctor", "--json", check=False)
    found = {finding["code"]: finding for finding in json.loads(done)["findings"]}
    assert {"S002", "S003", "S009"} <= set(found), "it has no hooks of ours"
    assert found["S003"]["line"] == "PrologFlags=Alloc"


def test_doctor_names_a_job_that_slurm_holds_because_a_node_could_not_start_it(work: Work) -> None:
    """As on a node whose disk is full: here a file stands where slurmd would make the job's directory."""
    spools = [work.slurm.base / f"spool-n{number}" for number in range(1, work.slurm.count + 1)]
    probe = work.submit("--steps", "5000").id
    work.slurm.call("scancel", probe)
    obstacles = [spool / f"job{int(probe) + 1:05d}" for spool in spools]
    for obstacle in obstacles:
        obstacle.write_text("")
    try:
        job = work.submit("--steps", "5").id
        assert int(job) == int(probe) + 1
        until(lambda: "held" in work.slurm.call("squeue", "-h", "-j", job, "-o", "%r"), what="held job")
        done = work.slurm.call(PYTHON, "-I", "-S", str(MAIN), "doctor", "--json", check=False)
        [finding] = [finding for finding in json.loads(done)["findings"] if finding["code"] == "S021"]
        assert finding["severity"] == "error" and finding["message"].endswith(f"batch script: {job}")
        assert finding["hint"].endswith(f"scontrol release {job}")
    finally:
        for obstacle in obstacles:
            obstacle.unlink(missing_ok=True)
    work.slurm.call("scontrol", "release", job)
    work.state("COMPLETED")


def test_usr1_saves_requeues_and_goes_on(work: Work) -> None:
    work.submit("--steps", "30", "--every", "1000", "--save-on-usr1", "--pause", "0.1")
    # Both: a rank that does not listen yet is ended by the signal.
    out = work.place / "out"
    until(lambda: out.exists() and out.read_text().count('"rank": ') == 2, what="ranks")
    work.slurm.call("scancel", "--batch", "--signal=USR1", work.id, as_user=True)
    work.state("COMPLETED")
    first, second = work.events("attempt")
    assert first["step"] == 0 and second["step"] > 0 and second["attempt"].endswith(".1.0")
    assert [event["class"] for event in work.events("ended")] == ["again", "done"]
    assert work.detail("Restarts") == "1"


@pytest.mark.full
def test_a_node_that_slurm_declares_down_costs_one_requeue(work: Work) -> None:
    work.submit("--steps", "60")
    until(work.checkpoints, what="checkpoint")
    batch_host = work.detail("BatchHost")
    try:
        work.slurm.call("scontrol", "update", f"nodename={batch_host}", "state=down", "reason=test")
        work.state("COMPLETED")
    finally:
        work.slurm.call("scontrol", "update", f"nodename={batch_host}", "state=resume", check=False)
    _, second = work.events("attempt")
    assert second["from"].startswith("seq-") and batch_host not in second["nodes"]
    assert work.detail("Restarts") == "1"


def test_nothing_valid_is_held_with_86(work: Work) -> None:
    work.root.mkdir()
    name = commit_checkpoint(str(work.root), 1, 1, 5)
    (work.root / name / "shard-00000.safetensors").write_bytes(b"x")
    subprocess.run(["chown", "-R", f"{work.slurm.user}:{work.slurm.user}", work.root], check=True, timeout=60)
    work.submit("--steps", "9")
    work.state("SPECIAL_EXIT")
    assert work.detail("ExitCode") == "86:0"
    assert work.events("rejected")[0]["attempt"] == name
    # The ranks are asked once, since the bytes are theirs to read; none of them has done a step.
    assert len(work.events("attempt")) == 1 and work.events("restored")[0]["error"] == "NoValidCheckpoint"
    assert work.events("ended")[0]["reached"] is None


def test_off_by_default(work: Work) -> None:
    work.submit("--steps", "9", "--crash", "3:5", options="")
    work.state("FAILED")
    assert work.detail("ExitCode") == "5:0"


def test_the_option_is_legal_everywhere_and_survives_export_none(slurm: PrivateSlurm) -> None:
    for program in ("sbatch", "srun", "salloc"):
        assert "--auto-resume=0|1|N" in slurm.call(program, "--help")
    out = slurm.base / "option.out"
    slurm.call(
        "sbatch",
        "--wait",
        "-o",
        str(out),
        "--export=NONE",
        "--auto-resume",
        "--wrap",
        "env; srun -N1 -n1 /bin/true && echo inner srun accepts it",
    )
    text = out.read_text()
    assert "SLURM_SPANK_HPK_AUTO_RESUME=1" in text and "inner srun accepts it" in text
    refused = slurm.call("sbatch", "--auto-resume=x", "--wrap", "true", check=False)
    assert "'x' is not 0 (off), 1 (on)" in refused
