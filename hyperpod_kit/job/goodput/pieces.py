"""Consecutive pieces of a job's time, each with its cause. Pure.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Sequence, Tuple

from hyperpod_kit.job.goodput.cause import TimeCause


class TimePiece(NamedTuple):
    """The time from `start` to `end`, Unix seconds, with its cause.

    `part`: of a cause that has parts; `gpus`: how many the job held then; `attempt`: which attempt it belongs to, ""
    between two; `nodes`: where that attempt ran.
    """

    start: float
    end: float
    cause: TimeCause
    part: str = ""
    gpus: int = 0
    attempt: str = ""
    nodes: Tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The length of the piece."""
        return self.end - self.start

    @property
    def gpu_seconds(self) -> float:
        """The length of the piece times the GPUs that the job held."""
        return self.seconds * self.gpus


class PieceRow:
    """A row of pieces, to which pieces are appended in their order.

    None begins before the one before it has ended, whatever the clocks of two machines say, and none ends after
    `limit`: so they always add up to the time that they cover.
    """

    def __init__(self, start: float, limit: float) -> None:
        self.end, self._limit = start, limit
        self.pieces: List[TimePiece] = []

    def append_piece_until(self, end: float, cause: TimeCause, part: str = "") -> None:
        """Append a piece from the end of the last one to `end`; nothing where that is not later."""
        end = min(end, self._limit)
        if end > self.end:
            self.pieces.append(TimePiece(self.end, end, cause, part))
            self.end = end

    def append_pieces_in_proportion_until(self, end: float, durations: Iterable[Tuple[TimeCause, str, float]]) -> None:
        """Append a piece for each duration above 0, which share the time up to `end` in proportion."""
        present = [(cause, part, seconds) for cause, part, seconds in durations if seconds > 0]
        total_seconds, start = sum(seconds for _, _, seconds in present), self.end
        passed = 0.0
        for cause, part, seconds in present:
            passed += seconds
            self.append_piece_until(start + (end - start) * passed / total_seconds, cause, part)

    def add(self, pieces: Iterable[TimePiece]) -> None:
        """Append further pieces, each from the end of the last one; a piece that ends no later is left out."""
        for piece in pieces:
            if piece.end > self.end:
                self.pieces.append(piece._replace(start=self.end))
                self.end = piece.end


def within(pieces: Sequence[TimePiece], since: float, until: float) -> List[TimePiece]:
    """Return the pieces in a window, cut at its ends."""
    cut = [piece._replace(start=max(piece.start, since), end=min(piece.end, until)) for piece in pieces]
    return [piece for piece in cut if piece.end > piece.start]
