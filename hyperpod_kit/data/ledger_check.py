"""Whether every sample was received exactly once an epoch: the ledger of all ranks and launches, read and judged.

A launch that starts from a checkpoint goes back to the position in it: what earlier launches received from there on was
rolled back with the weights, and counts for nothing.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hyperpod_kit.data.ledger import FORMAT
from hyperpod_kit.data.position import Course, DataStep, Last
from hyperpod_kit.errors import DataError, NoData
from hyperpod_kit.untrusted import parse


@dataclass
class LedgerSegment:
    """What all ranks received from one jump of the position to the next. `steps`: begin -> (step, rank -> samples)."""

    ranks: int
    begin: int
    begun_ns: int
    steps: dict[int, tuple[DataStep, dict[int, list[int]]]] = field(default_factory=dict)
    bad: dict[int, set[int]] = field(default_factory=dict)
    """Begin of a step -> samples in it that are bad records and were passed over."""


@dataclass(frozen=True)
class EpochReport:
    """One epoch: how many samples were received once, which never, which more than once."""

    epoch: int
    once: int
    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    complete: bool
    """The position went past its end."""
    left_out: int
    """Of the missing: what did not fill a step, with last="drop"."""

    @property
    def good(self) -> bool:
        """Exactly once: nothing twice, and nothing missing in an epoch that is over."""
        return not self.repeated and (not self.complete or len(self.missing) <= self.left_out)


@dataclass(frozen=True)
class LedgerReport:
    """All epochs, launches, steps that a later launch did again, and what is odd in the ledger itself."""

    samples: int
    launches: int
    steps: int
    rolled_back: int
    epochs: tuple[EpochReport, ...]
    problems: tuple[str, ...]
    passed_over: tuple[int, ...] = ()
    """Samples that are bad records: others came in their places."""

    @property
    def good(self) -> bool:
        """Every sample exactly once in every epoch that is over, and none twice in the one that is not."""
        return not self.problems and all(one.good for one in self.epochs)


def check(folder: str | os.PathLike[str]) -> LedgerReport:
    """Read a ledger. Raises DataError when there is none, or it is of several orders of data."""
    segments: dict[tuple[str, int], LedgerSegment] = {}
    meant: set[tuple[str, str, int, str]] = set()
    problems: list[str] = []
    for path in sorted(Path(folder).glob("*.jsonl")) if os.path.isdir(folder) else ():
        _read(path, segments, meant, problems)
    if not segments:
        raise NoData(f"there is no ledger in {folder}", hint="ElasticLoader(dataset, ledger=DIR) writes one")
    if len(meant) > 1:
        raise DataError(f"{folder} is of several data sets or orders: {sorted(meant)}", hint="a directory for each run")
    (_, words, samples, last) = next(iter(meant))
    mix, windows = "('order', 'mix')" in words, "('window', " in words
    course = Course(samples, Last(last))
    ordered = sorted(segments.values(), key=lambda one: one.begun_ns)
    counts: dict[int, Any] = defaultdict(lambda: np.zeros(samples, np.int32))
    left_out: dict[int, int] = defaultdict(int)
    passed_over: set[int] = set()
    rolled_back, kept, end = 0, 0, 0
    for number, segment in enumerate(ordered):
        limit = min((later.begin for later in ordered[number + 1 :]), default=None)
        for begin, (step, of_rank) in sorted(segment.steps.items()):
            if limit is not None and begin >= limit:
                rolled_back += 1
                continue
            kept += 1
            passed_over |= segment.bad.get(begin, set())
            very_last = number == len(ordered) - 1 and begin == max(segment.steps)
            if sorted(of_rank) != list(range(segment.ranks)) and not very_last:  # that one may have been cut
                absent = sorted(set(range(segment.ranks)) - set(of_rank))
                problems.append(f"the step at {begin}: no line of ranks {absent[:8]}")
            end = max(end, begin + step.real)
            after = begin + step.real
            if course.last is Last.DROP and after % samples and samples - after % samples < step.real:
                left_out[after // samples] = samples - after % samples
                end = max(end, (after // samples + 1) * samples)
            for rank, received in of_rank.items():
                places = course.places(step, rank, segment.ranks)
                real = len(received) - course.fillers(step, rank, segment.ranks)
                if len(places) != len(received):
                    problems.append(f"the step at {begin}: rank {rank} has {len(received)} samples, not {len(places)}")
                    continue
                for epoch in np.unique(places[:real] // samples).tolist():
                    here = places[:real] // samples == epoch
                    # Windows are numbered from the first epoch on; in a mix each place comes once, not each sample.
                    mine = places[:real][here] if mix else np.array(received[:real])[here]
                    if windows and (mine // samples != epoch).any():
                        problems.append(f"the step at {begin}: rank {rank} has windows of another epoch than {epoch}")
                    np.add.at(counts[epoch], mine % samples, 1)
    reports = tuple(
        EpochReport(
            epoch,
            int((found == 1).sum()),
            tuple(np.flatnonzero(found == 0)[:1000].tolist()) if end >= (epoch + 1) * samples else (),
            tuple(np.flatnonzero(found > 1)[:1000].tolist()),
            end >= (epoch + 1) * samples,
            left_out[epoch],
        )
        for epoch, found in sorted(counts.items())
    )
    launches = len({name for name, _ in segments})
    return LedgerReport(samples, launches, kept, rolled_back, reports, tuple(problems), tuple(sorted(passed_over)))


def _read(
    path: Path,
    segments: dict[tuple[str, int], LedgerSegment],
    meant: set[tuple[str, str, int, str]],
    problems: list[str],
) -> None:
    """One rank's file of one launch."""
    segment: LedgerSegment | None = None
    rank = 0
    lines = path.read_bytes().split(b"\n")
    for number, text in enumerate(lines):
        if not text:
            continue
        try:
            line = parse.json_object(text)
        except ValueError as err:
            if number < len(lines) - 1:
                problems.append(f"{path.name}, line {number + 1}: {err}")
            continue
        if "ledger" in line:
            if line["ledger"] != FORMAT:
                raise DataError(f"{path} is of format {line['ledger']!r}, expected {FORMAT!r}")
            order = {
                name: value
                for name, value in line.items()
                if name not in ("ledger", "launch", "rank", "ranks", "segment", "begin", "begun_ns")
            }
            meant.add((str(line["data"]), str(sorted(order.items())), int(line["samples"]), str(line["last"])))
            key = (str(line["launch"]), int(line["segment"]))
            rank = int(line["rank"])
            segment = segments.setdefault(
                key, LedgerSegment(int(line["ranks"]), int(line["begin"]), int(line["begun_ns"]))
            )
            segment.begun_ns = min(segment.begun_ns, int(line["begun_ns"]))
            if (segment.ranks, segment.begin) != (int(line["ranks"]), int(line["begin"])):
                problems.append(f"{path.name}: ranks of one launch begin at {segment.begin} and {line['begin']}")
        elif segment is not None:
            step = DataStep(int(line["p"]), int(line["n"]), int(line["f"]), 0)
            _, of_rank = segment.steps.setdefault(step.begin, (step, {}))
            if rank in of_rank:
                problems.append(f"{path.name}: rank {rank} has the step at {step.begin} twice in one launch")
            of_rank[rank] = [int(one) for one in line["i"]]
            segment.bad.setdefault(step.begin, set()).update(int(one) for one in line.get("b", ()))
