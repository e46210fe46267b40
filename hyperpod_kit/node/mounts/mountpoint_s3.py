"""Mountpoint for S3: a daemon under systemd; the kernel shows `mountpoint-s3` for every bucket alike.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import Optional, Sequence, Tuple

from hyperpod_kit.model.mounts import S3Mount
from hyperpod_kit.model.units import s3_unit
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_if_different
from hyperpod_kit.node.mounts.kind import Identity
from hyperpod_kit.node.mounts.table import Entry
from hyperpod_kit.node.systemd import properties

SOURCE = "mountpoint-s3"


class MountpointS3:
    """The unit's own process is the endpoint, so a hung one can be killed and started anew."""

    client = "/usr/bin/mount-s3"
    package = "mount-s3 (Mountpoint for Amazon S3)"
    restart_when_hung = True

    def command(self, mount: S3Mount) -> Sequence[str]:
        return ("systemctl", "start", s3_unit(mount))

    def identify(self, node: Node, mount: S3Mount, entry: Entry) -> Identity:
        if entry.source != SOURCE:
            return Identity(False, entry.source, f"expected {described(mount)}, found {entry.fs_type}")
        pid = int(properties(node, s3_unit(mount), ["MainPID"]).get("MainPID") or 0)
        if pid == 0:
            return Identity(None, entry.source, f"{s3_unit(mount)} does not run: served by somebody else, or by nobody")
        try:
            words = (read_text(node.paths.cmdline(pid)) or "").split("\0")
        except OSError:
            words = []
        served = parse_command(words)
        if served is None:
            return Identity(None, entry.source, f"process {pid} of {s3_unit(mount)} is not mount-s3")
        bucket, prefix, path = served
        same = (bucket, prefix, os.path.normpath(path)) == (mount.bucket, mount.prefix, os.path.normpath(mount.path))
        return Identity(same, f"s3://{bucket}/{prefix}", f"expected {described(mount)}")


def described(mount: S3Mount) -> str:
    return f"s3://{mount.bucket}/{mount.prefix}"


def parse_command(words: Sequence[str]) -> Optional[Tuple[str, str, str]]:
    """(bucket, prefix, path) from the command line of a mount-s3 that our unit started; None for anything else."""
    given = [word for word in words if word]
    if len(given) < 3 or not any(os.path.basename(word).startswith("mount-s3") for word in given[:5]):
        return None
    prefix = ""
    for index, word in enumerate(given[:-2]):
        if word == "--prefix":
            prefix = given[index + 1]
        elif word.startswith("--prefix="):
            prefix = word[len("--prefix="):]
    return given[-2], prefix, given[-1]


def other_users_may(node: Node) -> bool:
    """Whether /etc/fuse.conf lets --allow-other work for a daemon that is not root."""
    lines = (read_text(node.paths.fuse_conf) or "").splitlines()
    return any(line.strip() == "user_allow_other" for line in lines)


def allow_other_users(node: Node) -> bool:
    """Put `user_allow_other` into /etc/fuse.conf; True when it was not there."""
    if other_users_may(node):
        return False
    text = read_text(node.paths.fuse_conf) or ""
    joint = "" if not text or text.endswith("\n") else "\n"
    return write_if_different(node.paths.fuse_conf, f"{text}{joint}user_allow_other\n")
