"""Decide from the ranks' reports of their steps whether a job hangs. Pure: the seconds that passed are given to it.

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
"""The default rule: how many times the slowest of the last steps, and seconds at least."""

PATIENCE: Dict[Phase, float] = {
    Phase.STEP: 1.0,
    Phase.FIRST_STEPS: 24.0,
    Phase.RESTORE: 6.0,
    Phase.SAVE: 6.0,
    Phase.CLOSE: 6.0,
    Phase.EVALUATION: 48.0,
}
"""How many times the floor a phase may be silent; a phase that is not here is not watched. Before a job's first steps
its data are tokenised and its graphs compiled, and an evaluation that it reports may be of a whole benchmark."""

AGAIN, MOST_AGAIN = 6.0, 36.0
"""How many times longer a silence may last where an attempt was ended for one at the same step, so that a job that
evaluates there without a report is ended once; and how many times the floor that makes at most."""

OUTLIVED = 2.0
"""How many times as long as the longest silence that this job has got over is no hang."""

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
"""Ranks that a sentence names at most."""


class StallRule(NamedTuple):
    """When a job counts as hung, in seconds. `floor`: silence of ranks that report steps, at least, 0: never; `factor`:
    and so many times their slowest step, 0: the steps do not count; `unreported`: silence of a program that reports no
    steps, 0: never."""

    factor: float = FACTOR
    floor: float = FLOOR
    unreported: float = 0.0

    @classmethod
    def parse(cls, text: str) -> StallRule:
        """Return the rule of `auto[:FACTOR[:FLOOR]]`, SECONDS, 0 or `never`. Raises UsageError."""
        parts = text.strip().split(":")
        if parts == ["never"]:
            return NEVER
        if parts[0] == "auto" and len(parts) <= 3:
            factor, floor = FACTOR, FLOOR
            if len(parts) > 1:
                factor = _number(text, parts[1])
            if len(parts) > 2:
                floor = _number(text, parts[2])
            if factor < 1 or floor <= 0:
                raise _wrong(text)
            return cls(factor, floor)
        if len(parts) > 1:
            raise _wrong(text)
        seconds = _number(text, parts[0])
        if not seconds:
            return NEVER
        return cls(0.0, seconds, seconds)


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
    """The verdict of one look. `silent`: seconds without progress; `limit`: how many there may be."""

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
        """Return the seconds of silence that are no hang in this phase, `least` where nothing is known."""
        times = self.ended.get(reached, 0)
        again = min(least * AGAIN**times, max(least, floor * MOST_AGAIN))
        return max(again, OUTLIVED * self.outlived.get(phase, 0.0))

    def note_outlived_silence(self, phase: Phase, seconds: float) -> None:
        """Keep the length of a silence that the ranks have got over, where it is the longest in its phase."""
        self.outlived[phase] = max(seconds, self.outlived.get(phase, 0.0))


class HangWatch:
    """Watches one launch of the ranks at a time for a hang. `known_silences`: also those of the launches before; None:
    none are known."""

    def __init__(self, rule: StallRule, known_silences: Optional[KnownSilences] = None) -> None:
        self._rule = rule
        self._known_silences = known_silences if known_silences is not None else KnownSilences()
        self._phase = Phase.START
        self._marks: Marks = ()
        self._silent = 0.0

    def observe(self, elapsed: float, reports: Mapping[int, StepReport]) -> HangVerdict:
        """Return the verdict, `elapsed` seconds after the observation before."""
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
        """Count the silence from now on, as it has another cause, such as storage that is away."""
        self._silent = 0.0

    def restart(self) -> None:
        """Begin with a new launch, as the ranks have been started again."""
        self._marks, self._silent = (), 0.0

    def _limit(self, alive: Sequence[StepReport], reached: Optional[int]) -> Tuple[float, str]:
        """Return the patience for the rank that may take longest, as the others wait for it, and where it is from."""
        if not self._rule.floor:
            return math.inf, ""
        slowest = max(report.slowest for report in alive)
        phase = _longest_phase(alive)
        least, learnt = self._rule.floor * PATIENCE[phase], self._rule.factor * slowest
        known_silence_limit = self._known_silences.limit(phase, reached, least, self._rule.floor)
        if known_silence_limit > max(least, learnt):
            return known_silence_limit, f"limit {known_silence_limit:.0f} s, as long as this job was silent before"
        if learnt > least:
            return learnt, f"limit {learnt:.0f} s, {self._rule.factor:g} times the slowest of {WINDOW} steps"
        if phase is Phase.STEP:
            return least, f"limit {least:g} s"
        return least, f"limit {least:g} s for ranks that are {_PHASE_TEXTS[phase]}"


def _longest_phase(alive: Sequence[StepReport]) -> Phase:
    return max((report.phase for report in alive), key=lambda phase: PATIENCE[phase])


def furthest(reports: Mapping[int, StepReport]) -> Optional[int]:
    """Return the last step that any rank has reached; None while none has reached any."""
    return max((report.step for report in reports.values() if report.step is not None), default=None)


def describe_positions_of_ranks(reports: Mapping[int, StepReport]) -> str:
    """Return a sentence on the step that most ranks had reached, and on those that are behind or in another phase."""
    ranks = [reports[rank] for rank in sorted(reports)]
    (step, phase), count = Counter((report.step, report.phase) for report in ranks).most_common(1)[0]
    behind = [report for report in ranks if (report.step, report.phase) != (step, phase)]
    behind.sort(key=_step_and_rank)
    positions = [f"{_describe_share(count, len(ranks))} {_state(step, phase)}"]
    for report in behind[:_NAMED]:
        positions.append(f"rank {report.rank} on {report.node} {_state(report.step, report.phase)}")
    if len(behind) > _NAMED:
        positions.append(f"and {len(behind) - _NAMED} more")
    return ", ".join(positions)


def _describe_share(count: int, rank_count: int) -> str:
    """Return the subject of a sentence on `count` of all ranks."""
    if rank_count <= 1:
        return "the rank"
    if count == rank_count:
        return f"all of {rank_count} ranks"
    return f"{count} of {rank_count} ranks"


def _state(step: Optional[int], phase: Phase) -> str:
    if step is None:
        return f"at no step {_PHASE_TEXTS[phase]}"
    return f"at step {step} {_PHASE_TEXTS[phase]}"


def _step_and_rank(report: StepReport) -> Tuple[int, int]:
    """Return the key that sorts reports from the rank that is furthest behind; ranks without a step come first."""
    if report.step is None:
        return -1, report.rank
    return report.step, report.rank


def rank_positions_for_report(reports: Mapping[int, StepReport], max_ranks: int = 64) -> List[List[object]]:
    """Return rank, node, step and phase of each rank, of the `max_ranks` furthest behind where there are more."""
    order = sorted(reports.values(), key=_step_and_rank)
    return [[report.rank, report.node, report.step, report.phase.value] for report in order[:max_ranks]]
