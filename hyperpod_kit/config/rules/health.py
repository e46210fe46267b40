"""Times and counts of the mount watch."""

from __future__ import annotations

import posixpath
from typing import Iterator

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings

AT = "hyperpod_kit.health"

LONGEST_INTERVAL = 24 * 3600
"""Seconds; systemd ignores a timer's value that it cannot read, 1e+30s for one, and then nothing is ever checked."""
SHORTEST_DEADLINE = 0.1
"""Seconds; a probe begins with a process."""
LONGEST_DEADLINE = 30
"""Seconds; the check's unit may last twice as long."""


def check_health_timing_and_textfile_directory(settings: Settings) -> Iterator[Finding]:
    """A probe ends before the next one begins, and giving up takes at least one failure."""
    policy = settings.health
    if not 5 <= policy.interval <= LONGEST_INTERVAL:
        yield Finding(
            "HPK-H001", f"{AT}.interval", f"{policy.interval:g} s between checks", f"Use 5 to {LONGEST_INTERVAL} s"
        )
    if not SHORTEST_DEADLINE <= policy.deadline < policy.interval:
        yield Finding(
            "HPK-H002",
            f"{AT}.deadline",
            f"a probe may take {policy.deadline:g} s and one begins every {policy.interval:g} s",
            f"Make deadline {SHORTEST_DEADLINE} or more, and shorter than interval",
        )
    elif policy.deadline > LONGEST_DEADLINE:
        yield Finding(
            "HPK-H005",
            f"{AT}.deadline",
            f"{policy.deadline:g} s is longer than a check may last",
            f"Use {LONGEST_DEADLINE} or less",
        )
    directory = policy.textfile_directory
    below = next((mount for mount in settings.mounts if f"{directory}/".startswith(f"{mount.path}/")), None)
    if directory and (not directory.startswith("/") or posixpath.normpath(directory) != directory):
        yield Finding(
            "HPK-H006",
            f"{AT}.textfile_directory",
            f"{directory} is not an absolute path",
            'Use an absolute path, or ""',
        )
    elif below is not None:
        yield Finding(
            "HPK-H007",
            f"{AT}.textfile_directory",
            f"{directory} lies on mount {below.name}, and a file there hangs when the mount does",
            "Use a directory on the node's own disk",
        )
    if policy.degraded_after < 1:
        yield Finding("HPK-H003", f"{AT}.degraded_after", f"{policy.degraded_after} failures", "Use 1 or more")
    if not 0 <= settings.failure_pause <= 900:
        yield Finding(
            "HPK-H004",
            "hyperpod_kit.failure_pause",
            f"{settings.failure_pause:g} s between a failure and its report",
            "Use 60, 0 for no pause, and 900 at most",
        )
