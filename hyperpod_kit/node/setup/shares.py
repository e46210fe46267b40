"""Directories of groups on mounts of the cluster; model/shares.py says what they are.

Every node makes them, and the first one that comes does. What is there already and belongs to somebody else stays as it
is, with an error.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import stat
from functools import partial
from typing import Iterator, List, Tuple

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.shares import ARCHIVE_MODE, SHARE_MODE, Group, share_path
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.observe.check import check_mount
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import by_descriptor

SECONDS = 30.0
"""Longest that a directory may take: a file system may begin to hang at any moment."""


def share_groups_with_mounts(node: Node) -> Iterator[Tuple[Group, Mount]]:
    """Each group with each mount of this node on which it has a directory."""
    mounts = {mount.name: mount for mount in node.mounts}
    for group in node.config.groups:
        for name in group.mounts:
            if name in mounts:
                yield group, mounts[name]


def ensure_shares_on_serving_mounts(node: Node) -> List[str]:
    """Make and mend the directories; returns what was changed, in words. A mount that does not serve is passed over:
    the next node, or the next `node apply`, does it. Raises NodeError naming all failures."""
    done, failed = [], []
    for group, mount in share_groups_with_mounts(node):
        path = share_path(mount.path, group.name)
        if not check_mount(node, mount).healthy:
            continue
        try:
            if call_in_child(path, partial(ensure_share_directory, node.paths.under_root(path), group), SECONDS):
                done.append(path)
        except NodeError as err:
            failed.append(err.message)
    if failed:
        raise NodeError("; ".join(failed), hint="move what is in the way, then: hyperpod-kit node apply")
    return done


def describe_pending_changes(node: Node) -> str:
    """What `ensure_shares_on_serving_mounts` would change now, in words, on mounts that serve."""
    paths = []
    for group, mount in share_groups_with_mounts(node):
        path = share_path(mount.path, group.name)
        if check_mount(node, mount).healthy and not call_in_child(
            path, partial(is_share_directory_correct, node.paths.under_root(path), group), SECONDS
        ):
            paths.append(path)
    return ", ".join(paths)


def is_share_directory_correct(path: str, group: Group) -> bool:
    """Whether the directory is the group's, or nobody's once it is archived."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and _owner_and_mode(status) == (0, group.directory_gid, group.directory_mode)


def ensure_share_directory(path: str, group: Group) -> bool:
    """Make the group's directory with its owner and mode, or correct them; return whether something was
    changed. From its first moment on it is never more open than in the end. Raises NodeError when something
    else is there, OSError."""
    if is_share_directory_correct(path, group):
        return False
    with contextlib.suppress(FileExistsError):
        by_descriptor.make_directory(path, ARCHIVE_MODE)
    # Opened, not named again: where its parent is open to others, one of them may put something else in its place.
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = _owner_and_mode(os.fstat(handle))
        allowed = {(0, 0, ARCHIVE_MODE), (0, group.gid, ARCHIVE_MODE), (0, group.gid, SHARE_MODE)}
        # What was made a moment ago may have been given a group by its parent.
        empty = owner[0] == 0 and not os.listdir(handle)
        if owner not in allowed and owner[:2] != (0, group.gid) and not empty:
            raise NodeError(f"{path} already exists, of {owner[0]}:{owner[1]} with mode {owner[2]:o}")
        os.fchmod(handle, ARCHIVE_MODE)
        os.fchown(handle, 0, group.directory_gid)
        os.fchmod(handle, group.directory_mode)
    finally:
        os.close(handle)
    return True


def _owner_and_mode(status: os.stat_result) -> Tuple[int, int, int]:
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def _apply_shares(node: Node) -> StepOutcome:
    done = ensure_shares_on_serving_mounts(node)
    if not done:
        return StepOutcome()
    return StepOutcome(True, f"made {', '.join(done)}")


STEP = Step("shares", _apply_shares, describe_pending_changes)
