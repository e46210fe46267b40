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
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.node.mounts.mount_record import read_record, replaced
from hyperpod_kit.node.systemd import processes
from hyperpod_kit.system import process
from hyperpod_kit.system.mountinfo import MountEntry, find
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.files import own_directory

SOURCE = "mountpoint-s3"


class MountpointS3Kind(Kind):
    """The unit's own process is the endpoint, so a hung one can be killed and started anew."""

    program = "/usr/bin/mount-s3"
    package = "mount-s3 (Mountpoint for Amazon S3)"
    # --allow-overwrite came with 1.4.0, --write-part-size with 1.8.0 (Mountpoint's change log).
    client_check = ClientCheck("1.8.0", ("--version",))
    restart_when_hung = True

    def command(self, node: Node, mount: S3Mount) -> Sequence[str]:
        # The options are in the unit, from S3Mount.options().
        return ("systemctl", "start", carrier_unit(mount))

    def prepare(self, node: Node, mount: S3Mount) -> None:
        """Make the cache's directory: its contents are objects in the clear, so nobody but root may look."""
        if mount.cache_place is not None:
            self._require_scratch(node, mount.cache_place)
            place = node.paths.real(mount.cache_place)
            by_descriptor.make_parents(place)
            try:
                own_directory(place)
            except Untrusted as err:
                raise MountFailed(str(err), hint=err.hint) from None

    def _require_scratch(self, node: Node, place: str) -> None:
        # Otherwise the cache would fill the root disk, below where the scratch belongs.
        mountinfo = read_text(node.paths.mountinfo) or ""
        for other in node.mounts:
            above = other.traits.local_disk and f"{place}/".startswith(f"{other.path}/")
            if above and find(mountinfo, other.path) is None:
                raise MountFailed(
                    f"{place}: the scratch {other.name} that the cache lies on is not mounted",
                    hint=f"systemctl status {carrier_unit(other)}",
                )

    def identify(self, node: Node, mount: S3Mount, entry: MountEntry) -> MountIdentity:
        wanted = f"expected {described(mount)}"
        if entry.source != SOURCE:
            return MountIdentity(False, entry.source, f"{wanted}, found {entry.fs_type}")
        record = read_record(node, mount)
        pids = processes(node, carrier_unit(mount))
        # Beside the daemon there may be a command of ours that waits for it.
        pid = next((pid for pid in pids if parse_command(command_line(node, pid))), pids[0] if pids else 0)
        gone = replaced(record, entry)
        if gone:
            served = next(daemons_at(node, mount.path, besides=pid), None)
            return MountIdentity(False, url(served) if served else entry.source, f"{wanted}, {gone}")
        if pid == 0:
            served = next(daemons_at(node, mount.path), None)
            if served is None:
                return MountIdentity(
                    None, entry.source, f"{carrier_unit(mount)} does not run, and nobody seems to serve this"
                )
            same = (served.bucket, served.prefix) == (mount.bucket, mount.prefix)
            return MountIdentity(
                None if same else False, url(served), f"{wanted} by {carrier_unit(mount)}, which does not run"
            )
        served = parse_command(command_line(node, pid))
        if served is None:
            return MountIdentity(None, entry.source, f"process {pid} of {carrier_unit(mount)} is not mount-s3")
        same = served == Served(mount.bucket, mount.prefix, os.path.normpath(mount.path))
        return MountIdentity(same, url(served), wanted)


class Served(NamedTuple):
    """What a mount-s3 process serves, and where it was told to."""

    bucket: str
    prefix: str
    path: str


def url(served: Served) -> str:
    return f"s3://{served.bucket}/{served.prefix}"


def described(mount: S3Mount) -> str:
    return f"s3://{mount.bucket}/{mount.prefix}"


def command_line(node: Node, pid: int) -> List[str]:
    """The words of a process's command line; empty once it has ended."""
    try:
        return (read_text(node.paths.cmdline(pid)) or "").split("\0")
    except OSError:
        return []


def daemons_at(node: Node, path: str, besides: int = 0) -> Iterator[Served]:
    """What root's processes serve that were started as mount-s3 for this path."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(node.paths.real("/proc"))):
            if not name.isdigit() or int(name) == besides or not process.is_roots(int(name), node.paths.proc):
                continue
            served = parse_command(command_line(node, int(name)))
            if served is not None and served.path == os.path.normpath(path):
                yield served


def parse_command(words: Sequence[str]) -> Optional[Served]:
    """From the command line of a mount-s3 whose last two words are bucket and path; None for anything else."""
    given = [word for word in words if word]
    if len(given) < 3 or not any(os.path.basename(word).startswith("mount-s3") for word in given[:5]):
        return None
    prefix = ""
    for index, word in enumerate(given[:-2]):
        if word == "--prefix":
            prefix = given[index + 1]
        elif word.startswith("--prefix="):
            prefix = word[len("--prefix=") :]
    return Served(given[-2], prefix, os.path.normpath(given[-1]))


KIND = MountpointS3Kind()
