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
from hyperpod_kit.storage.bench import replays
from hyperpod_kit.storage.bench.measurements import fio, probes, small, streams
from hyperpod_kit.storage.bench.measurements.shape import StreamShape, fit_shape
from hyperpod_kit.storage.bench.measurements.streams import BLOCK, StreamSample
from hyperpod_kit.storage.bench.replays import ReplayFailed, ReplayRequest
from hyperpod_kit.storage.bench.scratch import BudgetSpent, Scratch
from hyperpod_kit.storage.plan.calibration import Calibration, Sample
from hyperpod_kit.system import mountinfo
from hyperpod_kit.untrusted.text import counted

KINDS = {
    "lustre": "fsx-lustre",
    "fuse.mountpoint-s3": "mountpoint-s3",
    "nfs4": "efs",
    **dict.fromkeys(("ext4", "xfs", "btrfs", "zfs"), "nvme"),
}
"""Type of file system -> the name in a plan of what usually is behind it; MOUNT=KIND says otherwise."""

SMALL_FILES = 200
MAX_STREAM_BYTES = 2**30
"""Bytes of a stream, at most."""


@dataclass(frozen=True)
class BenchMount:
    """A mount to measure, and its name in a plan."""

    path: Path
    kind: str
    about: dict[str, Any]


@dataclass
class MountReport:
    """What was measured of a mount; `left_out`: measurements that were not made, and why."""

    mount: BenchMount
    probes: dict[str, probes.ProbeResult] = field(default_factory=dict)
    streams: list[StreamSample] = field(default_factory=list)
    fio: list[StreamSample] = field(default_factory=list)
    small: small.SmallFiles | None = None
    saves: list[Sample] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def fit_stream_shape(self, write_or_read: str) -> StreamShape | None:
        """Fit the shape of own streams; `kind`: write or read."""
        return fit_shape([sample for sample in self.streams if sample.kind == write_or_read])

    def _shape_json(self, write_or_read: str) -> dict[str, Any] | None:
        stream_shape = self.fit_stream_shape(write_or_read)
        return None if stream_shape is None else stream_shape._asdict()

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: rates in bytes a second, times in seconds."""
        small_files = None
        if self.small is not None:
            small_files = self.small._asdict()
        return {
            "path": str(self.mount.path),
            "storage": self.mount.kind,
            "about": self.mount.about,
            "probes": {name: probe._asdict() for name, probe in self.probes.items()},
            "streams": [{**sample._asdict(), "rate": sample.rate} for sample in self.streams],
            "fio": [{**sample._asdict(), "rate": sample.rate} for sample in self.fio],
            "shape": {kind: self._shape_json(kind) for kind in ("write", "read")},
            "small_files": small_files,
            "saves": [asdict(save) for save in self.saves],
            "left_out": self.left_out,
        }


def parse_mount(text: str) -> BenchMount:
    """Parse `/fsx` or `/fsx=fsx-lustre`. Raises UsageError."""
    path, _, kind = text.partition("=")
    if not os.path.isdir(path):
        raise Absent(f"{path} is not a directory on this machine")
    entry = mountinfo.mount_containing_path(mountinfo.read_mountinfo(), os.path.realpath(path))
    file_system, source = "unknown", ""
    options: list[str] = []
    if entry is not None:
        file_system, source, options = entry.fs_type, entry.source, list(entry.options)
    about = {
        "file_system": file_system,
        "source": source,
        "options": options,
        "host": platform.node(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return BenchMount(Path(path), kind or KINDS.get(file_system, file_system), about)


def measure_mount(
    mount: BenchMount,
    byte_budget: float,
    stream_counts: tuple[int, ...],
    replay_request: ReplayRequest | None,
    progress: Callable[[str], None],
) -> MountReport:
    """Measure a mount. What its budget does not cover is left out. Raises OSError when nothing can be written there."""
    report = MountReport(mount)

    def try_measurement(what: str, work: Callable[[], None]) -> None:
        progress(f"{mount.path}: {what}")
        try:
            work()
        except (BudgetSpent, ReplayFailed, RunError) as err:
            report.left_out.append(str(err))
        except OSError as err:
            report.left_out.append(f"{what}: {err.strerror or err}")

    with Scratch(mount.path, byte_budget) as scratch:
        try_measurement("capabilities", partial(_measure_probes, scratch, report))
        share = byte_budget
        if replay_request is not None:
            share -= replays.SAVES * replay_request.size * len(replay_request.writers)
        share = min(share, scratch.remaining)
        if fio.is_installed():
            share *= 0.5
        file_size = _stream_bytes_within_budget(share, stream_counts)
        for count, size in _list_stream_steps(stream_counts, file_size):
            try_measurement(
                f"{counted(count, 'stream')} of {size / 1e6:.0f} MB",
                partial(_measure_streams, scratch, report, count, size),
            )
            if fio.is_installed():
                try_measurement(f"fio, {counted(count, 'stream')}", partial(_measure_fio, scratch, report, count, size))
        try_measurement(f"{SMALL_FILES} small files", partial(_measure_small_files, scratch, report))
        if replay_request is not None:
            for writer in replay_request.writers:
                measure_saves = partial(_measure_saves, scratch, report, replay_request, writer)
                try_measurement(f"a checkpoint by {writer}", measure_saves)
    return report


def to_calibration(reports: list[MountReport]) -> Calibration:
    """Convert reports to what `storage plan --calibration` reads. Raises HyperpodKitError without a single save."""
    samples = tuple(save for report in reports for save in report.saves)
    if not samples:
        raise HyperpodKitError("no save was measured, so there is nothing to plan from", hint="--budget SIZE")
    about = {str(report.mount.path): report.to_json() for report in reports}
    return Calibration(f"storage bench on {platform.node()}", samples, about)


def _stream_bytes_within_budget(byte_budget: float, stream_counts: tuple[int, ...]) -> int:
    """Compute the bytes of a stream, in whole blocks: all steps together write no more than `byte_budget`."""
    parts = sum(stream_counts) + 1 / 8
    return max(BLOCK, min(MAX_STREAM_BYTES, int(byte_budget / parts)) // BLOCK * BLOCK)


def _list_stream_steps(stream_counts: tuple[int, ...], file_size: int) -> list[tuple[int, int]]:
    """List (streams, bytes of each): one stream of an eighth too, for the time to the first byte."""
    eighth = max(BLOCK, file_size // 8 // BLOCK * BLOCK)
    steps = [(count, file_size) for count in stream_counts]
    if eighth < file_size:
        steps.insert(0, (1, eighth))
    return steps


def _measure_probes(scratch: Scratch, report: MountReport) -> None:
    scratch.reserve_bytes_within_budget_and_room(64 * 1024, "probes")
    directory = scratch.make_directory("probes")
    report.probes = probes.run_probes(directory)
    scratch.remove(directory)


def _measure_streams(scratch: Scratch, report: MountReport, count: int, size: int) -> None:
    scratch.reserve_bytes_within_budget_and_room(count * size, counted(count, "stream"))
    directory = scratch.make_directory("streams")
    try:
        report.streams.append(streams.write_streams(directory, count, size))
        report.streams.append(streams.read_streams(directory, count))
    finally:
        scratch.remove(directory)


def _measure_fio(scratch: Scratch, report: MountReport, count: int, size: int) -> None:
    scratch.reserve_bytes_within_budget_and_room(count * size, f"fio, {counted(count, 'stream')}")
    directory = scratch.make_directory("fio")
    try:
        report.fio.append(fio.measure_with_fio(directory, "write", count, size))
        report.fio.append(fio.measure_with_fio(directory, "read", count, size))
    finally:
        scratch.remove(directory)


def _measure_small_files(scratch: Scratch, report: MountReport) -> None:
    scratch.reserve_bytes_within_budget_and_room(SMALL_FILES * small.SIZE, "small files")
    directory = scratch.make_directory("small")
    try:
        report.small = small.measure_small_files(directory, SMALL_FILES)
    finally:
        scratch.remove(directory)


def _measure_saves(scratch: Scratch, report: MountReport, replay_request: ReplayRequest, writer: str) -> None:
    report.saves += replays.replay(scratch, replay_request, writer, report.mount.kind)
