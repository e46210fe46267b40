"""`job run --local`, with real processes: killed, hung, crashing, interrupted; what it says, and what status shows."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from hyperpod_kit.errors import RunIsOwned
from hyperpod_kit.job.base import descendants
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.run import ownership
from hyperpod_kit.job.step.local_machine import LocalMachine
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.system.process import identify_unless_gone_or_zombie
from tests.support.runner import RecordingRunner
from tests.support.wait import scaled, until

ROOT = Path(__file__).parents[3]
MAIN = ROOT / "hyperpod_kit/job/__main__.py"
TRAINER = Path(__file__).with_name("toy_trainer.py")
ENDLESS = ("--steps", "100000", "--pause", "0.02")


class LocalJob:
    """A `job run --local` in a directory of its own, and what it and its trainer have written."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.started: Optional[subprocess.Popen[bytes]] = None
        # As inside of a step of Slurm's: the command is none of its tasks.
        slurm = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURMD_NODENAME": "n1"}
        self.env = {**os.environ, **slurm, "XDG_STATE_HOME": str(base / "home"), "PYTHONPATH": str(ROOT)}

    def start(self, *command: str, options: List[str] | None = None) -> LocalJob:
        argv = [sys.executable, "-I", "-S", str(MAIN), "run", "--local", "--checkpoint-root", str(self.root)]
        argv += ["--backoff", "0.01", *(options or []), "--", *command]
        with open(self.base / "out", "ab") as out, open(self.base / "err", "ab") as err:
            self.started = subprocess.Popen(argv, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=self.env)
        return self

    def train(self, *words: str, options: List[str] | None = None) -> LocalJob:
        return self.start(sys.executable, str(TRAINER), *words, options=options)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self.started is not None
        return self.started

    def wait(self) -> int:
        until(lambda: self.process.poll() is not None, what=f"the end: {self.lines}", timeout=120)
        traces = [line for line in self.lines if line.startswith("  File ") and "hyperpod_kit/job" in line]
        assert not traces, self.lines
        return int(self.process.returncode)

    @property
    def lines(self) -> List[str]:
        return (self.base / "err").read_text().splitlines()

    def has_line(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.lines)

    @property
    def rows(self) -> List[Dict[str, Any]]:
        path = self.root / ".hpk/attempts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def classes(self) -> List[str]:
        return [row["class"] for row in self.rows if row["event"] == "ended"]

    def checkpoints(self) -> int:
        return len(list(self.root.glob("seq-*/MANIFEST.json")))

    def trainers(self) -> List[int]:
        return [pid for pid in descendants.below(self.process.pid) if self._is_trainer(pid)]

    def _is_trainer(self, pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [os.fsencode(TRAINER)]
        except OSError:
            return False

    def kill_trainer(self) -> None:
        """At a moment between two steps of some save, whichever."""
        until(self.trainers, what="a trainer", timeout=60)
        before = self.checkpoints()
        until(lambda: self.checkpoints() > before, what="a checkpoint", timeout=60)
        until(lambda: random.random() < 0.1, what="a moment by chance")
        [trainer] = self.trainers()
        os.kill(trainer, signal.SIGKILL)
        until(lambda: trainer not in self.trainers(), what="its end", timeout=60)

    def command(self, *words: str) -> str:
        argv = [sys.executable, "-I", "-S", str(MAIN), *words]
        return subprocess.run(argv, env=self.env, text=True, capture_output=True, check=True, timeout=60).stdout


@pytest.fixture
def job(tmp_path: Path) -> Any:
    made = LocalJob(tmp_path)
    yield made
    if made.started is not None and made.started.poll() is None:
        pids = descendants.below(made.process.pid)
        for pid in (made.process.pid, *pids):
            os.kill(pid, signal.SIGKILL)
        made.process.wait(60)


def test_killed_again_and_again_it_goes_on_and_says_from_where(job: LocalJob) -> None:
    job.train(*ENDLESS)
    job.kill_trainer()
    job.kill_trainer()
    until(lambda: len((job.base / "out").read_text().splitlines()) == 3, what="a third attempt", timeout=60)
    job.process.send_signal(signal.SIGINT)  # Ctrl-C
    assert job.wait() == 143
    assert job.classes() == ["crash", "crash", "cancelled"]
    assert job.has_line(r"^hyperpod-kit: attempt local-\w{6}\.0\.0 failed: rank 0 on \S+ was killed by signal 9 \(")
    resumed = r"^hyperpod-kit: attempt local-\w{6}\.0\.1 resumes from (seq-\S+), step (\d+)"
    [(name, step, reached, again)] = re.findall(
        resumed + r"; step (\d+) was reached: (\d+) steps? (?:is|are) done again, unless memory has newer ones$",
        "\n".join(job.lines),
        re.M,
    ) or [("", "0", "0", "0")]
    assert int(reached) - int(step) == int(again) and (name in os.listdir(job.root) or not int(again))
    assert job.has_line(r"attempt local-\w{6}\.0\.2 was ended by SIGINT \(")
    ranks = [json.loads(line) for line in (job.base / "out").read_text().splitlines()]
    assert [line["rank"] for line in ranks] == [0, 0, 0], "one rank, whatever Slurm's variables say"
    table = job.command("status", "--root", str(job.root))
    assert f"crash: rank 0 on {os.uname().nodename}" in table and table.count("local-") >= 3, table
    assert "local-" in job.command("status", job.rows[0]["job"])
    assert "STEPS THAT LASTED" in job.command("goodput", "--root", str(job.root))


def test_a_second_one_on_the_root_is_refused_by_name(job: LocalJob, tmp_path: Path) -> None:
    job.train(*ENDLESS)
    until(job.checkpoints, what="a checkpoint", timeout=60)
    (tmp_path / "second").mkdir()
    second = LocalJob(tmp_path / "second")
    second.root = job.root
    assert second.train(*ENDLESS).wait() == 1
    assert f"is used by another `job run --local` ({job.rows[0]['job']}, pid {job.process.pid}, on " in second.lines[0]
    # A job of Slurm's sees it as well, and takes the root once it has ended.
    state = str(job.root / ".hpk")
    with pytest.raises(RunIsOwned, match=f"used by job {job.rows[0]['job']}, which is RUNNING"):
        ownership.claim(RecordingRunner({}), state, JobId("7"), lambda seconds: None, limit=0.0)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    ownership.claim(RecordingRunner({}), state, JobId("7"), lambda seconds: None, limit=0.0)
    # Which of the two has ended is not known here: there is no Slurm to ask.
    third = LocalJob(tmp_path / "second")
    third.root, third.env = job.root, {**third.env, "PATH": "/nowhere"}
    assert third.train(*ENDLESS).wait() == 3
    assert any("was used by job 7, and Slurm reports no state of that job" in line for line in third.lines)


def test_a_new_run_closes_the_attempt_of_one_that_was_killed_itself(job: LocalJob) -> None:
    job.train(*ENDLESS)
    until(job.checkpoints, what="a checkpoint", timeout=60)
    [trainer] = job.trainers()
    job.process.kill()
    job.process.wait(60)
    until(lambda: not job._is_trainer(trainer), what="the end of a trainer without its `job run`", timeout=60)
    assert job.train("--steps", "1").wait() == 0
    assert job.classes() == ["unknown", "done"] and len({row["job"] for row in job.rows}) == 2


def test_a_crash_that_repeats_ends_with_the_exit_code_of_a_job_that_is_held(job: LocalJob) -> None:
    assert job.train("--steps", "9", "--crash", "3", options=["--max-restarts", "2"]).wait() == 86
    assert job.classes() == ["crash"] * 3
    assert job.has_line(r"^hyperpod-kit: gave up: 3 failures without a newer valid checkpoint \(--max-restarts 2\)$")
    assert job.has_line(r"^hyperpod-kit: trying again in [\d.]+ s$")


def test_a_hang_is_ended_and_goes_on(job: LocalJob) -> None:
    once = job.base / "once"
    options = ["--stall", f"{scaled(3):g}"]
    assert job.train("--steps", "12", "--hang", "8", "--once", str(once), options=options).wait() == 0
    first, *_, last = job.classes()
    assert (first, last) == ("stall", "done")
    assert job.has_line(r"no step for \d+ s \(.*at step 7.*ending the step$")


def test_one_that_wants_to_run_again_does_so_here(job: LocalJob) -> None:
    once = job.base / "once"
    assert job.train("--steps", "12", "--crash", "7:75", "--once", str(once)).wait() == 0
    assert job.classes() == ["again", "done"] and [row["restart"] for row in job.rows][-1] == 1
    assert job.has_line("^hyperpod-kit: begins again: saved and requested another run$")


def test_one_that_never_stops_asking_ends(job: LocalJob) -> None:
    assert job.start("/bin/sh", "-c", "exit 75").wait() == 86
    assert job.has_line("gave up: requested another run 2 times without a newer valid checkpoint")


def test_usr1_lets_it_save_and_end(job: LocalJob) -> None:
    job.train(*ENDLESS, "--every", "100000", "--save-on-usr1")
    until(lambda: '"rank"' in (job.base / "out").read_text(), what="the first step", timeout=60)
    job.process.send_signal(signal.SIGUSR1)
    assert job.wait() == 75
    assert job.classes() == ["again"] and job.checkpoints() == 1
    assert job.has_line(
        "ends: saved and requested another run; repeat the command to resume from the newest checkpoint"
    )


def test_a_command_that_is_not_there_is_no_crash_of_a_checkpoint(job: LocalJob) -> None:
    assert job.start("no-such-program").wait() == 86
    assert job.has_line("could not be launched: no-such-program: No such file or directory")
    assert job.has_line("command -v no-such-program; activate its environment, or give its whole path")
    assert not job.has_line("srun")


def test_what_the_command_leaves_behind_is_ended_with_it_and_agents_are_not(job: LocalJob) -> None:
    told = job.base / "pids"
    script = (
        f"setsid sleep 600 & echo $! >>{told}; "
        f"setsid {sys.executable} -c 'import signal; signal.pause()' hyperpod_kit.checkpoint.agent.agent_main & "
        f"echo $! >>{told}; sleep 1; kill -9 $$"
    )
    job.start("/bin/sh", "-c", script, options=["--max-restarts", "0"]).wait()
    worker, agent = map(int, told.read_text().split())
    try:
        assert identify_unless_gone_or_zombie(worker) is None and identify_unless_gone_or_zombie(agent) is not None
    finally:
        os.kill(agent, signal.SIGKILL)


def test_lines_for_programs(job: LocalJob) -> None:
    assert job.start("true", options=["--json-lines"]).wait() == 0
    events = [json.loads(line.partition("hyperpod-kit: ")[2])["event"] for line in job.lines]
    assert events[0] == "start" and events[-1] == "ended"


@pytest.mark.needs("root")
def test_a_full_disk_ends_the_job_with_its_reason(job: LocalJob) -> None:
    job.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(job.root)], check=True)
    try:
        (job.root / ".hpk").mkdir()
        fill = os.open(job.root / "fill", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError):
            while os.write(fill, b"x" * 4096):
                pass
        os.close(fill)
        assert job.start("true").wait() == 1
        assert job.has_line(f"^error: .*{job.root}.*No space left on device"), job.lines
    finally:
        subprocess.run(["umount", "-l", str(job.root)], check=True)


def test_options_of_srun_are_refused(job: LocalJob) -> None:
    assert job.start("true", options=["--nodes", "2"]).wait() == 2
    assert job.has_line("--nodes with --local: the job has one machine, and no srun")


def test_nobody_cancels_a_job_without_slurm(job: LocalJob) -> None:
    assert job.start("true", options=["--requeue-after-cancel", "root"]).wait() == 2
    assert job.has_line("--requeue-after-cancel with --local: without Slurm, no user cancels the job")


def test_each_run_is_a_job_of_its_own(tmp_path: Path) -> None:
    machine = LocalMachine(LocalRunner())
    names = {machine.identify_job({}).id.slurm_id for _ in range(3)}
    assert len(names) == 3
    [name, *_] = names
    assert Ledger(str(tmp_path), name, 1).name(2) == f"{name}.1.2"


@pytest.mark.full
@pytest.mark.distributed
@pytest.mark.parametrize("victim", ["torchrun", "worker"])
def test_torchrun_is_killed_with_its_workers_and_goes_on(job: LocalJob, tmp_path: Path, victim: str) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    job.env.update(HPK_SHM_DIR=str(shm), OMP_NUM_THREADS="1", STEPS="1000000")
    job.start(
        str(Path(sys.executable).with_name("torchrun")),
        "--nproc-per-node",
        "2",
        str(ROOT / "examples/tutorial/train.py"),
    )
    out = job.base / "out"
    until(lambda: job.checkpoints() > 1, what="a checkpoint", timeout=120)
    [torchrun] = [pid for pid in descendants.below(job.process.pid) if is_program(pid, "torchrun")]
    workers = [pid for pid in descendants.below(torchrun) if is_program(pid, "train.py")]
    assert len(workers) == 2
    os.kill(torchrun if victim == "torchrun" else workers[1], signal.SIGKILL)
    until(lambda: out.read_text().count(": begins at step") == 4, what="the next attempt", timeout=120)
    assert not any(is_program(pid, "train.py") for pid in workers), "none writes beside the next attempt"
    begins = [int(text) for text in re.findall(r"begins at step (\d+)", out.read_text())]
    assert begins[:2] == [0, 0] and begins[2] == begins[3] > 0
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    assert job.classes() == ["crash", "cancelled"]
    table = job.command("status", "--root", str(job.root))
    assert "crash: rank 0" in table and "2 attempts" in table, table


def is_program(pid: int, name: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(os.path.basename(word) == name.encode() for word in words[1:3])
