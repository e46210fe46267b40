"""Writes a job's time as scalars for TensorBoard: the course of goodput, the shares of the causes and the step time.

Each point covers the time from the job's submission to that moment, by what is known now. Its step is the highest that
training had reached by then, so the curves match those that a training script writes itself.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.launch_time import usual_step
from hyperpod_kit.job.goodput.pieces import TimePiece
from hyperpod_kit.job.goodput.time_rows import TimeRow
from hyperpod_kit.job.goodput.time_table import TimeTable
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

GOODPUT, STEP_TIME, SHARE = "goodput", "seconds a step", "time"
"""Tags; the share of a cause is `time/lasted`."""

POINTS = 500
"""Number of points: as many as a picture has room for."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
_PREFIX, _SUFFIX = "events.out.tfevents.", ".hyperpod-kit"


def points(time: JobTime) -> List[ScalarPoint]:
    """Return the points in order of time; none for a job that has had no time."""
    if not time.pieces:
        return []
    begin, end = time.pieces[0].start, time.pieces[-1].end
    moments = [begin + (end - begin) * number / POINTS for number in range(1, POINTS + 1)]
    rows: List[TimeRow] = []
    for run in time.runs:
        for attempt in run.attempts:
            rows += attempt.rows
    rows.sort(key=lambda row: row.t)
    progress = _progress(rows, moments)
    return [
        ScalarPoint(moment, *_values(next(progress), table))
        for moment, table in zip(moments, _tables_up_to_each_moment(time.pieces, moments))
    ]


def _tables_up_to_each_moment(pieces: Sequence[TimePiece], moments: Sequence[float]) -> Iterator[TimeTable]:
    """Yield the table of the time up to each moment; the pieces are passed through only once."""
    seconds: Dict[TimeCause, float] = {}
    gpu_seconds: Dict[TimeCause, float] = {}
    number, counted = 0, pieces[0].start
    for moment in moments:
        while number < len(pieces):
            piece = pieces[number]
            spent = max(0.0, min(piece.end, moment) - max(piece.start, counted))
            seconds[piece.cause] = seconds.get(piece.cause, 0.0) + spent
            gpu_seconds[piece.cause] = gpu_seconds.get(piece.cause, 0.0) + spent * piece.gpus
            if piece.end > moment:
                break
            number += 1
        counted = moment
        yield TimeTable(dict(seconds), dict(gpu_seconds))


class _Progress:
    """The highest step of training at a moment, and the seconds of a step then; 0 where they are not known."""

    def __init__(self) -> None:
        self.furthest = 0
        self.step_seconds = 0.0

    def take(self, row: TimeRow) -> None:
        """Take over the progress in a row."""
        self.furthest = max(self.furthest, row.step or 0)
        usual = usual_step(row)
        if usual:
            self.step_seconds = usual


def _progress(rows: Sequence[TimeRow], moments: Sequence[float]) -> Iterator[_Progress]:
    progress, taken = _Progress(), 0
    for moment in moments:
        while taken < len(rows) and rows[taken].t <= moment:
            progress.take(rows[taken])
            taken += 1
        yield progress


def _values(progress: _Progress, table: TimeTable) -> Tuple[int, Dict[str, float]]:
    """Return the step of a point, and its value of each tag."""
    values = {f"{SHARE}/{cause.value}": table.seconds.get(cause, 0.0) / table.total_seconds for cause in TimeCause}
    if table.goodput is not None:
        values[GOODPUT] = table.goodput
    if progress.step_seconds:
        values[STEP_TIME] = progress.step_seconds
    return progress.furthest, values


def replace_event_file_of_job(directory: str, job_time: JobTime, now: float) -> str:
    """Write one file to a directory named after the job, which TensorBoard shows as a run, and return its path.

    Files of earlier calls are removed there: a running TensorBoard takes up the new one instead. Raises OSError.
    """
    folder = os.path.join(directory, _NOT_IN_NAMES.sub("_", job_time.job) or "_")
    by_descriptor.make_parents(os.path.join(folder, "_"))
    earlier = [name for name in os.listdir(folder) if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    name = f"{_PREFIX}{now:017.6f}.{socket.gethostname()}.{os.getpid()}{_SUFFIX}"
    path = os.path.join(folder, name)
    scalars = points(job_time)
    first_record_time = now
    if scalars:
        first_record_time = scalars[0].time
    atomic_file.write_atomically(path, encoded(scalars, first_record_time))
    for event_file_name in earlier:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(os.path.join(folder, event_file_name))
    return path


# Writes a file of scalars that TensorBoard reads: records of the protocol buffer `Event`, each with its checksums.
#
# TensorFlow's record format: eight bytes of length and their masked CRC-32C, then the record and its masked CRC-32C.
# Of `Event` (tensorflow/core/util/event.proto) this uses wall_time, step, file_version and summary; of a summary's
# values, tag and simple_value. So no package of TensorBoard's is needed to write such a file.

VERSION = b"brain.Event:2"
"""The file_version in the first record of every such file."""

_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


class ScalarPoint(NamedTuple):
    """The scalars of one moment. `values`: tag -> number, at `time`, Unix seconds, when the training was at `step`."""

    time: float
    step: int
    values: Mapping[str, float]


def encoded(points: Iterable[ScalarPoint], first_record_time: float) -> bytes:
    """Return the bytes of the whole file. `first_record_time`: the time of its first record, Unix seconds."""
    records = [_double(1, first_record_time) + _bytes(3, VERSION)]
    records += [_event(point) for point in points]
    return b"".join(map(_record, records))


def _event(point: ScalarPoint) -> bytes:
    values = [_bytes(1, tag.encode()) + _float(2, number) for tag, number in point.values.items()]
    summary = b"".join(_bytes(1, value) for value in values)
    return _double(1, point.time) + _integer(2, point.step) + _bytes(5, summary)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli), which zlib does not offer."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> Tuple[int, ...]:
    remainders: List[int] = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            lowest_bit = remainder & 1
            remainder >>= 1
            if lowest_bit:
                remainder ^= _POLYNOMIAL
        remainders.append(remainder)
    return tuple(remainders)


_TABLE = _table()


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _integer(field: int, number: int) -> bytes:
    return _key(field, _VARINT) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", number)


def _float(field: int, number: float) -> bytes:
    return _key(field, _FLOAT) + struct.pack("<f", number)


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data
