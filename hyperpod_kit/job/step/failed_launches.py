"""What several launches of a run say together: one that no node can ever do is told from one that may do next time.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence, Set

from hyperpod_kit.job.base.launch_failure import advice
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.decide.outcome import Outcome
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind


class FailedLaunches:
    """Those of one run of the batch script. `advice`: what to type; `hopeless`: why not to launch again, or ""."""

    def __init__(self, report: JobReport) -> None:
        self._report = report
        self._nodes: Set[str] = set()
        self.advice = ""
        self.hopeless = ""

    def update_advice_and_hopelessness(self, outcome: Outcome, used_nodes: Sequence[str]) -> None:
        """After each attempt; `used`: its nodes. What to do is said once for each cause."""
        if outcome.kind is not OutcomeKind.LAUNCH_FAILED:
            self._nodes.clear()
            self.advice = self.hopeless = ""
            return
        launch_advice = advice(outcome.launch_failures, outcome.code)
        if launch_advice != self.advice:
            self.advice = launch_advice
            self._report("launch_failed", f"no checkpoint is at fault: {launch_advice}", nodes=list(outcome.unlaunched))
        self._nodes.update(outcome.unlaunched)
        everywhere = bool(used_nodes) and self._nodes.issuperset(used_nodes)
        self.hopeless = "it is so on every node" if everywhere else ""
