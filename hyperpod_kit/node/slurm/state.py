"""slurmctld's state in a directory of a shared mount: where it is, how it comes to be there.

    <mount>/.hyperpod-kit/<cluster>/slurmctld   StateSaveLocation: SlurmUser's, 0700
    <mount>/.hyperpod-kit/<cluster>/lease       who may run slurmctld on it (lease.py): root's, 0700

<cluster> has the end of the cluster's ARN, so another cluster of the same name never finds this state.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from typing import Optional

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.bounded import in_child
from hyperpod_kit.node.context import Node

DIRECTORY = ".hyperpod-kit"
SECONDS = 60.0
"""That a directory of small files may take to be made or copied."""

HINT = 'the state stays on the controller\'s own disk with "slurm": {"state": "own-disk"}'


@dataclass(frozen=True)
class StateLocation:
    """Where the state is on this controller; `base` as a node names it."""

    mount: Mount
    base: str

    @property
    def state(self) -> str:
        return f"{self.base}/slurmctld"

    @property
    def lease(self) -> str:
        return f"{self.base}/lease"


def place(node: Node) -> Optional[StateLocation]:
    """Where this node's slurmctld has its state on shared storage; None when it has none there, or runs none."""
    if node.facts.role != Role.CONTROLLER or not node.config.slurm_state:
        return None
    mount = node.mount(node.config.slurm_state)
    return StateLocation(mount, base_on(node, mount))


def base_on(node: Node, mount: Mount) -> str:
    """This cluster's own directory on a mount that its nodes share, as a node names it."""
    name = f"{node.config.cluster_name}-{node.facts.cluster}" if node.facts.cluster else node.config.cluster_name
    return f"{mount.path.rstrip('/')}/{DIRECTORY}/{name}"


def make_base(mount: str, base: str) -> None:
    """Make that directory, or find it root's alone. To be called in a child. Raises NodeError."""
    found = os.stat(mount)
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise NodeError(f"{mount} lets everybody rename what lies in it (mode {stat.S_IMODE(found.st_mode):o})")
    for path in (os.path.dirname(base), base):
        make_directory(path, 0o755)


def prepare(node: Node, where: StateLocation, user: str, before: str) -> str:
    """Make the directories, with what the state in `before` (a directory of this controller) holds when there is no
    state yet; what was done, in words. slurmctld must not run. Raises NodeError.
    """
    real = node.paths.real

    def work() -> str:
        return _prepare(
            real(where.mount.path), real(where.base), user, real(before) if before else "", node.facts.instance_id
        )

    try:
        return str(in_child(f"Slurm's state in {where.base}", work, SECONDS))
    except NodeError as err:
        raise NodeError(err.message, hint=HINT) from err


def _prepare(mount: str, base: str, user: str, before: str, instance: str) -> str:
    make_base(mount, base)
    entry = pwd.getpwnam(user)
    make_directory(f"{base}/lease", 0o700)
    state = f"{base}/slurmctld"
    if _is_there(state):
        _check(state, entry.pw_uid)
        return ""
    # Whole or not at all: a copy that was cut off is begun anew. Another controller may be at it in the same moment.
    seed = f"{base}/slurmctld.seed-{instance}"
    shutil.rmtree(seed, ignore_errors=True)
    copied = bool(before) and os.path.exists(f"{before}/job_state")
    if copied:
        shutil.copytree(before, seed)
    else:
        os.mkdir(seed)
    for folder, _, files in os.walk(seed):
        for path in (folder, *(f"{folder}/{name}" for name in files)):
            os.chown(path, entry.pw_uid, entry.pw_gid)
    os.chmod(seed, 0o700)
    try:
        os.rename(seed, state)
    except OSError as err:
        if err.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(seed)  # the other one was faster, and its slurmctld works there already
        _check(state, entry.pw_uid)
        return ""
    return f"Slurm's state is kept in {state} now{f', as it was in {before}' if copied else ''}"


def make_directory(path: str, mode: int) -> None:
    """A directory of root's, made or found so."""
    if not _is_there(path):
        # Another node may make it at the same moment.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
            os.chmod(path, mode)
    _check(path, 0)


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
        return True
    except FileNotFoundError:
        return False


def _check(path: str, uid: int) -> None:
    """Whoever can write there can make slurmctld run anything as anybody. Raises NodeError."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        raise NodeError(
            f"{path} must be a directory of uid {uid} that nobody else may write to; it is of uid "
            f"{found.st_uid}, mode {found.st_mode:o}"
        )
