"""slurmctld's state in a directory of a shared mount: where it is, how it comes to be there.

    <mount>/.hyperpod-kit/<cluster>/slurmctld           StateSaveLocation: SlurmUser's, 0700
    <mount>/.hyperpod-kit/<cluster>/slurmctld.next      a newer copy, whole, that is about to take its place
    <mount>/.hyperpod-kit/<cluster>/slurmctld.kept-<t>  a copy that was older, put aside at that time
    <mount>/.hyperpod-kit/<cluster>/lease               who may run slurmctld on it (lease.py): root's, 0700

Of two copies the newer one goes on (saved_state.py), wherever it is. The platform's own place becomes a link to this
one, so that a slurm.conf without our lines leads a slurmctld that reads it anew to the same state.

<cluster> has the end of the cluster's ARN, so another cluster of the same name never finds this state.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
import time
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.slurm_state import StateCopy
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.slurm.saved_state import (
    RunningSlurmctld,
    SavedState,
    choose_state_copy_or_none,
    read_saved_state,
)
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import by_descriptor

DIRECTORY = ".hyperpod-kit"
SECONDS = 60.0
"""That a directory of small files may take to be made or copied."""

KEPT, KEEPS = ".kept-", 10
"""What the name of a copy that was put aside goes on with, and how many of them stay."""

HINT = 'the state stays on the controller\'s own disk with "slurm": {"state": "own-disk"}'


class UndecidedState(NodeError):
    """Two copies of slurmctld's state, and which one is newer only a person can say."""


@dataclass(frozen=True)
class StateLocation:
    """Where the state is on this controller; `base` as a node names it."""

    mount: Mount
    base: str

    @property
    def state(self) -> str:
        """The directory of slurmctld's state, as a node names it."""
        return f"{self.base}/slurmctld"

    @property
    def lease(self) -> str:
        """The directory of the lease, as a node names it."""
        return f"{self.base}/lease"


def shared_state_location(node: Node) -> Optional[StateLocation]:
    """Where this node's slurmctld has its state on shared storage; None when it has none there, or runs none."""
    if node.facts.role != Role.CONTROLLER or not node.config.slurm_state:
        return None
    mount = node.mount(node.config.slurm_state)
    return StateLocation(mount, cluster_directory(node, mount))


def cluster_directory(node: Node, mount: Mount) -> str:
    """This cluster's own directory on a mount that its nodes share, as a node names it."""
    if node.facts.cluster:
        name = f"{node.config.cluster_name}-{node.facts.cluster}"
    else:
        name = node.config.cluster_name
    return f"{mount.path.rstrip('/')}/{DIRECTORY}/{name}"


def ensure_cluster_directory(mount: str, base: str) -> None:
    """Make the cluster's directory on a mount, or find it root's alone. To be called in a child. Raises
    NodeError."""
    status = os.stat(mount)
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise NodeError(f"{mount} lets every user rename its content (mode {stat.S_IMODE(status.st_mode):o})")
    for path in (os.path.dirname(base), base):
        make_or_require_root_directory(path, 0o755)


@dataclass(frozen=True)
class StateDecision:
    """Which copy of slurmctld's state goes on. `comparison`: what each of two copies holds, in words; "" where there is
    one only, or both are the same."""

    choice: StateCopy
    comparison: str


def decide_which_state_copy_goes_on(
    node: Node,
    where: StateLocation,
    local_directory: str,
    *,
    requested: Optional[StateCopy] = None,
    running: Optional[RunningSlurmctld] = None,
) -> StateDecision:
    """Which copy goes on: the shared one, or that in `local_directory` (a directory of this controller, "" for none).

    `requested`: what a person has chosen; `running`: the slurmctld that runs, or ran until it was stopped for this.
    Raises UndecidedState where their ages cannot be compared, NodeError.
    """
    base, before = node.paths.under_root(where.base), ""
    if local_directory:
        before = node.paths.under_root(local_directory)

    def work() -> List[Optional[Dict[str, Any]]]:
        states = _read_shared_state(base), _read_local_state(base, before)
        return [asdict(saved) if saved else None for saved in states]

    shared, local = (SavedState(**raw) if raw else None for raw in call_in_child(_description(where), work, SECONDS))
    if requested is not None:
        if requested == StateCopy.LOCAL and local is None:
            raise NodeError(f"slurmctld has saved no state in {local_directory or 'a directory of this machine'}")
        return StateDecision(requested, "")
    created = not os.path.exists(node.paths.apply_status)
    choice = choose_state_copy_or_none(shared, local, node.clock.wall(), is_new_controller=created, running=running)
    if shared is None or local is None or shared.digest == local.digest:
        assert choice is not None, "a single copy is chosen"
        return StateDecision(choice, "")
    both = f"shared is {shared.describe()}; own is {local.describe()}"
    if choice is None:
        raise UndecidedState(
            f"neither of the two copies of Slurm's state is clearly newer: {both}",
            hint="`hyperpod-kit node apply --slurm-state shared`, or `own`: Slurm loses the jobs that only the other "
            "copy has, and the other directory is set aside",
        )
    return StateDecision(choice, f"of the two copies of Slurm's state, `{choice.value}` is used: {both}")


def make_chosen_copy_the_shared_one(
    node: Node, where: StateLocation, user: str, local_directory: str, choice: StateCopy
) -> str:
    """Make the directories, and let the chosen copy be the shared one; what was done, in words.

    No slurmctld must work on either of them. Raises NodeError.
    """
    real = node.paths.under_root

    def work() -> str:
        return _make_chosen_copy_shared_in_child(
            real(where.mount.path),
            real(where.base),
            user,
            real(local_directory) if local_directory else "",
            node.facts.instance_id or node.facts.node,
            choice,
            node.clock.wall(),
        )

    try:
        return str(call_in_child(_description(where), work, SECONDS))
    except NodeError as err:
        raise NodeError(err.message, hint=HINT) from err


def make_state_directories(node: Node, where: StateLocation) -> None:
    """Make this cluster's directory and that of its lease, or find them root's alone. Raises NodeError."""
    mount, base = node.paths.under_root(where.mount.path), node.paths.under_root(where.base)
    call_in_child(_description(where), lambda: _make_state_directories(mount, base), SECONDS)


def _make_state_directories(mount: str, base: str) -> None:
    ensure_cluster_directory(mount, base)
    make_or_require_root_directory(f"{base}/lease", 0o700)


def has_saved_state(node: Node, where: StateLocation) -> bool:
    """Whether slurmctld has ever saved a state there. Raises NodeError."""
    base = node.paths.under_root(where.base)
    return bool(call_in_child(_description(where), lambda: _read_shared_state(base) is not None, SECONDS))


def _description(where: StateLocation) -> str:
    return f"Slurm's state in {where.base}"


def _read_shared_state(base: str) -> Optional[SavedState]:
    """Read what is in the shared directory, or is about to be (see `_replace_state_with_seed`)."""
    state = f"{base}/slurmctld"
    if _exists(state):
        return read_saved_state(state)
    return read_saved_state(f"{base}/slurmctld.next")


def _read_local_state(base: str, local_directory: str) -> Optional[SavedState]:
    """What the controller's own directory holds, if that is another one."""
    if not local_directory or os.path.realpath(local_directory) == os.path.realpath(f"{base}/slurmctld"):
        return None
    return read_saved_state(local_directory)


def _make_chosen_copy_shared_in_child(
    mount: str, base: str, user: str, local_directory: str, machine: str, choice: StateCopy, now: float
) -> str:
    _make_state_directories(mount, base)
    entry = pwd.getpwnam(user)
    state, following = f"{base}/slurmctld", f"{base}/slurmctld.next"
    if _exists(following) and not _exists(state):
        by_descriptor.rename(following, state)  # an exchange that was cut off between its two renames
    if _exists(state):
        _require_directory_only_owner_writes(state, entry.pw_uid)
        if choice == StateCopy.SHARED or _read_local_state(base, local_directory) is None:
            return ""
        return _replace_state_with_seed(
            base, local_directory, _copy_state_to_seed_directory(base, local_directory, entry, machine), now
        )
    origin = ""
    if _read_local_state(base, local_directory):
        origin = local_directory
    seed = _copy_state_to_seed_directory(base, origin, entry, machine)
    try:
        by_descriptor.rename(seed, state)
    except OSError as err:
        if err.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        by_descriptor.remove_tree(seed)  # the other one was faster, and its slurmctld works there already
        _require_directory_only_owner_writes(state, entry.pw_uid)
        return ""
    origin = ""
    if _read_local_state(base, local_directory):
        origin = f", as it was in {local_directory}"
    return f"Slurm's state is now kept in {state}{origin}"


def _copy_state_to_seed_directory(base: str, local_directory: str, user: pwd.struct_passwd, machine: str) -> str:
    """Make a directory beside the state with a complete copy of `local_directory`, or empty, and return its
    path: one that was cut off is begun anew."""
    seed = f"{base}/slurmctld.seed-{machine}"  # another controller may be at it in the same moment
    copy_state(local_directory, seed, user)
    return seed


def copy_state(source: str, target: str, user: pwd.struct_passwd) -> None:
    """Make `target` a complete copy of the directory `source`, or empty where that is "", of SlurmUser alone and on
    disk; what lay there is deleted. slurmctld must not work on either."""
    by_descriptor.remove_tree(target, ignore_errors=True)
    if source:
        by_descriptor.copy_tree(source, target)
    else:
        by_descriptor.make_directory(target)
    for folder, _, files in os.walk(target):
        for path in (folder, *(f"{folder}/{name}" for name in files)):
            by_descriptor.set_owner(path, user.pw_uid, user.pw_gid)
    by_descriptor.set_mode(target, 0o700)
    for entry in os.scandir(target):
        if entry.is_file(follow_symlinks=False):
            _fsync_path(entry.path)
    _fsync_path(target)


def _replace_state_with_seed(base: str, local_directory: str, seed: str, now: float) -> str:
    """Put the state aside and the seed in its place. Whenever this is cut off, the next run goes on to the same end."""
    state, following = f"{base}/slurmctld", f"{base}/slurmctld.next"
    if _exists(following):
        by_descriptor.remove_tree(following)  # older than the seed, which was copied just now
    by_descriptor.rename(seed, following)
    _fsync_path(base)
    kept = unused_set_aside_path(state, now)
    by_descriptor.rename(state, kept)
    by_descriptor.rename(following, state)
    _fsync_path(base)
    remove_oldest_set_aside_copies(state, kept)
    return f"Slurm's state in {state} is now that of {local_directory}; its previous content is kept in {kept}"


def unused_set_aside_path(path: str, now: float) -> str:
    """Return an unused path beside `path` for a copy that is put aside."""
    first = f"{path}{KEPT}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
    name, number = first, 1
    while _exists(name):
        number += 1
        name = f"{first}-{number:03d}"
    return name


def remove_oldest_set_aside_copies(path: str, kept: str) -> None:
    """Delete the copies that were put aside from `path`, but for the newest KEEPS, and `kept` whatever the
    clock said."""
    folder, prefix = os.path.dirname(path), os.path.basename(path) + KEPT
    copies = sorted(name for name in os.listdir(folder) if name.startswith(prefix) and name != os.path.basename(kept))
    for name in copies[: -(KEEPS - 1)]:
        by_descriptor.remove_tree(f"{folder}/{name}", ignore_errors=True)


def _fsync_path(path: str) -> None:
    """Flush a file or a directory to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_or_require_root_directory(path: str, mode: int) -> None:
    """Make a directory of root's, or find it so. Raises NodeError."""
    if not _exists(path):
        # Another node may make it at the same moment.
        with contextlib.suppress(FileExistsError):
            by_descriptor.make_directory(path, mode)
            by_descriptor.set_mode(path, mode)
    _require_directory_only_owner_writes(path, 0)


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
        return True
    except FileNotFoundError:
        return False


def _require_directory_only_owner_writes(path: str, uid: int) -> None:
    """Raise NodeError unless `path` is a directory of `uid` that nobody else may write to: whoever can write
    there can make slurmctld run anything as anybody."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid or status.st_mode & 0o022:
        raise NodeError(
            f"{path} must be a directory of uid {uid} that nobody else may write to; it is of uid "
            f"{status.st_uid}, mode {status.st_mode:o}"
        )
