"""What a mount over the directory of home directories would hide: carried over to it, once for the whole cluster.

The image's own user has its home and its ssh keys at /home/ubuntu; an FSx mount at /home would lock everybody out who
logs in with them. Where HyperPod makes that mount, HyperPod sees to it.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
from typing import List, NamedTuple

from hyperpod_kit.errors import MountFailed, RunError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text
from hyperpod_kit.untrusted import by_descriptor

ORDINARY = range(1000, 60001)
"""User ids of people; those of daemons have their homes elsewhere."""


class Home(NamedTuple):
    """The home directory of an account of this node."""

    path: str
    uid: int
    gid: int


def local_account_homes_in(node: Node, path: str) -> List[Home]:
    """Home directories of this node's own ordinary accounts that lie directly in `path`."""
    # The file and not getent: a directory service's accounts have no home on this disk.
    text = read_text(node.paths.under_root("/etc/passwd")) or ""
    accounts = [line.split(":") for line in text.splitlines() if line.count(":") == 6]
    return [
        Home(fields[5], int(fields[2]), int(fields[3]))
        for fields in accounts
        if fields[2].isdigit() and int(fields[2]) in ORDINARY and os.path.dirname(fields[5]) == path
    ]


def homes_missing_on_mount(node: Node, mount: Mount) -> List[Home]:
    """Return the local home directories that belong on the mount and are not there. Only for a mount that
    answers."""
    if mount.platform or not mount.traits.carries_homes:
        return []
    homes = local_account_homes_in(node, mount.path)
    # A command, because a file system may begin to hang at any moment.
    present = []
    if homes:
        present = node.runner.run(["ls", "-A", node.paths.under_root(mount.path)], timeout=30).stdout.split("\n")
    return [home for home in homes if os.path.basename(home.path) not in present]


def copy_homes_missing_on_mount(node: Node, mount: Mount) -> List[str]:
    """Make each missing home on the mount, from what lies beneath it, and return those that were made. Raises
    MountFailed."""
    missing = homes_missing_on_mount(node, mount)
    if not missing:
        return []
    view = f"/run/hyperpod-kit/beneath/{mount.name}"
    by_descriptor.make_directories(node.paths.under_root(view))
    try:
        # A non-recursive bind mount of / shows the directories that other mounts hide.
        node.runner.run(["mount", "--bind", "/", view], timeout=30)
        try:
            return [home.path for home in missing if _copy_home(node, node.paths.under_root(view), home)]
        finally:
            node.runner.run(["umount", view], timeout=30)
    except RunError as err:
        raise MountFailed(
            f"{mount.name}: the homes beneath {mount.path} cannot be copied to it: {err.message}",
            hint="does its export squash root? FSx for OpenZFS: no_root_squash",
        ) from err


def _copy_home(node: Node, view: str, home: Home) -> bool:
    target = node.paths.under_root(home.path)
    folder, name = os.path.split(target)
    prefix = f".{name}.{node.facts.node}."
    # What an earlier try of this node left.
    node.runner.run(
        ["find", folder, "-maxdepth", "1", "-name", f"{prefix}*.partial", "-exec", "rm", "-rf", "{}", "+"], timeout=120
    )
    # Everybody may be able to write beside it: nobody knows its name before it is there, and nobody passes it then.
    partial = f"{folder}/{prefix}{os.urandom(8).hex()}.partial"
    new_home = f"{partial}/home"
    try:
        by_descriptor.make_directory(partial, 0o700)
        if os.path.isdir(view + home.path):
            node.runner.run(["cp", "--archive", "--one-file-system", view + home.path, new_home], timeout=300)
        else:
            by_descriptor.make_directory(new_home, 0o700)
            node.runner.run(["chown", f"{home.uid}:{home.gid}", new_home], timeout=30)
        by_descriptor.rename(new_home, target)
        return True
    except OSError as err:
        if err.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise MountFailed(f"{home.path}: {err.strerror}") from err
        return False  # another node was first, and its users may have written already
    finally:
        node.runner.run(["rm", "-rf", partial], timeout=120, check=False)
