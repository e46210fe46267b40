"""From a directory to what can limit it."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
from typing import Iterator, NamedTuple, Sequence

from hyperpod_kit.errors import Absent
from hyperpod_kit.run import Runner
from hyperpod_kit.storage.quota.enforced.btrfs import Btrfs
from hyperpod_kit.storage.quota.enforced.lustre import Lustre
from hyperpod_kit.storage.quota.limits import QuotaBackend, QuotaError, QuotaLimits, QuotaUsed
from hyperpod_kit.system import mountinfo, quota_note
from hyperpod_kit.untrusted import dirfd, walk

TIMEOUT = 3600.0
"""For a command: `lfs project -r` looks at every file."""
_MOUNTED = "hyperpod-kit validate-mounts, where it is mounted"


class QuotaDirectory(NamedTuple):
    """What people call a directory, and a descriptor of what was looked at under that name."""

    path: str
    descriptor: int

    @property
    def proc_fd_path(self) -> str:
        """Return a path by which other programs reach what was opened, whatever its owner has put into its place."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def commands_with_real_path(self, commands: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return commands as a person would type them."""
        return [[word.replace(self.proc_fd_path, self.path) for word in argv] for argv in commands]


@contextlib.contextmanager
def open_directory(directory: str) -> Iterator[QuotaDirectory]:
    """Open the directory without its links for as long as the block lasts: no link of another user's is followed, and
    no file system that another user serves is asked anything.

    Raises QuotaError, Absent, Untrusted, OSError.
    """
    try:
        descriptor = walk.open_traversable(os.path.abspath(directory))
    except (FileNotFoundError, NotADirectoryError):
        raise Absent(f"{directory} is not a directory on this machine", hint=_MOUNTED) from None
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise Absent(f"{directory} is not a directory on this machine", hint=_MOUNTED)
        target = QuotaDirectory(os.readlink(f"/proc/self/fd/{descriptor}"), descriptor)
        try:
            yield target
        except QuotaError as err:
            hint = err.hint
            if hint is not None:
                hint = hint.replace(target.proc_fd_path, target.path)
            raise QuotaError(err.message.replace(target.proc_fd_path, target.path), hint=hint) from None
    finally:
        os.close(descriptor)


def read_usage(directory: str, runner: Runner) -> QuotaUsed:
    """Read what a directory holds and its limits. Raises QuotaError, RunError, Untrusted, OSError."""
    with open_directory(directory) as target:
        return replace(choose_backend(target, runner).read_usage(target.proc_fd_path), directory=directory)


def choose_backend(target: QuotaDirectory, runner: Runner, project: int | None = None) -> QuotaBackend:
    """Choose the backend by the type of the file system. Raises QuotaError where nothing can."""
    number = dirfd.mount_id_of(target.descriptor)
    mount = next(
        (entry for entry in mountinfo.parse_mountinfo(mountinfo.read_mountinfo()) if str(entry.mount_id) == number),
        None,
    )
    if mount is not None and mount.fs_type == "lustre":
        return Lustre(runner, mount.path, project)
    if mount is not None and mount.fs_type == "btrfs":
        return Btrfs(runner, mount.path)
    kind = "an unknown file system" if mount is None else mount.fs_type
    raise QuotaError(
        f"{target.path} is on {kind}: directory limits exist on Lustre and btrfs only",
        hint="for an access point of EFS: hyperpod-kit storage quota stop FS-ID ACCESS-POINT",
    )


def apply_limits_and_write_note(
    backend: QuotaBackend, target: QuotaDirectory, limits: QuotaLimits, grace: int, runner: Runner
) -> list[list[str]]:
    """Set the limits, and leave a note of them in the directory; returns what was run. Idempotent.

    Raises QuotaError, RunError, Untrusted, OSError.
    """
    commands = backend.build_limit_commands(target.proc_fd_path, limits, grace)
    for argv in commands:
        runner.run(argv, timeout=TIMEOUT)
    quota_note.write_quota_note(
        target.path, {"bytes": limits.hard_bytes, "files": limits.hard_files}, target.descriptor
    )
    return target.commands_with_real_path(commands)
