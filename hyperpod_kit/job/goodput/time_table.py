"""The time of a job as a table by cause, whose rows add up. Pure.

Goodput is the part of the GPU time that jobs hold in which steps were done that lasted: GPU-seconds of steps that no
later start did again, divided by GPU-seconds from getting the nodes to giving them back. No other definition is used.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Sequence

from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.pieces import TimePiece


@dataclass(frozen=True)
class TimeTable:
    """The time of one or many jobs by cause.

    `seconds`, `gpu_seconds`: by cause, all of the time; `parts`: seconds of start-ups by part; `spells`: how many
    stretches of time each cause had.
    """

    seconds: Dict[TimeCause, float] = field(default_factory=dict)
    gpu_seconds: Dict[TimeCause, float] = field(default_factory=dict)
    parts: Dict[str, float] = field(default_factory=dict)
    spells: Dict[TimeCause, int] = field(default_factory=dict)

    @property
    def total_seconds(self) -> float:
        """The seconds of all causes."""
        return sum(self.seconds.values())

    @property
    def total_gpu_seconds(self) -> float:
        """The GPU-seconds of all causes."""
        return sum(self.gpu_seconds.values())

    @property
    def goodput(self) -> Optional[float]:
        """The goodput, as the module defines it; a lower bound where the cause of some time is unknown.

        None where there is no GPU time, or where no step is known to have lasted and the cause of some time is unknown.
        """
        unattributed_gpu_seconds = self.gpu_seconds.get(TimeCause.UNATTRIBUTED, 0.0)
        lasted = self.gpu_seconds.get(TimeCause.LASTED, 0.0)
        if self.total_gpu_seconds <= 0 or (unattributed_gpu_seconds > 0 and not lasted):
            return None
        return goodput_of(lasted, self.total_gpu_seconds)

    @property
    def unknown_gpu_share(self) -> float:
        """The part of the GPU time whose cause is unknown."""
        if self.total_gpu_seconds <= 0:
            return 0.0
        return self.gpu_seconds.get(TimeCause.UNATTRIBUTED, 0.0) / self.total_gpu_seconds

    def to_dict(self) -> Dict[str, Any]:
        """Return the table as --json shows it."""
        goodput = self.goodput
        if goodput is not None:
            goodput = round(goodput, 4)
        return {
            "goodput": goodput,
            "unknown": round(self.unknown_gpu_share, 4),
            "seconds": {cause.value: round(self.seconds.get(cause, 0.0), 1) for cause in TimeCause},
            "gpu_seconds": {cause.value: round(self.gpu_seconds.get(cause, 0.0), 1) for cause in TimeCause},
            "start_up": {part: round(seconds, 1) for part, seconds in self.parts.items()},
        }


def goodput_of(lasted: float, held_gpu_seconds: float) -> float:
    """Return the goodput, as the module defines it, between 0 and 1."""
    return min(1.0, max(0.0, lasted / held_gpu_seconds))


def table_of(pieces: Iterable[TimePiece]) -> TimeTable:
    """Return the table of pieces in their order, of one job or of many."""
    seconds: Dict[TimeCause, float] = {}
    gpu_seconds: Dict[TimeCause, float] = {}
    parts: Dict[str, float] = {}
    spells: Dict[TimeCause, int] = {}
    before: Optional[TimePiece] = None
    for piece in pieces:
        cause = piece.cause
        seconds[cause] = seconds.get(cause, 0.0) + piece.seconds
        gpu_seconds[cause] = gpu_seconds.get(cause, 0.0) + piece.gpu_seconds
        if piece.part:
            parts[piece.part] = parts.get(piece.part, 0.0) + piece.seconds
        if before is None or before.cause is not cause or before.attempt != piece.attempt:
            spells[cause] = spells.get(cause, 0) + 1
        before = piece
    return TimeTable(seconds, gpu_seconds, parts, spells)


def percents(amounts: Sequence[float], places: int = 1) -> List[float]:
    """Return the percentages of the sum, rounded so that they add up to 100: the largest remainders are rounded up."""
    total = sum(amounts)
    if total <= 0:
        return [0.0 for _ in amounts]
    units = 10**places
    exact = [amount / total * 100 * units for amount in amounts]
    floors = [int(value) for value in exact]
    short = 100 * units - sum(floors)
    order = sorted(range(len(exact)), key=lambda index: exact[index] - floors[index], reverse=True)
    for index in order[:short]:
        floors[index] += 1
    return [value / units for value in floors]
