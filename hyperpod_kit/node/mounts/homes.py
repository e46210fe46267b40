"""Homes on shared storage: a private parent directory around each mount, a link to it, and a first set of files.

model/homes.py says where everything lies, and why the private parent and not the mount keeps others out;
packet_rules.py closes the other way in.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import List, Optional, Tuple

from hyperpod_kit.errors import HyperpodKitError, NodeError
from hyperpod_kit.model.homes import PRIVATE_PARENT_MODE, home_path_of_mount, private_parent_of
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.node_config import User
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.observe.check import check_mount
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.untrusted import by_descriptor

SKELETON = "/etc/skel"
ABOVE_MODE = 0o711
"""Of the directory of all private parents: passed by everyone, listed by root alone."""


def home_mounts(node: Node) -> Tuple[Mount, ...]:
    """The mounts of this node that are somebody's home."""
    return tuple(mount for mount in node.mounts if mount.owner)


def expected_passwd_home_if_on_mount(node: Node, user: User) -> Optional[str]:
    """Return the home that /etc/passwd must name for a user whose home is a mount of this node; None for all
    others."""
    return next((home_path_of_mount(mount.path) for mount in home_mounts(node) if mount.owner == user.name), None)


def set_packet_rules_and_make_mount_point(node: Node, mount: Mount) -> None:
    """Make the directory that `mount` goes to, a home's within its private parent; for NFS, set the packet
    rules first. Raises NodeError."""
    point = node.paths.under_root(mount.path)
    if mount.traits.nfs:
        try:
            packet_rules.ensure_rules_and_reserve_ports(node)
        except NodeError:
            if mount.owner:
                raise
            # Of the others, nosuid and nodev keep at least root's programs away, and reports tell of it.
    if mount.owner:
        ensure_private_parent(node, mount)
        # root's: while nothing is mounted there, nobody may fill the directory beneath.
        with contextlib.suppress(FileExistsError):
            by_descriptor.make_directory(point, 0o700)
    by_descriptor.make_directories(point, 0o755, shared=True)


def ensure_private_parent(node: Node, mount: Mount) -> bool:
    """Create or repair the directory that only the owner of `mount` passes; True when it was not right. Raises
    NodeError.

    From its first moment on it is never more open than in the end.
    """
    path = private_parent_of(mount.path)
    above = os.path.dirname(path)
    by_descriptor.make_directories(node.paths.under_root(os.path.dirname(above)))
    changed = _ensure_root_directory_with(node, above, 0, ABOVE_MODE)
    return _ensure_root_directory_with(node, path, _require_owner_user(node, mount).gid, PRIVATE_PARENT_MODE) or changed


def has_private_parent(node: Node, mount: Mount) -> bool:
    """Return whether the directories above the mount let nobody but its owner and root pass."""
    path = private_parent_of(mount.path)
    gid = _require_owner_user(node, mount).gid
    return _is_root_directory_with(node, os.path.dirname(path), 0, ABOVE_MODE) and _is_root_directory_with(
        node, path, gid, PRIVATE_PARENT_MODE
    )


def ensure_homes(node: Node) -> List[str]:
    """Make private parents, links and first files of all homes; return what was changed, in words.

    A home that is not mounted gets its private parent and its link: the mount may come back later. Raises
    NodeError naming all failures.
    """
    done, failed = [], []
    for mount in home_mounts(node):
        try:
            changes = [
                change
                for change, changed in (
                    ("private parent", ensure_private_parent(node, mount)),
                    ("link", _ensure_home_link(node, mount)),
                    ("first files", _copy_skeleton_into_empty_home(node, mount)),
                )
                if changed
            ]
        except HyperpodKitError as err:
            failed.append(err.message)
            continue
        if changes:
            done.append(f"{mount.owner}: {', '.join(changes)}")
    if failed:
        raise NodeError("; ".join(failed), hint="move what is in the way, then: hyperpod-kit node apply")
    return done


def describe_pending_changes(node: Node) -> str:
    """What `ensure_homes` would change now, in words, but for the first files of homes that are not mounted yet."""
    changes: List[str] = []
    for mount in home_mounts(node):
        if not has_private_parent(node, mount):
            changes.append(f"private parent of {mount.owner}")
        if _home_link_target(node, mount) != _expected_home_link_target(mount):
            changes.append(f"link {home_path_of_mount(mount.path)}")
    return ", ".join(changes)


def _require_owner_user(node: Node, mount: Mount) -> User:
    for user in node.config.users:
        if user.name == mount.owner:
            return user
    raise NodeError(
        f"{mount.name}: its owner {mount.owner} is not a user of this cluster",
        hint="hyperpod-kit upload with the same version",
    )


def _is_root_directory_with(node: Node, path: str, gid: int, mode: int) -> bool:
    try:
        status = os.lstat(node.paths.under_root(path))
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (
        0,
        gid,
        mode,
    )


def _ensure_root_directory_with(node: Node, path: str, gid: int, mode: int) -> bool:
    if _is_root_directory_with(node, path, gid, mode):
        return False
    real = node.paths.under_root(path)
    with contextlib.suppress(FileExistsError):
        by_descriptor.make_directory(real, 0o700)
    if not stat.S_ISDIR(os.lstat(real).st_mode):
        raise NodeError(f"{path} protects a home and must be a directory, but is not one", hint=f"ls -ld {path}")
    node.runner.run(["chown", "--no-dereference", f"0:{gid}", real], timeout=30)
    by_descriptor.set_mode(real, mode)
    return True


def _expected_home_link_target(mount: Mount) -> str:
    """Relative, so that it leads to the same place where the homes are bound into a container."""
    return os.path.relpath(mount.path, os.path.dirname(home_path_of_mount(mount.path)))


def _home_link_target(node: Node, mount: Mount) -> Optional[str]:
    try:
        return os.readlink(node.paths.under_root(home_path_of_mount(mount.path)))
    except OSError:
        return None


def _ensure_home_link(node: Node, mount: Mount) -> bool:
    if _home_link_target(node, mount) == _expected_home_link_target(mount):
        return False
    home = home_path_of_mount(mount.path)
    real = node.paths.under_root(home)
    with contextlib.suppress(OSError):
        by_descriptor.remove_directory(real)  # an empty directory hides nothing
    try:
        by_descriptor.symlink(_expected_home_link_target(mount), real)
    except FileExistsError:
        raise NodeError(
            f"{home} already exists and is not the home of {mount.owner} on {mount.source_field_values()[0]}",
            hint=f"ls -la {home}",
        ) from None
    return True


def _copy_skeleton_into_empty_home(node: Node, mount: Mount) -> bool:
    """Copy the skeleton into an empty home: as root, whom the file system takes for the owner, as it does everyone.

    Commands with a deadline, because a file system may begin to hang at any moment.
    """
    skeleton, home = node.paths.under_root(SKELETON), node.paths.under_root(mount.path)
    if not check_mount(node, mount).healthy or not os.path.isdir(skeleton):
        return False
    anything = ["find", home, "-mindepth", "1", "-print", "-quit"]
    if node.runner.run(anything, timeout=30).stdout:
        return False
    # Another node may fill it at the same moment: whatever is there then is left as it is.
    node.runner.run(["cp", "--recursive", "--no-clobber", f"{skeleton}/.", home], timeout=60, check=False)
    return bool(node.runner.run(anything, timeout=30).stdout)


def _apply_homes(node: Node) -> StepOutcome:
    done = ensure_homes(node)
    return StepOutcome(bool(done), "; ".join(done))


STEP = Step("homes", _apply_homes, describe_pending_changes)
