"""HyperPod at work under a running srun: it exchanges nodes for 20 to 30 minutes, and starts the same ranks again.

What is wrong with a launch is told to HyperPod by ending its step, never srun: then it looks at the nodes, and retries
the step or lets srun end. While it is at work, a node that does not answer and a job that does not move are what a
replacement looks like, and are waited for.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Callable, List, Optional, Sequence, Set

from hyperpod_kit.errors import RunError
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.step import step_name
from hyperpod_kit.job.step.step_retry_log import NODE_CHECK, RETRIED, RetryLog
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.job_id import JobId

REPLACEMENT = 3600.0
"""Seconds that HyperPod gets to start the step again: a replacement takes 20 to 30 minutes, and may fail once."""

UNHEARD = 90.0
"""Seconds after the end of a step in which HyperPod must have said that it looks at the nodes, where we can read what
it says; Slurm waits half a minute of them for ranks that do not end."""

_EACH = 5.0
"""Seconds between two questions to slurmctld."""

Note = Callable[..., None]
"""Puts a line of HyperPod's down: note(words=…)."""


class RetryAnswer(Enum):
    """WAIT: HyperPod has it in hand, or was just told. LAUNCHED: the ranks were started again, and get the time that a
    start gets. END: HyperPod will not mend it, so srun is to be ended."""

    WAIT = "wait"
    LAUNCHED = "launched"
    END = "end"


class StepRetry:
    """One srun's. `ended`: whether it was we who ended the step that ran last."""

    def __init__(
        self,
        runner: Runner,
        job_id: JobId,
        report: JobReport,
        log: RetryLog,
        note: Note,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._job_id = job_id
        self._report = report
        self._log = log
        self._note = note
        self._clock = clock
        self._next = clock()
        self._killed: Set[str] = set()
        self._without_since: Optional[float] = None
        self._is_node_check_started = False
        self.ended = False

    def record_messages_and_count_relaunches(self) -> int:
        """Read what HyperPod has said, and put it down; how often it has started the ranks again since the last
        call."""
        news: List[str] = self._log.news()
        for line in news:
            self._note(words=line)
        if any(NODE_CHECK in line for line in news):
            self._is_node_check_started = True
            self._without_since = self._without_since or self._clock()
        again = sum(RETRIED in line for line in news)
        if again:
            self._begin_anew()
        return again

    @property
    def can_hear_relaunches(self) -> bool:
        """Whether `listen` can hear of a launch at all."""
        return self._log.readable

    def close(self) -> None:
        self._log.close()

    def _begin_anew(self) -> None:
        self.ended, self._without_since, self._is_node_check_started = False, None, False

    def end_step_or_wait_for_retry(self, reason: str, nodes: Sequence[str] = ()) -> RetryAnswer:
        """What to do about something that is wrong: `why`, on `nodes` (none named: the whole job)."""
        now = self._clock()
        if now < self._next:
            return RetryAnswer.WAIT
        self._next = now + _EACH
        if self._is_node_check_started:
            return RetryAnswer.WAIT if self._seconds_without_step(now) <= REPLACEMENT else RetryAnswer.END
        try:
            running = (
                set(control.query_running_step_ids(self._runner, self._job_id, step_name.PROCESS_PREFIX)) - self._killed
            )
            if not running:
                limit = UNHEARD if self._log.readable else REPLACEMENT
                return RetryAnswer.WAIT if self._seconds_without_step(now) <= limit else RetryAnswer.END
            if self._without_since is not None:
                self._begin_anew()
                return RetryAnswer.LAUNCHED
            self._report(
                "intervene",
                f"{reason}: ending the step, so that HyperPod looks at its nodes",
                lost=list(nodes),
                step=True,
            )
            self._killed |= set(control.kill_steps(self._runner, self._job_id, step_name.PROCESS_PREFIX))
        except RunError:
            return RetryAnswer.WAIT  # a slurmctld that is away could replace nothing either
        self.ended, self._without_since = True, now
        return RetryAnswer.WAIT

    def _seconds_without_step(self, now: float) -> float:
        if self._without_since is None:
            self._without_since = now
        return now - self._without_since
