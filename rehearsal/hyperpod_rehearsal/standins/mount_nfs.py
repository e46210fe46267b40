"""mount.nfs of a rehearsal: mount -t nfs -o nfsvers=4.2,nconnect=16 fs-....fsx.us-east-1.amazonaws.com:/fsx /home

What FSx for OpenZFS exports, as far as a mount's life goes. On a real node the kernel is the NFS client and no process
serves the mount; here one does. registry.json in the data directory: {DNS NAME: {"exports": ["/fsx"]}}.
"""

from __future__ import annotations

import os
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

VERSION = "mount.nfs: (linux nfs-utils 2.6.2+standin; hyperpod-kit rehearsal stand-in, no NFS)"
SUPPORTED_OPTIONS = (
    "nfsvers",
    "vers",
    "minorversion",
    "nconnect",
    "max_connect",
    "hard",
    "soft",
    "softerr",
    "timeo",
    "retrans",
    "rsize",
    "wsize",
    "proto",
    "port",
    "sec",
    "noresvport",
    "resvport",
    "nolock",
    "lock",
    "noatime",
    "relatime",
    "nodiratime",
    "ro",
    "bg",
    "fg",
    "retry",
    "actimeo",
    "acregmin",
    "acregmax",
    "acdirmin",
    "acdirmax",
    "noac",
    "lookupcache",
    "cto",
    "nocto",
    "intr",
    "nointr",
    "local_lock",
    "clientaddr",
    "xprtsec",
)
VERSIONS = ("3", "4", "4.0", "4.1", "4.2")


def main(argv: Sequence[str]) -> int:
    """Run mount.nfs and return its exit code."""
    return run_mount_helper(argv, VERSION, _mount_from_arguments, ("-V", "--version"))


def _mount_from_arguments(argv: Sequence[str]) -> int:
    positional, options = parse_mount_arguments(argv)
    if len(positional) != 2:
        raise StartFailed("usage: mount.nfs remotetarget dir [-rvVwfnsh] [-o nfsoptions]")
    source, target = positional
    server, colon, export = source.partition(":")
    if not colon or not export.startswith("/"):
        raise StartFailed(f"mount.nfs: remote share not in 'host:dir' format: {source}")
    unsupported = unknown_options(options, SUPPORTED_OPTIONS)
    version = options.get("nfsvers") or options.get("vers") or "4.2"
    connections = options.get("nconnect", "1")
    if unsupported or version not in VERSIONS or not connections.isdigit() or not 1 <= int(connections) <= 16:
        raise StartFailed(
            "mount.nfs: an incorrect mount option was specified"
            f" ({unsupported[0] if unsupported else f'nfsvers={version},nconnect={connections}'})",
            32,
        )
    file_system = read_file_system_registry("openzfs").get(server)
    if file_system is None:
        raise StartFailed(f"mount.nfs: Failed to resolve server {server}: Name or service not known", 32)
    if export not in file_system["exports"]:
        raise StartFailed(f"mount.nfs: mounting {source} failed, reason given by server: No such file or directory", 32)
    if not os.path.isdir(target):
        raise StartFailed(f"mount.nfs: mount point {target} does not exist", 32)
    directory = os.path.join(data_directory("openzfs"), server.split(".")[0], export.strip("/"))
    return serve_directory_as_fuse_mount(
        directory,
        target,
        program="mount.nfs",
        source=source,
        subtype="nfs4",
        read_only="ro" in options,
        no_atime="noatime" in options,
    )
