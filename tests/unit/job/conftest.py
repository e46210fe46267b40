"""A job without a cluster: real supervisor, real ranks under the real wrapper, fake srun, recorded Slurm commands."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List

import pytest

from hyperpod_kit.job.base.report import PREFIX, JobReport
from hyperpod_kit.job.decide.retry_policy import RetryPolicy
from hyperpod_kit.job.run.supervisor import JobSupervisor
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.job.step.scheduler import SlurmScheduler
from hyperpod_kit.job.step.srun_step import SrunStep
from hyperpod_kit.job.step.storage import ObjectProbe, Probe
from tests.support.runner import RecordingRunner
from tests.support.wait import until
from tests.unit.job.ranks_in_process import RanksInProcess

HERE = Path(__file__).parent
TRAINER = HERE / "toy_trainer.py"
PROBE_DEADLINE = 200.0
"""Seconds that a probe has for its answer, where a test gives it no deadline of its own."""


@dataclass
class Job:
    """One job with its checkpoint root. `run` is one run of its batch script; `events` what all runs printed."""

    base: Path
    root: Path
    runner: RecordingRunner
    environment: Dict[str, str]
    events: List[Dict[str, Any]] = field(default_factory=list)
    chooser: Any = None
    start_step: Any = SrunStep

    def run(
        self,
        *trainer: str,
        restart: int = 0,
        nodes: int = 0,
        command: Any = None,
        told: Any = lambda event, fields: None,
        **options: Any,
    ) -> int:
        log = self.base / f"run-{len(list(self.base.glob('run-*')))}"
        env = {**self.environment, **({"SLURM_RESTART_COUNT": str(restart)} if restart else {})}
        policy = RetryPolicy(**{"backoff": 0.01, **options.pop("policy", {})})
        defaults = {
            "srun": str(HERE / "fake_srun.py"),
            "probe_interval": 0.2,
            "silent_after": 0.3,
            "refused_after": 0.3,
        }
        chosen = RunOptions(
            root=str(self.root),
            policy=policy,
            nodes=nodes,
            command=tuple(command or (sys.executable, str(TRAINER), "--pause", "0.01", *trainer)),
            **{**defaults, **options},
        )
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        extra = {"chooser": self.chooser, "prover": self.chooser} if self.chooser else {}
        scheduler = SlurmScheduler(self.runner, self.start_step)
        try:
            return JobSupervisor(
                chosen, env, scheduler=scheduler, report=JobReport(fd, event_listener=told, is_json=True), **extra
            ).run()
        finally:
            os.close(fd)
            self.events += [json.loads(line[len(PREFIX) :]) for line in log.read_text().splitlines()]

    def said(self, event: str) -> List[Dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def has_reported(self, event: str) -> bool:
        """Whether a run that may still go on has reported that."""
        logs = [path.read_text() for path in self.base.glob("run-*")]
        return any(f'"event": "{event}"' in log for log in logs)

    def started_at(self) -> List[int]:
        """The step that each attempt started from."""
        return [event["step"] for event in self.said("attempt")]

    @property
    def sruns(self) -> List[List[str]]:
        return [json.loads(line) for line in (self.base / "srun.log").read_text().splitlines()]

    def later(self, number: int, when: Any) -> threading.Thread:
        """Send ourselves a signal once `when()` is true."""

        def wait() -> None:
            until(when, what="the moment of the signal")
            os.kill(os.getpid(), number)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


@pytest.fixture(autouse=True)
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that serves is not called lost where a busy machine takes seconds to start the probe's process."""
    for probe in (Probe, ObjectProbe):
        defaults = probe.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "deadline", PROBE_DEADLINE)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    answers = {
        "squeue job 7": "JobId=7 JobState=RUNNING NodeList=n[1-2] Comment=none",
        "scontrol requeue 7": "",
        "squeue --steps": "",
        "scancel": "",
        "srun --help": "",
    }
    environment = {
        **os.environ,
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NTASKS": "2",
        "HPK_AUTO_RESUME": "1",
        "XDG_STATE_HOME": str(tmp_path / "home"),
        "FAKE_SRUN_LOG": str(tmp_path / "srun.log"),
    }
    return Job(tmp_path, tmp_path / "root", RecordingRunner(answers), environment)


@pytest.fixture
def job_in_process(job: Job) -> Job:
    """A job whose ranks are this process: for what the supervisor decides, where no signal and no hang matters."""
    job.start_step = RanksInProcess
    return job
