"""This machine alone in place of Slurm: the command is a child of `job run`, and what would be requeued begins again.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import signal
import subprocess
import time
from typing import List, Mapping, Optional, Tuple

from hyperpod_kit.descriptors import command_with_soft_limit
from hyperpod_kit.errors import JobError
from hyperpod_kit.job.base import descendants
from hyperpod_kit.job.base.allocation import Allocation
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.run_end import RunEnd
from hyperpod_kit.job.step import srun_step
from hyperpod_kit.job.step.srun_step import RunningStep, StepPlan
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import tracking
from hyperpod_kit.slurm.environment import COMMENT_MARK, JobEnvironment
from hyperpod_kit.slurm.job_id import JobId

ALONE = "--alone"
"""Option of `job exec`: nothing but the wrapper ends what the command leaves behind."""

_LOOPBACK = "127.0.0.1"
_LOCAL_JOB = re.compile(r"local-[0-9a-f]{6}")


def is_local_job(name: str) -> bool:
    """Return whether a job of this name is a `job run --local`."""
    return _LOCAL_JOB.fullmatch(name) is not None


def environment_outside_of_slurm(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment without what describes a task of Slurm, which the command is not."""
    return {name: value for name, value in env.items() if not name.startswith(("SLURM_", "SLURMD_", "SRUN_"))}


class LocalStep(RunningStep):
    """A command of this machine, with its wrapper in a session of its own: Ctrl-C at the terminal is ours alone."""

    def __init__(self, plan: StepPlan, env: Mapping[str, str], descriptors: Optional[int] = None) -> None:
        argv = [*srun_step.kit_command_on_this_node(), "exec", ALONE, "--", *plan.command]
        if descriptors is not None:
            argv = command_with_soft_limit(descriptors, argv)
        try:
            process = subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as err:
            raise JobError(f"cannot start {argv[0]}: {err.strerror}") from err
        super().__init__(process)
        # Inside of a step of Slurm's the wrapper hands signals on, so that the group would get each twice.
        self._is_handed_on = tracking.only_tasks_are_signalled(tracking.read_own_cgroup_text())

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is not None:
            return
        if self._is_handed_on and number != signal.SIGKILL:
            self._process.send_signal(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill_ranks(self) -> None:
        """Kill the command and all that it has started; the wrapper records that."""
        if self.poll() is None:
            descendants.kill_all_but_agents_below(self._process.pid)


class LocalMachine:
    """One `job run --local`, which is a job of its own."""

    has_queue = False
    claim_wait = 5.0
    launcher = "the wrapper"

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._step: Optional[LocalStep] = None

    def identify_job(self, env: Mapping[str, str]) -> JobEnvironment:
        return JobEnvironment(JobId(f"local-{secrets.token_hex(3)}"), 0, (os.uname().nodename,), 0)

    def query_comment(self, job: JobEnvironment) -> str:
        return f"{COMMENT_MARK}1"

    def add_to_comment(self, job: JobEnvironment, mark: str) -> None:
        raise JobError("there is no Slurm job")

    def query_record_and_queued_at(self, job: JobEnvironment) -> Tuple[Mapping[str, str], float]:
        now = float(int(time.time()))  # it has not waited for this machine
        user = ""
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(os.getuid()).pw_name
        return {"User": user, "StartTime": f"{now:.0f}"}, now

    def has_step_retry(self) -> bool:
        return False

    def query_allocation(self, job: JobEnvironment) -> Allocation:
        return Allocation(job.nodes, "RUNNING", own_host=_LOOPBACK)

    def explain_run_end(self, allocated: Allocation, restart: int, signal: Optional[str] = None) -> RunEnd:
        return RunEnd(OutcomeKind.CANCELLED, f"was ended by {signal or 'a signal'}")

    def requeue(self, job: JobEnvironment) -> None:
        raise NotImplementedError("without Slurm there is no queue to requeue the job")

    def start_step(self, plan: StepPlan, env: Mapping[str, str], descriptors: Optional[int]) -> RunningStep:
        self._step = LocalStep(plan, env, descriptors)
        return self._step

    def send_save_signal(self, job: JobEnvironment) -> None:
        if self._step is not None:
            self._step.send_signal(signal.SIGUSR1)

    def kill_ranks(self, job: JobEnvironment) -> List[str]:
        if self._step is not None:
            self._step.kill_ranks()
        return []

    def query_remaining_steps(self, job: JobEnvironment) -> List[str]:
        return []
