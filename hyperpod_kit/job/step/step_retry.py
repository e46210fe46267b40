"""Wait for HyperPod while it works under a running srun: it replaces nodes, which takes 20 to 30 minutes, and starts
the same ranks again.

Where something is wrong with a launch, its step is ended, and never srun: then HyperPod checks the nodes, and retries
the step or lets srun end. While HyperPod works, a node that does not answer and a job that does not move are what a
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
"""Seconds after the end of a step within which HyperPod must have printed that it checks the nodes, where its log can
be read; for half a minute of them Slurm waits for ranks that do not end."""

_EACH = 5.0
"""Seconds between two queries to slurmctld."""

Note = Callable[..., None]
"""Records a line that HyperPod has printed: note(words=…)."""


class RetryAnswer(Enum):
    """What to do about a trouble under HyperPod's retry. WAIT: HyperPod works on it, or its step was just ended.
    LAUNCHED: the ranks were started again, and get the time that a start gets. END: HyperPod will not repair it, so
    srun is to be ended."""

    WAIT = "wait"
    LAUNCHED = "launched"
    END = "end"


class StepRetry:
    """HyperPod's step retry under one srun. `ended`: whether it was we who ended the step that ran last."""

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
        """Record what HyperPod has printed since the last call, and return how often it has started the ranks again."""
        news: List[str] = self._log.news()
        for line in news:
            self._note(words=line)
        if any(NODE_CHECK in line for line in news):
            self._is_node_check_started = True
            if not self._without_since:
                self._without_since = self._clock()
        relaunches = sum(RETRIED in line for line in news)
        if relaunches:
            self._begin_anew()
        return relaunches

    @property
    def can_hear_relaunches(self) -> bool:
        """Whether HyperPod's lines can be read, so that its relaunches are noticed at all."""
        return self._log.readable

    def close(self) -> None:
        """Close HyperPod's log."""
        self._log.close()

    def _begin_anew(self) -> None:
        self.ended, self._without_since, self._is_node_check_started = False, None, False

    def end_step_or_wait_for_retry(self, reason: str, nodes: Sequence[str] = ()) -> RetryAnswer:
        """Return what to do about a trouble, whose step is ended first where HyperPod is to check the nodes.

        `reason`: what is wrong; `nodes`: where, the whole job when none is named.
        """
        now = self._clock()
        if now < self._next:
            return RetryAnswer.WAIT
        self._next = now + _EACH
        if self._is_node_check_started:
            return self._wait_or_end(now, REPLACEMENT)
        try:
            running = (
                set(control.query_running_step_ids(self._runner, self._job_id, step_name.PROCESS_PREFIX)) - self._killed
            )
            if not running:
                limit = UNHEARD if self._log.readable else REPLACEMENT
                return self._wait_or_end(now, limit)
            if self._without_since is not None:
                self._begin_anew()
                return RetryAnswer.LAUNCHED
            self._report(
                "intervene",
                f"{reason}: ending the step, so that HyperPod checks its nodes",
                lost=list(nodes),
                step=True,
            )
            self._killed |= set(control.kill_steps(self._runner, self._job_id, step_name.PROCESS_PREFIX))
        except RunError:
            return RetryAnswer.WAIT  # a slurmctld that is away could replace nothing either
        self.ended, self._without_since = True, now
        return RetryAnswer.WAIT

    def _wait_or_end(self, now: float, limit: float) -> RetryAnswer:
        """Return WAIT for `limit` seconds in which no step runs, END after them."""
        if self._seconds_without_step(now) <= limit:
            return RetryAnswer.WAIT
        return RetryAnswer.END

    def _seconds_without_step(self, now: float) -> float:
        if self._without_since is None:
            self._without_since = now
        return now - self._without_since
