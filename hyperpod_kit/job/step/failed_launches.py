"""Tell a launch that no node can ever do from one that may succeed the next time, by all failed launches of a run.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence, Set

from hyperpod_kit.job.base.launch_failure import advice
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.decide.outcome import Outcome
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind


class FailedLaunches:
    """The failed launches of one run of the batch script. `advice`: what to type; `hopeless`: why not to launch
    again, or ""."""

    def __init__(self, report: JobReport, *, by_srun: bool) -> None:
        self._report = report
        self._by_srun = by_srun
        self._nodes: Set[str] = set()
        self.advice = ""
        self.hopeless = ""

    def update_advice_and_hopelessness(self, outcome: Outcome, used_nodes: Sequence[str]) -> None:
        """Take in the outcome of an attempt, after each of them, and report the advice, once for each cause.

        `used_nodes`: the nodes of the attempt.
        """
        if outcome.kind is not OutcomeKind.LAUNCH_FAILED:
            self._nodes.clear()
            self.advice = self.hopeless = ""
            return
        launch_advice = advice(outcome.launch_failures, outcome.code, by_srun=self._by_srun)
        if launch_advice != self.advice:
            self.advice = launch_advice
            self._report("launch_failed", f"no checkpoint is at fault: {launch_advice}", nodes=list(outcome.unlaunched))
        self._nodes.update(outcome.unlaunched)
        if used_nodes and self._nodes.issuperset(used_nodes):
            self.hopeless = "every node has the same problem"
        else:
            self.hopeless = ""
