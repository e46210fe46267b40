"""This machine: what it is, whether it is quiet, and how to make a read cold."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from hyperpod_kit.system import mountinfo, page_cache

_QUIET_CORES = 0.15
_SAMPLE_SECONDS = 0.1
_EACH = 2.0


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def describe_machine_and_file_systems(directory: Path, shared_memory_directory: str) -> dict[str, Any]:
    """Return processor, cores, memory (bytes), kernel, and the file systems of the two directories."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "")
    return {
        "processor": model or platform.machine(),
        "cores": cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "directory": str(directory),
        "file_system": _file_system(directory),
        "shared_memory": shared_memory_directory,
        "shared_memory_file_system": _file_system(Path(shared_memory_directory)),
    }


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`."""
    entry = mountinfo.mount_containing_path(mountinfo.read_mountinfo(), os.path.realpath(path))
    if entry is None:
        return "unknown"
    return entry.fs_type


def _busy_core_seconds_since_boot() -> float:
    """Return the processor seconds of all cores that were not idle, since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


class QuietWait:
    """Waits for a quiet machine before a sample: up to `_EACH` seconds, and `seconds` in all, of which `remaining` are
    left.

    What an earlier sample started (write-back, removal of its files) must not run into the next one. On a machine that
    is busy all the time waiting helps nobody, and must not be what the bench's time goes to.
    """

    def __init__(self, seconds: float) -> None:
        self.remaining = seconds

    def wait_until_quiet(self) -> bool:
        """Wait until almost nothing runs, within the limits; return whether it became quiet."""
        begin = time.monotonic()
        end = begin + min(_EACH, self.remaining)
        while True:
            busy, sampled_at = _busy_core_seconds_since_boot(), time.monotonic()
            time.sleep(_SAMPLE_SECONDS)
            now = time.monotonic()
            calm = (_busy_core_seconds_since_boot() - busy) / (now - sampled_at) <= _QUIET_CORES
            if calm or now > end:
                # The look itself is no waiting: a quiet machine spends nothing.
                self.remaining = max(0.0, self.remaining - (now - begin - _SAMPLE_SECONDS))
                return calm


def empty_page_cache_and_name_method(files: list[Path]) -> str:
    """Make the next read of `files` cold; returns how: `dropped` (root, everything) or `fadvise` (those files)."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        return "dropped"
    except OSError:
        page_cache.drop_cached_pages(map(str, files))
        return "fadvise"
