"""What gives a job its nodes and runs its steps, as `job run` asks for it: Slurm, or this machine alone.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Callable, List, Mapping, Optional, Protocol, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.job.base import allocation
from hyperpod_kit.job.base.allocation import Allocation
from hyperpod_kit.job.decide.run_end import RunEnd, explain_run_end
from hyperpod_kit.job.step import srun_step, step_name
from hyperpod_kit.job.step.srun_step import RunningStep, StepPlan
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.environment import JobEnvironment


class Scheduler(Protocol):
    """Where a job runs.

    Attributes:
        runner: Runs Slurm's commands.
        has_queue: Whether it starts the job again when `job run` asks for that, on nodes of its choice.
        claim_wait: Seconds to wait for the end of the job that used this root before.
        launcher: What the exit code of a step is of, in a sentence.
    """

    runner: Runner
    has_queue: bool
    claim_wait: float
    launcher: str

    def identify_job(self, env: Mapping[str, str]) -> JobEnvironment:
        """Return the job that this process runs. Raises NotInAJob."""

    def query_comment(self, job: JobEnvironment) -> str:
        """Return the comment of the job, which may have the choice of auto-resume. Raises RunError."""

    def add_to_comment(self, job: JobEnvironment, mark: str) -> None:
        """Add a word to the comment of the job, unless it is there. Raises RunError, JobError."""

    def query_record_and_queued_at(self, job: JobEnvironment) -> Tuple[Mapping[str, str], float]:
        """Return the record of the job with its times, and when it came into the queue last, Unix seconds.

        Raises RunError, JobError.
        """

    def has_step_retry(self) -> bool:
        """Return whether it starts the ranks of a step again by itself, as HyperPod's srun does."""

    def query_allocation(self, job: JobEnvironment) -> Allocation:
        """Return the nodes of the job and its state. Raises JobError."""

    def explain_run_end(self, allocated: Allocation, restart: int, signal: Optional[str] = None) -> RunEnd:
        """Return why it, or a signal, has ended this run."""

    def requeue(self, job: JobEnvironment) -> None:
        """Put the job back into the queue. Raises RunError."""

    def start_step(self, plan: StepPlan, env: Mapping[str, str], descriptors: Optional[int]) -> RunningStep:
        """Start the ranks. `descriptors`: their limit. Raises JobError."""

    def send_save_signal(self, job: JobEnvironment) -> None:
        """Send USR1 to the ranks. Raises RunError."""

    def kill_ranks(self, job: JobEnvironment) -> List[str]:
        """Kill all ranks of this process's steps, and return the steps that had some; none without an answer."""

    def query_remaining_steps(self, job: JobEnvironment) -> List[str]:
        """Return the steps of this process that are still there. Raises RunError."""


StartStep = Callable[[StepPlan, Mapping[str, str], Optional[int]], RunningStep]
"""What starts a step: the plan, the environment of its ranks, and their limit of descriptors."""


class SlurmScheduler:
    """Slurm, asked and ordered by its own commands."""

    has_queue = True
    claim_wait = 120.0
    launcher = "srun"

    def __init__(self, runner: Runner, start_step: StartStep = srun_step.SrunStep) -> None:
        self.runner = runner
        self.start_step = start_step

    def identify_job(self, env: Mapping[str, str]) -> JobEnvironment:
        return JobEnvironment.read(env)

    def query_comment(self, job: JobEnvironment) -> str:
        return control.query_job_record(self.runner, job.id).get("Comment", "")

    def add_to_comment(self, job: JobEnvironment, mark: str) -> None:
        record = control.query_job_record(self.runner, job.id)
        control.add_to_comment(self.runner, job.id, record, mark)

    def query_record_and_queued_at(self, job: JobEnvironment) -> Tuple[Mapping[str, str], float]:
        record = control.query_job_record_with_times(self.runner, job.id)
        return record, control.query_last_queued_at(self.runner, job.id)

    def has_step_retry(self) -> bool:
        return srun_step.is_hyperpod_step_retry_available(self.runner)

    def query_allocation(self, job: JobEnvironment) -> Allocation:
        return allocation.query_allocation_else_from_environment(self.runner, job)

    def explain_run_end(self, allocated: Allocation, restart: int, signal: Optional[str] = None) -> RunEnd:
        return explain_run_end(allocated, restart, signal)

    def requeue(self, job: JobEnvironment) -> None:
        control.requeue(self.runner, job.id)

    def send_save_signal(self, job: JobEnvironment) -> None:
        control.signal_steps(self.runner, job.id, step_name.PROCESS_PREFIX, "USR1")

    def kill_ranks(self, job: JobEnvironment) -> List[str]:
        try:
            return control.kill_steps(self.runner, job.id, step_name.PROCESS_PREFIX)
        except RunError:
            return []

    def query_remaining_steps(self, job: JobEnvironment) -> List[str]:
        return control.query_running_step_ids(self.runner, job.id, step_name.PROCESS_PREFIX)
