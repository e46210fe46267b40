"""One mount from the first probe to the last save."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable

from hyperpod_kit.errors import Absent, HyperpodKitError, RunError
from hyperpod_kit.storage.bench import fio, probes, replays, small, streams
from hyperpod_kit.storage.bench.replays import ReplayAsked, ReplayFailed
from hyperpod_kit.storage.bench.scratch import BudgetSpent, Scratch
from hyperpod_kit.storage.bench.shape import StreamShape, shape
from hyperpod_kit.storage.bench.streams import BLOCK, StreamSample
from hyperpod_kit.storage.plan.calibration import Calibration, Sample
from hyperpod_kit.system import mountinfo

KINDS = {
    "lustre": "fsx-lustre",
    "fuse.mountpoint-s3": "mountpoint-s3",
    "nfs4": "efs",
    **dict.fromkeys(("ext4", "xfs", "btrfs", "zfs"), "nvme"),
}
"""Type of file system -> the name in a plan of what usually is behind it; MOUNT=KIND says otherwise."""

SMALL_FILES = 200
LARGEST = 2**30
"""Bytes of a stream, at most."""


@dataclass(frozen=True)
class Place:
    """A mount to measure, and its name in a plan."""

    path: Path
    kind: str
    about: dict[str, Any]


@dataclass
class MountReport:
    """What was found; `left_out`: measurements that were not made, and why."""

    place: Place
    probes: dict[str, probes.ProbeResult] = field(default_factory=dict)
    streams: list[StreamSample] = field(default_factory=list)
    fio: list[StreamSample] = field(default_factory=list)
    small: small.SmallFiles | None = None
    saves: list[Sample] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def shape(self, kind: str) -> StreamShape | None:
        """Of own streams; `kind`: write or read."""
        return shape([one for one in self.streams if one.kind == kind])

    def to_json(self) -> dict[str, Any]:
        """Rates in bytes a second, times in seconds."""
        shapes = {kind: self.shape(kind) for kind in ("write", "read")}
        return {
            "path": str(self.place.path),
            "storage": self.place.kind,
            "about": self.place.about,
            "probes": {name: one._asdict() for name, one in self.probes.items()},
            "streams": [{**one._asdict(), "rate": one.rate} for one in self.streams],
            "fio": [{**one._asdict(), "rate": one.rate} for one in self.fio],
            "shape": {kind: one._asdict() if one else None for kind, one in shapes.items()},
            "small_files": self.small._asdict() if self.small else None,
            "saves": [asdict(one) for one in self.saves],
            "left_out": self.left_out,
        }


def place(text: str) -> Place:
    """`/fsx` or `/fsx=fsx-lustre`. Raises UsageError."""
    path, _, kind = text.partition("=")
    if not os.path.isdir(path):
        raise Absent(f"{path} is no directory here")
    found = mountinfo.mount_holding(mountinfo.read(), os.path.realpath(path))
    kind_of = found.fs_type if found else "unknown"
    about = {
        "file_system": kind_of,
        "source": found.source if found else "",
        "options": list(found.options) if found else [],
        "host": platform.node(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return Place(Path(path), kind or KINDS.get(kind_of, kind_of), about)


def measure(
    where: Place, budget: float, counts: tuple[int, ...], asked: ReplayAsked | None, say: Callable[[str], None]
) -> MountReport:
    """All of it. What its budget does not cover is left out. Raises OSError when nothing can be written there."""
    found = MountReport(where)

    def tried(what: str, work: Callable[[], None]) -> None:
        say(f"{where.path}: {what}")
        try:
            work()
        except (BudgetSpent, ReplayFailed, RunError) as err:
            found.left_out.append(str(err))
        except OSError as err:
            found.left_out.append(f"{what}: {err.strerror or err}")

    with Scratch(where.path, budget) as scratch:
        tried("what it can do", partial(_probes, scratch, found))
        share = budget if asked is None else budget - replays.SAVES * asked.size * len(asked.writers)
        each = _each(min(share, scratch.left) * (0.5 if fio.there() else 1.0), counts)
        for count, size in _steps(counts, each):
            tried(f"{count} streams of {size / 1e6:.0f} MB", partial(_streams, scratch, found, count, size))
            if fio.there():
                tried(f"fio, {count} streams", partial(_fio, scratch, found, count, size))
        tried(f"{SMALL_FILES} small files", partial(_small, scratch, found))
        for writer in asked.writers if asked is not None else ():
            assert asked is not None
            tried(f"a checkpoint by {writer}", partial(_saves, scratch, found, asked, writer))
    return found


def calibration(found: list[MountReport]) -> Calibration:
    """What `storage plan --calibration` reads. Raises HyperpodKitError without a single save."""
    samples = tuple(one for report in found for one in report.saves)
    if not samples:
        raise HyperpodKitError("no save was measured, so there is nothing to plan from", hint="--budget SIZE")
    about = {str(report.place.path): report.to_json() for report in found}
    return Calibration(f"storage bench on {platform.node()}", samples, about)


def _each(share: float, counts: tuple[int, ...]) -> int:
    """Bytes of a stream, in whole blocks: all steps together write no more than `share`."""
    parts = sum(counts) + 1 / 8
    return max(BLOCK, min(LARGEST, int(share / parts)) // BLOCK * BLOCK)


def _steps(counts: tuple[int, ...], each: int) -> list[tuple[int, int]]:
    """(streams, bytes of each): one stream of an eighth too, for the time to the first byte."""
    eighth = max(BLOCK, each // 8 // BLOCK * BLOCK)
    return [*([(1, eighth)] if eighth < each else []), *((count, each) for count in counts)]


def _probes(scratch: Scratch, found: MountReport) -> None:
    scratch.take(64 * 1024, "probes")
    place = scratch.directory("probes")
    found.probes = probes.probe(place)
    scratch.forget(place)


def _streams(scratch: Scratch, found: MountReport, count: int, size: int) -> None:
    scratch.take(count * size, f"{count} streams")
    place = scratch.directory("streams")
    try:
        found.streams.append(streams.write(place, count, size))
        found.streams.append(streams.read(place, count))
    finally:
        scratch.forget(place)


def _fio(scratch: Scratch, found: MountReport, count: int, size: int) -> None:
    scratch.take(count * size, f"fio, {count} streams")
    place = scratch.directory("fio")
    try:
        found.fio.append(fio.measure(place, "write", count, size))
        found.fio.append(fio.measure(place, "read", count, size))
    finally:
        scratch.forget(place)


def _small(scratch: Scratch, found: MountReport) -> None:
    scratch.take(SMALL_FILES * small.SIZE, "small files")
    place = scratch.directory("small")
    try:
        found.small = small.measure(place, SMALL_FILES)
    finally:
        scratch.forget(place)


def _saves(scratch: Scratch, found: MountReport, asked: ReplayAsked, writer: str) -> None:
    found.saves += replays.replay(scratch, asked, writer, found.place.kind)
