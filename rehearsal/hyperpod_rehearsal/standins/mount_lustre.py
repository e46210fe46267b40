"""mount.lustre of a rehearsal: mount -t lustre -o noatime,flock DNS@tcp:/MOUNTNAME /fsx

registry.json in the data directory says which file systems exist: {MOUNTNAME: {"dns": NAME, "ip": ADDRESS}}.
"""

from __future__ import annotations

import os
import re
from typing import Sequence

from hyperpod_rehearsal.standins.fuse.arguments import (
    data_directory,
    parse_mount_arguments,
    read_file_system_registry,
    run_mount_helper,
    unknown_options,
)
from hyperpod_rehearsal.standins.fuse.background import StartFailed
from hyperpod_rehearsal.standins.passthrough.start import serve_directory_as_fuse_mount

VERSION = "mount.lustre 2.15.0+standin (hyperpod-kit rehearsal stand-in, not the Lustre client)"
SUPPORTED_OPTIONS = (
    "noatime",
    "atime",
    "relatime",
    "flock",
    "localflock",
    "noflock",
    "ro",
    "user_xattr",
    "nouser_xattr",
    "lazystatfs",
    "nolazystatfs",
    "verbose",
    "noverbose",
)
SOURCE = re.compile(r"([^@/:]+)@tcp[0-9]*:/([A-Za-z0-9_-]{1,8})/?")


def main(argv: Sequence[str]) -> int:
    """Run mount.lustre and return its exit code."""
    return run_mount_helper(argv, VERSION, _mount_from_arguments, ("-V", "--version"))


def _mount_from_arguments(argv: Sequence[str]) -> int:
    positional, options = parse_mount_arguments(argv)
    if len(positional) != 2:
        raise StartFailed("usage: mount.lustre [-fhnvV] [-o <mount options>] <device> <mountpt>", 22)
    source, target = positional
    match = SOURCE.fullmatch(source)
    if match is None:
        raise StartFailed(f"mount.lustre: {source} has an unknown format", 22)
    unsupported = unknown_options(options, SUPPORTED_OPTIONS)
    if unsupported:
        raise StartFailed(
            f"mount.lustre: mount {source} at {target} failed: Invalid argument\n"
            f"This may have multiple causes.\nIs the option '{unsupported[0]}' known?",
            22,
        )
    server, name = match[1], match[2]
    file_system = read_file_system_registry("fsx").get(name)
    if file_system is None or server not in (file_system["dns"], file_system["ip"]):
        raise StartFailed(
            f"mount.lustre: mount {source} at {target} failed: No such file or directory\n"
            f"Is the MGS specification correct?\nIs the filesystem name correct?",
            2,
        )
    if not os.path.isdir(target):
        raise StartFailed(f"mount.lustre: {target} inaccessible: No such file or directory", 1)
    return serve_directory_as_fuse_mount(
        os.path.join(data_directory("fsx"), name),
        target,
        program="mount.lustre",
        source=f"{file_system['ip']}@tcp:/{name}",
        subtype="lustre",
        read_only="ro" in options,
        no_atime="noatime" in options,
    )
