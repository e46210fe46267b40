"""Whether a job hangs: from the ranks' reports of their steps to a verdict. Pure; seconds that passed are given to it.

A hang is when the job as a whole does not get on. Ranks that train together all stop where one of them stops, within a
step; ranks that do not wait for each other may differ for ever, and one that is left behind is no hang while others go
on. So the job gets on when any rank's step or phase changes, or a phase itself moves (a restore reads bytes).
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.errors import UsageError
from hyperpod_kit.job.step.step_report import WINDOW, StepReport
from hyperpod_kit.slurm.phase import Phase

FACTOR, FLOOR = 10.0, 300.0
"""By default: times the slowest of the last steps, and seconds at least."""

PATIENCE: Dict[Phase, float] = {
    Phase.STEP: 1.0,
    Phase.FIRST_STEPS: 24.0,
    Phase.RESTORE: 6.0,
    Phase.SAVE: 6.0,
    Phase.CLOSE: 6.0,
    Phase.EVALUATION: 48.0,
}
"""How many times the floor a phase may be silent; a phase that is not here is not watched. Before a job's first steps
its data are tokenised and its graphs compiled, and an evaluation of which it tells may be of a whole benchmark."""

AGAIN, MOST_AGAIN = 6.0, 36.0
"""How many times longer a silence may last where an attempt was ended for one at the same step: a job that evaluates
there, and does not tell, is ended once. And how many times the floor that makes at most."""

OUTLIVED = 2.0
"""How many times the longest silence that this job has got over is no hang."""

_PHASE_TEXTS: Dict[Phase, str] = {
    Phase.STEP: "in a step",
    Phase.FIRST_STEPS: "in its first steps",
    Phase.RESTORE: "restoring",
    Phase.SAVE: "saving",
    Phase.CLOSE: "closing",
    Phase.EVALUATION: "evaluating",
    Phase.OVER: "ended",
    Phase.START: "starting",
}

_MOST_ELAPSED = 5.0
"""Seconds that one look counts for at most: a `job run` that was stopped (`scontrol suspend`) has seen nothing."""

_NAMED = 8
"""Ranks that a sentence names."""


@dataclass(frozen=True)
class StallRule:
    """When a job counts as hung, in seconds. `floor`: silence of ranks that report steps, at least, 0: never; `factor`:
    and so many times their slowest step, 0: that is not asked; `unreported`: silence of a program that reports no
    steps, 0: never."""

    factor: float = FACTOR
    floor: float = FLOOR
    unreported: float = 0.0

    @classmethod
    def parse(cls, text: str) -> StallRule:
        """`auto[:FACTOR[:FLOOR]]`, SECONDS, 0 or `never`. Raises UsageError."""
        parts = text.strip().split(":")
        if parts == ["never"]:
            return NEVER
        if parts[0] == "auto" and len(parts) <= 3:
            factor = _number(text, parts[1]) if len(parts) > 1 else FACTOR
            floor = _number(text, parts[2]) if len(parts) > 2 else FLOOR
            if factor < 1 or floor <= 0:
                raise _wrong(text)
            return cls(factor, floor)
        if len(parts) > 1:
            raise _wrong(text)
        seconds = _number(text, parts[0])
        return cls(0.0, seconds, seconds) if seconds else NEVER


NEVER = StallRule(0.0, 0.0, 0.0)


def _number(text: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise _wrong(text) from None
    if not math.isfinite(value) or value < 0:
        raise _wrong(text)
    return value


def _wrong(text: str) -> UsageError:
    return UsageError(
        f"--stall is {text!r}, expected auto, auto:FACTOR, auto:FACTOR:SECONDS (FACTOR 1 or more), SECONDS or never",
        hint="--stall auto:10:300 is the default",
    )


class Watched(enum.Enum):
    """What is known of the job. UNREPORTED: no rank reports steps, or none does any more."""

    UNREPORTED = "unreported"
    MOVES = "moves"
    SILENT = "silent"
    HANGS = "hangs"


class HangVerdict(NamedTuple):
    """`silent`: seconds without progress, `limit`: how many there may be."""

    watched: Watched
    silent: float = 0.0
    limit: float = 0.0
    reason: str = ""


Marks = Tuple[Tuple[int, Optional[int], Phase, int], ...]


@dataclass
class KnownSilences:
    """What is known of this job's silences. `ended`: the step that the ranks had reached -> how many attempts were
    ended there for one; `outlived`: phase -> seconds of the longest one that the ranks got over by themselves."""

    ended: Mapping[Optional[int], int] = field(default_factory=dict)
    outlived: Dict[Phase, float] = field(default_factory=dict)

    def limit(self, phase: Phase, reached: Optional[int], least: float, floor: float) -> float:
        """Seconds of silence that are no hang in this phase, `least` where nothing is known."""
        times = self.ended.get(reached, 0)
        again = min(least * AGAIN**times, max(least, floor * MOST_AGAIN))
        return max(again, OUTLIVED * self.outlived.get(phase, 0.0))

    def note_outlived_silence(self, phase: Phase, seconds: float) -> None:
        """The ranks have got over a silence."""
        self.outlived[phase] = max(seconds, self.outlived.get(phase, 0.0))


class HangWatch:
    """One launch of the ranks at a time. `known_silences`: of the launches before, too; None: nothing."""

    def __init__(self, rule: StallRule, known_silences: Optional[KnownSilences] = None) -> None:
        self._rule = rule
        self._known_silences = known_silences if known_silences is not None else KnownSilences()
        self._phase = Phase.START
        self._marks: Marks = ()
        self._silent = 0.0

    def observe(self, elapsed: float, reports: Mapping[int, StepReport]) -> HangVerdict:
        """The verdict, `elapsed` seconds after the observation before."""
        alive = [report for report in reports.values() if report.phase in PATIENCE]
        if not alive:
            self._marks, self._silent = (), 0.0
            return HangVerdict(Watched.UNREPORTED)
        limit, reason = self._limit(alive, furthest(reports))
        alive.sort(key=lambda report: report.rank)
        marks = tuple((report.rank, report.step, report.phase, report.moved) for report in alive)
        phase = _longest_phase(alive)
        if marks != self._marks:
            if self._marks:
                self._known_silences.note_outlived_silence(self._phase, self._silent)
            self._marks, self._silent, self._phase = marks, 0.0, phase
            return HangVerdict(Watched.MOVES, 0.0, limit)
        self._silent += min(elapsed, _MOST_ELAPSED, limit / 4)
        if self._silent < limit:
            return HangVerdict(Watched.SILENT, self._silent, limit)
        return HangVerdict(Watched.HANGS, self._silent, limit, f"{reason}; {describe_positions_of_ranks(reports)}")

    def reset_silence(self) -> None:
        """The silence has another cause, such as storage that is away."""
        self._silent = 0.0

    def restart(self) -> None:
        """The ranks have been started again."""
        self._marks, self._silent = (), 0.0

    def _limit(self, alive: Sequence[StepReport], reached: Optional[int]) -> Tuple[float, str]:
        """The patience for the rank that may take longest, since the others wait for it; and where it is from."""
        if not self._rule.floor:
            return math.inf, ""
        slowest = max(report.slowest for report in alive)
        phase = _longest_phase(alive)
        least, learnt = self._rule.floor * PATIENCE[phase], self._rule.factor * slowest
        known_silence_limit = self._known_silences.limit(phase, reached, least, self._rule.floor)
        if known_silence_limit > max(least, learnt):
            return known_silence_limit, f"limit {known_silence_limit:.0f} s, as this job was silent before"
        if learnt > least:
            return learnt, f"limit {learnt:.0f} s, {self._rule.factor:g} times the slowest of {WINDOW} steps"
        return least, f"limit {least:g} s{'' if phase is Phase.STEP else f' for ranks that are {_PHASE_TEXTS[phase]}'}"


def _longest_phase(alive: Sequence[StepReport]) -> Phase:
    return max((report.phase for report in alive), key=lambda phase: PATIENCE[phase])


def furthest(reports: Mapping[int, StepReport]) -> Optional[int]:
    """The last step that any rank has reached."""
    return max((report.step for report in reports.values() if report.step is not None), default=None)


def describe_positions_of_ranks(reports: Mapping[int, StepReport]) -> str:
    """The step that each rank had reached, and who is behind or in another phase."""
    ranks = [reports[rank] for rank in sorted(reports)]
    (step, phase), count = Counter((report.step, report.phase) for report in ranks).most_common(1)[0]
    most = f"{'all' if count == len(ranks) else count} of {len(ranks)} ranks" if len(ranks) > 1 else "the rank"
    behind = [report for report in ranks if (report.step, report.phase) != (step, phase)]
    behind.sort(key=lambda report: (-1 if report.step is None else report.step, report.rank))
    named = [f"rank {report.rank} on {report.node} {_state(report.step, report.phase)}" for report in behind[:_NAMED]]
    more = [f"and {len(behind) - _NAMED} more"] if len(behind) > _NAMED else []
    return ", ".join([f"{most} {_state(step, phase)}", *named, *more])


def _state(step: Optional[int], phase: Phase) -> str:
    return f"at {'no step' if step is None else f'step {step}'} {_PHASE_TEXTS[phase]}"


def rank_positions_for_report(reports: Mapping[int, StepReport], max_ranks: int = 64) -> List[List[object]]:
    """For the report of `job run`: rank, node, step and phase, of those furthest behind where there are many."""
    order = sorted(reports.values(), key=lambda report: (-1 if report.step is None else report.step, report.rank))
    return [[report.rank, report.node, report.step, report.phase.value] for report in order[:max_ranks]]
