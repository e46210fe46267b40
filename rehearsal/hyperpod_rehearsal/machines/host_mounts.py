"""Mounts below a directory: found in /proc/self/mountinfo, taken away deepest first."""

from __future__ import annotations

import time
from pathlib import Path

from hyperpod_kit.run import Runner
from hyperpod_kit.system.mountinfo import is_same_or_below, parse_mountinfo, read_mountinfo


def mount_points_below(directory: Path, mountinfo_text: str = "") -> list[Path]:
    """Mount points at and below `directory`, newest first. `mountinfo`: its text, read from /proc when empty."""
    points = [entry.path for entry in parse_mountinfo(mountinfo_text or read_mountinfo())]
    return [Path(point) for point in reversed(points) if is_same_or_below(point, str(directory))]


def unmount_below_and_list_remaining(directory: Path, runner: Runner, seconds: float = 10.0) -> list[Path]:
    """Unmount everything at and below `directory` and return what is still mounted after `seconds`.

    A mount stays busy for a moment after its machine was killed; at the end it is detached lazily.
    """
    deadline = time.monotonic() + seconds
    while True:
        mounted = mount_points_below(directory)
        if not mounted:
            return []
        late = time.monotonic() > deadline
        for point in mounted:
            runner.run(["umount", *(["-l"] if late else []), str(point)], timeout=20, check=False)
        if late:
            return mount_points_below(directory)
        if mount_points_below(directory):
            time.sleep(0.05)
