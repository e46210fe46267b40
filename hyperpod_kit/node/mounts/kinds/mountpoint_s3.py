"""Mountpoint for S3: a daemon under systemd; the kernel shows `mountpoint-s3` for every bucket alike.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, List, NamedTuple, Optional, Sequence

from hyperpod_kit.errors import MountFailed, Untrusted
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.units import carrier_unit
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.machine.systemd import process_ids_of_unit
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.node.mounts.kinds.mount_record import read_record, replacement_reason
from hyperpod_kit.system import process
from hyperpod_kit.system.mountinfo import MountEntry, find_mount_at
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.files import ensure_own_directory

SOURCE = "mountpoint-s3"


class MountpointS3Kind(Kind):
    """The unit's own process is the endpoint, so a hung one can be killed and started anew."""

    program = "/usr/bin/mount-s3"
    package = "mount-s3 (Mountpoint for Amazon S3)"
    # --allow-overwrite came with 1.4.0, --write-part-size with 1.8.0 (Mountpoint's change log).
    client_check = ClientCheck("1.8.0", ("--version",))
    restart_when_hung = True

    def mount_command(self, node: Node, mount: S3Mount) -> Sequence[str]:
        # The options are in the unit, from S3Mount.options().
        return ("systemctl", "start", carrier_unit(mount))

    def prepare(self, node: Node, mount: S3Mount) -> None:
        """Make the cache's directory: its contents are objects in the clear, so nobody but root may look."""
        if mount.cache_path is not None:
            self._require_scratch_mounted(node, mount.cache_path)
            cache_directory = node.paths.under_root(mount.cache_path)
            by_descriptor.make_parents(cache_directory)
            try:
                ensure_own_directory(cache_directory)
            except Untrusted as err:
                raise MountFailed(str(err), hint=err.hint) from None

    def _require_scratch_mounted(self, node: Node, cache_path: str) -> None:
        # Otherwise the cache would fill the root disk, below where the scratch belongs.
        mountinfo = read_text(node.paths.mountinfo) or ""
        for other in node.mounts:
            above = other.traits.local_disk and f"{cache_path}/".startswith(f"{other.path}/")
            if above and find_mount_at(mountinfo, other.path) is None:
                raise MountFailed(
                    f"{cache_path}: the scratch {other.name} that holds the cache is not mounted",
                    hint=f"systemctl status {carrier_unit(other)}",
                )

    def identify(self, node: Node, mount: S3Mount, entry: MountEntry) -> MountIdentity:
        expected = f"expected {configured_s3_url(mount)}"
        if entry.source != SOURCE:
            return MountIdentity(False, entry.source, f"{expected}, found {entry.fs_type}")
        record = read_record(node, mount)
        pids = process_ids_of_unit(node, carrier_unit(mount))
        # Beside the daemon there may be a command of ours that waits for it.
        pid = next((pid for pid in pids if parse_mount_s3_command(command_line(node, pid))), pids[0] if pids else 0)
        replacement = replacement_reason(record, entry)
        if replacement:
            served = next(daemons_at(node, mount.path, besides=pid), None)
            source = entry.source
            if served:
                source = url(served)
            return MountIdentity(False, source, f"{expected}, {replacement}")
        if pid == 0:
            served = next(daemons_at(node, mount.path), None)
            if served is None:
                return MountIdentity(
                    None,
                    entry.source,
                    f"{carrier_unit(mount)} does not run, and no other process seems to serve this mount",
                )
            matches = (served.bucket, served.prefix) == (mount.bucket, mount.prefix)
            return MountIdentity(
                None if matches else False, url(served), f"{expected} by {carrier_unit(mount)}, which does not run"
            )
        served = parse_mount_s3_command(command_line(node, pid))
        if served is None:
            return MountIdentity(None, entry.source, f"process {pid} of {carrier_unit(mount)} is not mount-s3")
        matches = served == Served(mount.bucket, mount.prefix, os.path.normpath(mount.path))
        return MountIdentity(matches, url(served), expected)


class Served(NamedTuple):
    """What a mount-s3 process serves, and where it was told to."""

    bucket: str
    prefix: str
    path: str


def url(served: Served) -> str:
    return f"s3://{served.bucket}/{served.prefix}"


def configured_s3_url(mount: S3Mount) -> str:
    return f"s3://{mount.bucket}/{mount.prefix}"


def command_line(node: Node, pid: int) -> List[str]:
    """The words of a process's command line; empty once it has ended."""
    try:
        return (read_text(node.paths.cmdline(pid)) or "").split("\0")
    except OSError:
        return []


def daemons_at(node: Node, path: str, besides: int = 0) -> Iterator[Served]:
    """Yield what root's processes serve that were started as mount-s3 for this path, but for `besides`."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(node.paths.under_root("/proc"))):
            if not name.isdigit() or int(name) == besides or not process.are_all_uids_root(int(name), node.paths.proc):
                continue
            served = parse_mount_s3_command(command_line(node, int(name)))
            if served is not None and served.path == os.path.normpath(path):
                yield served


def parse_mount_s3_command(command: Sequence[str]) -> Optional[Served]:
    """Parse the command line of a mount-s3 whose last two words are bucket and path; None for anything else."""
    arguments = [word for word in command if word]
    if len(arguments) < 3 or not any(os.path.basename(word).startswith("mount-s3") for word in arguments[:5]):
        return None
    prefix = ""
    for index, argument in enumerate(arguments[:-2]):
        if argument == "--prefix":
            prefix = arguments[index + 1]
        elif argument.startswith("--prefix="):
            prefix = argument[len("--prefix=") :]
    return Served(arguments[-2], prefix, os.path.normpath(arguments[-1]))


KIND = MountpointS3Kind()
