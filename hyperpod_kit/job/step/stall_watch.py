"""Find out whether a step hangs: by the steps that its ranks report, and where they report none by its output."""

from __future__ import annotations

import time
from typing import Callable, Dict, Mapping, Optional

from hyperpod_kit.job.step.hang import (
    HangVerdict,
    HangWatch,
    KnownSilences,
    StallRule,
    Watched,
    rank_positions_for_report,
)
from hyperpod_kit.job.step.step_report import StepReport
from hyperpod_kit.job.step.watch import OutputWatch

_CHECK_INTERVAL = 1.0
"""Seconds between two looks at most."""


class StallWatch:
    """Watches one step for a hang. `serves`: whether the checkpoint root answers here, which takes seconds where it
    does not; called only before a verdict. Storage that is away keeps ranks waiting, and that is no hang.
    `known_silences`: see HangWatch."""

    def __init__(
        self,
        rule: StallRule,
        root: str,
        serves: Callable[[], bool],
        fd: int = 1,
        *,
        known_silences: Optional[KnownSilences] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rule, self._serves, self._clock = rule, serves, clock
        self._steps = HangWatch(rule, known_silences)
        self._output = OutputWatch(rule.unreported, root, fd, clock=clock)
        self._last_check = clock()
        self._verdict = HangVerdict(Watched.UNREPORTED)

    def reason_to_end_step_or_empty(self, reports: Mapping[int, StepReport]) -> str:
        """Look at the step, and return why it is to be ended; "" while it is not."""
        now = self._clock()
        elapsed, self._last_check = now - self._last_check, now
        before, self._verdict = self._verdict, self._steps.observe(elapsed, reports)
        verdict = self._verdict
        if verdict.watched is Watched.UNREPORTED:
            if before.watched is not Watched.UNREPORTED:
                self._output.restart()
            if not self._output.stalled():
                return ""
            return f"no progress for {self._output.limit:g} s"
        if verdict.watched is not Watched.HANGS:
            return ""
        if not self._serves():
            self._steps.reset_silence()
            return ""
        return f"no step for {verdict.silent:.0f} s ({verdict.reason})"

    @property
    def seconds_without_progress(self) -> float:
        """Seconds since the ranks' last progress, as far as they report it."""
        return self._verdict.silent

    def fields(self, reports: Mapping[int, StepReport]) -> Dict[str, object]:
        """Return the fields for the report of a hang; none where the ranks report no steps."""
        if self._verdict.watched is Watched.UNREPORTED:
            return {}
        return {
            "silent": round(self._verdict.silent, 1),
            "limit": round(self._verdict.limit, 1),
            "ranks": rank_positions_for_report(reports),
        }

    def restart(self) -> None:
        """Begin anew, as the ranks have been started again."""
        self._steps.restart()
        self._output.restart()
        self._last_check = self._clock()

    @property
    def seconds_until_next_look(self) -> Optional[float]:
        """Seconds until the next look; None where nothing is watched."""
        limits = [limit for limit in (self._rule.floor, self._rule.unreported) if limit]
        if not limits:
            return None
        return min([_CHECK_INTERVAL, *(limit / 4 for limit in limits)])
