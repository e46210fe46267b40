"""From a directory to what can limit it."""

from __future__ import annotations

import os
from typing import NamedTuple

from hyperpod_kit.run import Runner
from hyperpod_kit.storage.quota.btrfs import Btrfs
from hyperpod_kit.storage.quota.limits import QuotaBackend, QuotaError, QuotaLimits
from hyperpod_kit.storage.quota.lustre import Lustre
from hyperpod_kit.system import mountinfo, quota_note

SECONDS = 3600.0
"""For a command: `lfs project -r` looks at every file."""


def backend_of(directory: str, runner: Runner, project: int | None = None) -> QuotaBackend:
    """By the type of the file system that holds it. Raises QuotaError where nothing can."""
    if not os.path.isdir(directory):
        raise QuotaError(f"{directory} is no directory here", hint="hyperpod-kit validate-mounts, where it is mounted")
    mount = mountinfo.holding(mountinfo.read(), os.path.realpath(directory))
    if mount is not None and mount.fs_type == "lustre":
        return Lustre(runner, mount.path, project)
    if mount is not None and mount.fs_type == "btrfs":
        return Btrfs(runner, mount.path)
    kind = "an unknown file system" if mount is None else mount.fs_type
    raise QuotaError(
        f"{directory} is on {kind}: limits of directories are set on Lustre and btrfs",
        hint="for an access point of EFS: hyperpod-kit storage quota stop FS-ID ACCESS-POINT",
    )


class NotedDirectory(NamedTuple):
    """What people call a directory, and its descriptor."""

    path: str
    handle: int


def apply(
    backend: QuotaBackend,
    directory: str,
    limits: QuotaLimits,
    grace: int,
    runner: Runner,
    *,
    note: NotedDirectory | None = None,
) -> list[list[str]]:
    """Set the limits, and leave a note of them in the directory; what was run. Twice is once. `note`: of a directory
    that is given by a descriptor.

    Raises QuotaError, RunError, Untrusted, OSError.
    """
    done = backend.commands(directory, limits, grace)
    for argv in done:
        runner.run(argv, timeout=SECONDS)
    noted = {"bytes": limits.hard_bytes, "files": limits.hard_files}
    quota_note.write(directory if note is None else note.path, noted, None if note is None else note.handle)
    return done
