"""Whether every sample was received exactly once an epoch: the ledger of all ranks and launches, read and judged.

A launch that starts from a checkpoint goes back to the position in it: what earlier launches received from there on was
rolled back with the weights, and counts for nothing.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hyperpod_kit.data.loading.position import Course, DataStep, Last
from hyperpod_kit.data.loading.sample_log import FORMAT
from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.reading.local_file import open_regular
from hyperpod_kit.errors import DataError, NoData
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import clean_one_line, counted

_MAX_NAMED = 1000
"""Samples that a report names, of each kind."""
_MAX_COUNT = 1 << 60
"""Of all that is counted here: sums of a few of these are still numbers of numpy's."""


@dataclass
class SampleLogSegment:
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
    def is_exactly_once(self) -> bool:
        """Exactly once: nothing twice, and nothing missing in an epoch that is over."""
        return not self.repeated and (not self.complete or len(self.missing) <= self.left_out)


@dataclass(frozen=True)
class SampleLogReport:
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
    def is_exactly_once(self) -> bool:
        """Every sample exactly once in every epoch that is over, and none twice in the one that is not."""
        return not self.problems and all(epoch.is_exactly_once for epoch in self.epochs)


def check_sample_log(folder: str | os.PathLike[str]) -> SampleLogReport:
    """Read a ledger and report on each epoch. Raises NoData without one, DataError for several orders of data."""
    segments: dict[tuple[str, int], SampleLogSegment] = {}
    data_and_orders: set[tuple[str, str, int, str]] = set()
    problems: list[str] = []
    _read_log_directory(folder, segments, data_and_orders, problems)
    if not segments:
        raise NoData(f"{folder} has no ledger", hint="ElasticLoader(dataset, ledger=DIR) writes one")
    course, order_text = _require_single_course(os.fspath(folder), data_and_orders)
    samples = course.samples
    mix, windows = "('order', 'mix')" in order_text, "('window', " in order_text
    ordered = sorted(segments.values(), key=lambda started: started.begun_ns)
    received_in: dict[int, list[Any]] = defaultdict(list)
    """Epoch -> what was received in it: as much room as the ledger's own lines, whatever these say of the data."""
    left_out: dict[int, int] = defaultdict(int)
    passed_over: set[int] = set()
    rolled_back, kept, end = 0, 0, 0
    limits = list(itertools.accumulate((segment.begin for segment in reversed(ordered)), min))[::-1]
    for number, segment in enumerate(ordered):
        limit = limits[number + 1] if number + 1 < len(limits) else None
        latest = max(segment.steps, default=None)
        for begin, (step, of_rank) in sorted(segment.steps.items()):
            if limit is not None and begin >= limit:
                rolled_back += 1
                continue
            kept += 1
            passed_over |= segment.bad.get(begin, set())
            very_last = number == len(ordered) - 1 and begin == latest
            absent = list(itertools.islice((rank for rank in range(segment.ranks) if rank not in of_rank), 8))
            if (absent or len(of_rank) != segment.ranks) and not very_last:  # that one may have been cut
                problems.append(f"the step at {begin}: no line of ranks {absent}")
            end = max(end, begin + step.real)
            after = begin + step.real
            if course.last is Last.DROP and after % samples and samples - after % samples < step.real:
                left_out[after // samples] = samples - after % samples
                end = max(end, (after // samples + 1) * samples)
            for rank, received in of_rank.items():
                expected = _count_samples_of_rank(step, rank, segment.ranks)
                if expected != len(received):
                    problems.append(
                        f"the step at {begin}: rank {rank} has {counted(len(received), 'sample')}, not {expected}"
                    )
                    continue
                places = course.positions_of_rank(step, rank, segment.ranks)
                real = len(received) - course.count_fillers_of_rank(step, rank, segment.ranks)
                for epoch in np.unique(places[:real] // samples).tolist():
                    here = places[:real] // samples == epoch
                    # Windows are numbered from the first epoch on; in a mix each place comes once, not each sample.
                    samples_of_epoch = np.array(received[:real])[here]
                    if mix:
                        samples_of_epoch = places[:real][here]
                    if windows and (samples_of_epoch // samples != epoch).any():
                        problems.append(f"the step at {begin}: rank {rank} has windows of another epoch than {epoch}")
                    received_in[epoch].append(samples_of_epoch % samples)
    reports = tuple(
        _report_epoch(epoch, np.concatenate(samples_of_epoch), samples, end >= (epoch + 1) * samples, left_out[epoch])
        for epoch, samples_of_epoch in sorted(received_in.items())
    )
    launches = len({name for name, _ in segments})
    return SampleLogReport(samples, launches, kept, rolled_back, reports, tuple(problems), tuple(sorted(passed_over)))


def _require_single_course(folder: str, data_and_orders: set[tuple[str, str, int, str]]) -> tuple[Course, str]:
    """Return the course through the data and the text of its order. Raises DataError if there are several."""
    if len(data_and_orders) > 1:
        orders = clean_one_line(sorted(data_and_orders), 1000)
        raise DataError(
            f"{folder} is of several data sets or orders: {orders}", hint="use a separate directory for each run"
        )
    (_, order_text, samples, last) = next(iter(data_and_orders))
    if not 1 <= samples < _MAX_COUNT or last not in [each.value for each in Last]:
        raise DataError(f"{folder} is of {samples} samples, the last of which are {clean_one_line(last)}")
    return Course(samples, Last(last)), order_text


def _count_samples_of_rank(step: DataStep, rank: int, ranks: int) -> int:
    """Count the samples that a rank takes of a step, which are counted before they are listed; 0 of a step that is
    none."""
    counts = (rank, step.begin, step.real, step.fillers, ranks)
    if rank >= ranks or not all(0 <= count < _MAX_COUNT for count in counts):
        return 0
    return len(range(rank, step.real + step.fillers, ranks))


def _report_epoch(epoch: int, received: Numbers, samples: int, complete: bool, left_out: int) -> EpochReport:
    """Report on what was received in an epoch, in any order."""
    received_once, counts = np.unique(received, return_counts=True)
    missing: list[int] = []
    if complete:
        edges = np.concatenate([[-1], received_once, [samples]])
        for gap in np.flatnonzero(np.diff(edges) > 1).tolist():
            missing += range(int(edges[gap]) + 1, min(int(edges[gap + 1]), int(edges[gap]) + 1 + _MAX_NAMED))
            if len(missing) >= _MAX_NAMED:
                break
    repeated = received_once[counts > 1][:_MAX_NAMED].tolist()
    return EpochReport(
        epoch, int((counts == 1).sum()), tuple(missing[:_MAX_NAMED]), tuple(repeated), complete, left_out
    )


def _read_log_directory(
    folder: str | os.PathLike[str],
    segments: dict[tuple[str, int], SampleLogSegment],
    data_and_orders: set[tuple[str, str, int, str]],
    problems: list[str],
) -> None:
    """Read every rank's file of every launch."""
    if not os.path.isdir(folder):
        return
    for path in sorted(Path(folder).glob("*.jsonl")):
        _read_rank_log(path, segments, data_and_orders, problems)


def _read_rank_log(
    path: Path,
    segments: dict[tuple[str, int], SampleLogSegment],
    data_and_orders: set[tuple[str, str, int, str]],
    problems: list[str],
) -> None:
    """Read one rank's file of one launch."""
    segment: SampleLogSegment | None = None
    rank = 0
    for number, text in enumerate(_iterate_bounded_lines(path), start=1):
        try:
            line = parse.parse_json_object(text)
            if "ledger" not in line:
                if segment is not None:
                    _add_step(segment, rank, line, path, problems)
                continue
            if line["ledger"] != FORMAT:
                raise DataError(f"{path} is of format {clean_one_line(line['ledger'])}, expected {FORMAT!r}")
            order = {
                name: value
                for name, value in line.items()
                if name not in ("ledger", "launch", "rank", "ranks", "segment", "begin", "begun_ns")
            }
            data_and_orders.add(
                (str(line["data"]), str(sorted(order.items())), int(line["samples"]), str(line["last"]))
            )
            key = (str(line["launch"]), int(line["segment"]))
            rank = int(line["rank"])
            segment = segments.setdefault(
                key, SampleLogSegment(int(line["ranks"]), int(line["begin"]), int(line["begun_ns"]))
            )
            segment.begun_ns = min(segment.begun_ns, int(line["begun_ns"]))
            if (segment.ranks, segment.begin) != (int(line["ranks"]), int(line["begin"])):
                problems.append(f"{path.name}: ranks of one launch begin at {segment.begin} and {line['begin']}")
        except (ValueError, KeyError, TypeError, OverflowError) as err:
            if text.endswith(b"\n"):  # the last one may have been cut
                problems.append(f"{path.name}, line {number}: {clean_one_line(err)}")


def _iterate_bounded_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file. Raises DataError for what is no file, or has a line without end."""
    with open_regular(path) as stream:
        while True:
            line = stream.readline(parse.LARGEST + 1)
            if not line:
                return
            if len(line) > parse.LARGEST:
                raise DataError(f"{path} has a line of more than {parse.LARGEST} bytes")
            if line != b"\n":
                yield line


def _add_step(segment: SampleLogSegment, rank: int, line: dict[str, Any], path: Path, problems: list[str]) -> None:
    """Add a logged step to its segment. Raises ValueError, KeyError, TypeError, OverflowError."""
    step = DataStep(int(line["p"]), int(line["n"]), int(line["f"]), 0)
    received = [int(sample) for sample in line["i"]]
    bad = {int(sample) for sample in line.get("b", ())}
    if not all(0 <= sample < _MAX_COUNT for sample in received):
        raise ValueError("an impossible sample number")
    _, of_rank = segment.steps.setdefault(step.begin, (step, {}))
    if rank in of_rank:
        problems.append(f"{path.name}: rank {rank} has the step at {step.begin} twice in one launch")
    of_rank[rank] = received
    segment.bad.setdefault(step.begin, set()).update(bad)
