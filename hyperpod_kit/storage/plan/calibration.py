"""What was measured, and the rates that follow: a file that `storage bench` writes and `storage plan` reads.

One rate a (storage, writer): bytes a second of each process that writes. It is the middle between the fastest and the
slowest sample, which makes the greatest relative error of a predicted time as small as it can be; that error is the
band of every prediction.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, NamedTuple

from hyperpod_kit.errors import Absent, ConfigError
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import files
from hyperpod_kit.untrusted.parse import parse_json_object

FORMAT = "hpk-storage-calibration"
VERSION = 1
MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True)
class Sample:
    """One save that was timed. `writers`: processes that wrote at once, on `nodes` nodes; `size`: bytes of all of them;
    `seconds`: of the slowest; `stall`: seconds that training stood still, None: all of them."""

    storage: str
    writer: str
    writers: int
    nodes: int
    size: float
    seconds: float
    label: str = ""
    stall: float | None = None

    @property
    def bytes_per_second_per_process(self) -> float:
        """Compute the bytes a second of each process."""
        return self.size / self.seconds / self.writers


class Rate(NamedTuple):
    """How fast a writer is.

    `each`: bytes a second of one process that writes, `writers` of which were measured on a node; `error`: greatest
    relative error of a time predicted with it among its own samples; `stall`: bytes a second of one process while
    training stands still, None where it stands still to the end; `largest`: bytes that one process wrote at most.
    """

    each: float
    writers: int
    error: float
    samples: int
    stall: float | None = None
    largest: float = 0.0

    def predict_seconds(self, size: float, writers: int) -> float:
        """Predict the seconds until `size` bytes are written by `writers` processes, nothing else in their way."""
        return size / (self.each * writers)


@dataclass(frozen=True)
class Calibration:
    """Samples by storage and writer.

    `source`: where they are from, in words; `about`: machine, kernel, mount options, date.
    """

    source: str
    samples: tuple[Sample, ...]
    about: dict[str, Any] = field(default_factory=dict)

    def fitted_rate(self, storage: str, writer: str) -> Rate | None:
        """Return the rate of a storage and writer, None where nothing of the kind was measured."""
        return fit_rate(sample for sample in self.samples if (sample.storage, sample.writer) == (storage, writer))

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: what `load` takes back."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "source": self.source,
            "about": self.about,
            "samples": [vars(sample) for sample in self.samples],
        }


def fit_rate(samples: Iterable[Sample]) -> Rate | None:
    """Fit the rate of samples of one storage and one writer, None of none."""
    sample_list = list(samples)
    if not sample_list:
        return None
    fastest, slowest = (
        max(sample.bytes_per_second_per_process for sample in sample_list),
        min(sample.bytes_per_second_per_process for sample in sample_list),
    )
    stalls = [sample.size / sample.writers / sample.stall for sample in sample_list if sample.stall]
    stall = min(stalls, default=None)
    on_node = max(sample.writers // sample.nodes for sample in sample_list)
    largest = max(sample.size / sample.writers for sample in sample_list)
    return Rate(
        (fastest + slowest) / 2, on_node, (fastest - slowest) / (fastest + slowest), len(sample_list), stall, largest
    )


class CalibrationCell(NamedTuple):
    """A measured time beside the predicted one, in seconds; `left_out`: predicted from the other samples alone."""

    sample: Sample
    predicted: float
    left_out: float | None

    @property
    def relative_error(self) -> float:
        """Compute the relative error: 0.05 is 5 % too slow."""
        return self.predicted / self.sample.seconds - 1

    @property
    def leave_one_out_relative_error(self) -> float | None:
        if self.left_out is None:
            return None
        return self.left_out / self.sample.seconds - 1


def compare_samples_with_predictions(calibration: Calibration) -> list[CalibrationCell]:
    """Compare every sample with what the calibration predicts."""
    out = []
    for sample in calibration.samples:
        same_kind = [
            candidate
            for candidate in calibration.samples
            if (candidate.storage, candidate.writer) == (sample.storage, sample.writer)
        ]
        rate = fit_rate(same_kind)
        rate_of_others = fit_rate(candidate for candidate in same_kind if candidate is not sample)
        assert rate is not None
        left_out = None
        if rate_of_others is not None:
            left_out = rate_of_others.predict_seconds(sample.size, sample.writers)
        out.append(CalibrationCell(sample, rate.predict_seconds(sample.size, sample.writers), left_out))
    return out


def save(calibration: Calibration, path: Path) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    atomic_file.write_atomically(path, (json.dumps(calibration.to_json(), indent=2) + "\n").encode())


def load(path: Path) -> Calibration:
    """Read the file. Raises ConfigError that names what is wrong with it, Absent when it is not there."""
    try:
        body = parse_json_object(files.read_small_regular_file(str(path), MAX_FILE_BYTES), MAX_FILE_BYTES)
    except FileNotFoundError:
        raise Absent(f"there is no {path}", hint=f"hyperpod-kit storage bench MOUNT --out {path}") from None
    except ValueError as err:
        raise ConfigError(f"{path} is not a calibration: {err}") from None
    if body.get("format") != FORMAT or body.get("version") != VERSION:
        actual = f"{body.get('format')!r} {body.get('version')!r}"
        raise ConfigError(f"{path}: expected {FORMAT} {VERSION}, found {actual[:80]}")
    rows = body.get("samples")
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: `samples` is not a list")
    about = body.get("about")
    if not isinstance(about, dict):
        about = {}
    return Calibration(
        str(body.get("source") or path),
        tuple(_decode_sample(row, f"{path}: samples[{number}]") for number, row in enumerate(rows)),
        about,
    )


def _decode_sample(row: Any, location: str) -> Sample:
    if not isinstance(row, dict):
        raise ConfigError(f"{location} is not an object")
    for name in ("storage", "writer"):
        if not isinstance(row.get(name), str):
            raise ConfigError(f"{location}.{name} is {row.get(name)!r}: expected text")
    for name in ("writers", "nodes", "size", "seconds"):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
            raise ConfigError(f"{location}.{name} is {value!r}: expected a number above 0")
    stall = row.get("stall")
    if stall is not None and (isinstance(stall, bool) or not isinstance(stall, (int, float)) or not stall > 0):
        raise ConfigError(f"{location}.stall is {stall!r}: expected a number above 0")
    if row["nodes"] > row["writers"] or row["writers"] != int(row["writers"]) or row["nodes"] != int(row["nodes"]):
        raise ConfigError(f"{location}: {row['writers']} writers on {row['nodes']} nodes")
    return Sample(
        row["storage"],
        row["writer"],
        int(row["writers"]),
        int(row["nodes"]),
        float(row["size"]),
        float(row["seconds"]),
        str(row.get("label", ""))[:200],
        None if stall is None else float(stall),
    )
