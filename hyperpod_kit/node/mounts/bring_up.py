"""Bring a mount up through its unit: what creation does, so that a reboot does the same.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit import audit
from hyperpod_kit.errors import MountFailed, RunError
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.base import PROTECTED, Mount
from hyperpod_kit.model.states import MOUNTED, OCCUPIED
from hyperpod_kit.model.units import carrier_unit
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, write_json
from hyperpod_kit.node.machine.step import MountStep, StepOutcome
from hyperpod_kit.node.mounts import remove_stale
from hyperpod_kit.node.mounts.ensure import await_mounted_or_raise
from hyperpod_kit.node.mounts.kinds.mount_record import read_record
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.mounts.protect import missing_protective_flags, try_set_protective_flags
from hyperpod_kit.node.observe.check import check_mount
from hyperpod_kit.system.mountinfo import find_mount_at
from hyperpod_kit.untrusted import by_descriptor

BATCH = 16
"""Mounts that are made at the same time: as many helpers, each with its TLS handshake, as a small node bears."""


@dataclass(frozen=True)
class MountPlan:
    """What is seen of a mount, and what has to be done to its unit: verb of systemctl, "" when it runs and serves;
    outdated: it is a daemon of ours with another bucket or other options. Nobody else's is ever stopped."""

    status: MountStatus
    verb: str
    outdated: bool


def plan_unit_verb(node: Node, mount: Mount, unit_text: str) -> MountPlan:
    """Check the mount, and decide what `bring_up` does. unit_text: the text that the mount's unit
    has, or will have once the units are installed.

    Raises MountFailed when something lives at the path that starting a unit would not change.
    """
    status = check_mount(node, mount)
    running = systemd.is_active(node, carrier_unit(mount))
    outdated = (
        running and mount.traits.service.daemon and not was_started_with_unit_or_unrecorded(node, mount, unit_text)
    )
    if status.state in OCCUPIED and not outdated:
        raise MountFailed(
            f"{mount.path} is {status.state} ({status.source}): {status.detail}",
            hint=f"on the node: findmnt {mount.path}; or hyperpod-kit replace-node {node.facts.node}",
        )
    serves = status.state in MOUNTED and running and not outdated
    if serves:
        verb = ""
    elif running:
        verb = "restart"
    else:
        verb = "start"
    return MountPlan(status, verb, outdated)


def start_unit_protect_and_copy_homes(node: Node, mount: Mount) -> Tuple[bool, str]:
    """Start the mount's unit unless it runs and serves, wait until the mount answers, set its protective
    flags, and copy the homes that it hides; return (changed, what is mounted).

    Raises MountFailed with the last error of whatever failed, or as `plan_unit_verb`.
    """
    if carrier_unit(mount) in node.starting_units:
        # Not looked at before its start has ended: half made it looks like somebody else's.
        return _start_protect_and_copy_homes(node, mount, "start")
    mount_plan = plan_unit_verb(node, mount, _installed_unit_text(node, mount))
    if not mount_plan.verb:
        protected = try_set_protective_flags(node, mount)
        carried = copy_homes_missing_on_mount(node, mount)
        parts = [mount_plan.status.source, mount_plan.status.detail]
        if was_mounted_with_other_options(node, mount):
            parts.append("its new options apply from the next mount on")
        parts.extend(carried)
        if protected:
            parts.append(f"{' and '.join(PROTECTED)} set")
        return bool(carried) or protected, "; ".join(part for part in parts if part)
    if mount_plan.verb == "restart":
        reason = f"{mount.path} was {mount_plan.status.state}"
        if mount_plan.outdated:
            reason = "its bucket or its options changed"
        audit.record_root_action_in_journal(
            "restarted", carrier_unit(mount), reason, asked_by="node apply", owner=mount.owner or ""
        )
    return _start_protect_and_copy_homes(node, mount, mount_plan.verb)


def _start_protect_and_copy_homes(node: Node, mount: Mount, verb: str) -> Tuple[bool, str]:
    """Return (True, what is mounted). Raises MountFailed."""
    source = _start_unit_await_mount_and_record(node, mount, verb)
    try_set_protective_flags(node, mount)
    copy_homes_missing_on_mount(node, mount)
    return True, source


def describe_pending_changes(node: Node, mount: Mount) -> str:
    """Return what `bring_up` would do now, in words; "" when nothing. Raises MountFailed as it
    would."""
    # Compare with the unit in the bundle: in a dry run it is not installed yet.
    mount_plan = plan_unit_verb(node, mount, systemd.read_bundled_unit(node, carrier_unit(mount)))
    if mount_plan.verb:
        return f"{mount_plan.verb} {carrier_unit(mount)}"
    missing = [home.path for home in homes_missing_on_mount(node, mount)]
    parts = []
    if missing_protective_flags(node, mount):
        parts.append(f"set {' and '.join(missing_protective_flags(node, mount))}")
    if missing:
        parts.append(f"make {', '.join(missing)}")
    return "; ".join(part for part in parts if part)


def _start_unit_await_mount_and_record(node: Node, mount: Mount, verb: str) -> str:
    """Return what is mounted. Raises MountFailed."""
    unit = carrier_unit(mount)
    error: Optional[str] = None
    if unit in node.starting_units and systemd.has_failed(node, unit):
        error = systemd.last_log_line(node, unit) or f"{unit} has failed"
    else:
        error = _run_systemctl(node, verb, unit)
    # The daemon's unit goes on trying by itself, the one-shot has tried for long enough.
    seconds = 0.0
    if error is None or mount.traits.service.daemon:
        seconds = 60.0
    try:
        status = await_mounted_or_raise(node, mount, seconds=seconds)
    except MountFailed as err:
        kind = kind_of(mount)
        if not os.path.exists(node.paths.under_root(kind.program)):
            raise MountFailed(
                f"{kind.program} is not installed on this node",
                hint=f"list {kind.package} under hyperpod_kit.clients, or use another image",
            ) from err
        raise MountFailed(error or err.message, hint=f"on the node: journalctl -u {unit}") from err
    write_json(node.paths.started_unit_text_record(mount.name), {"unit": installed_unit_digest(node, mount)})
    return status.source


def _run_systemctl(node: Node, verb: str, unit: str) -> Optional[str]:
    """Start or restart a unit and wait for it; return what failed."""
    try:
        node.runner.run(["systemctl", verb, unit], timeout=260)
    except RunError as err:
        return systemd.last_log_line(node, unit) or err.message
    return None


def start_units_of_next_mounts(node: Node, name: str) -> None:
    """Order systemd to start the units of this mount and of the next ones, and wait for none of them.

    Each mount's own step waits for its unit. At a boot systemd starts all of them at the same time, too. Where a unit
    runs already or something is mounted at the path, nothing is ordered.
    """
    mounts = [mount for mount in node.mounts if carrier_unit(mount) not in node.starting_units]
    names = [mount.name for mount in mounts]
    if name not in names:
        return
    first = names.index(name)
    mountinfo = read_text(node.paths.mountinfo) or ""
    absent = [mount for mount in mounts[first : first + BATCH] if find_mount_at(mountinfo, mount.path) is None]
    units = systemd.filter_inactive(node, [carrier_unit(mount) for mount in absent])
    if len(units) < 2:
        return
    node.runner.run(["systemctl", "start", "--no-block", *units], timeout=30, check=False)
    node.starting_units.update(units)


def was_mounted_with_other_options(node: Node, mount: Mount) -> bool:
    """Whether the mount was made with another command than the configuration asks for now.

    It is not torn down for that: whoever works in it would lose it.
    """
    record = read_record(node, mount)
    if record is None or not record.command:
        return False
    command, requested = tuple(record.command), tuple(kind_of(mount).mount_command(node, mount))
    # A mount that lacked the flags has been given them, without being made anew.
    return command != requested and (
        not mount.expected_protective_flags()
        or _without_protective_flags(command) != _without_protective_flags(requested)
    )


def _without_protective_flags(command: Sequence[str]) -> List[str]:
    return [",".join(option for option in argument.split(",") if option not in PROTECTED) for argument in command]


def _installed_unit_text(node: Node, mount: Mount) -> str:
    return read_text(node.paths.unit(carrier_unit(mount))) or ""


def installed_unit_digest(node: Node, mount: Mount) -> str:
    """Digest of the mount's unit as it is installed."""
    return _digest(_installed_unit_text(node, mount))


def _digest(unit_text: str) -> str:
    return hashlib.sha256(unit_text.encode()).hexdigest()


def was_started_with_unit_or_unrecorded(node: Node, mount: Mount, unit_text: str) -> bool:
    """Whether that is the unit the mount was last brought up with; True when that was at boot, by the unit."""
    record = read_json(node.paths.started_unit_text_record(mount.name))
    return record is None or record["unit"] == _digest(unit_text)


def record_unit_digests_of_running_mounts(node: Node, mounts: Sequence[Mount]) -> None:
    """Note which unit each running daemon was started with, before another text of it is installed.

    A boot starts them without a note, and so does a creation that was killed between the start and the note.
    """
    for mount in mounts:
        if read_json(node.paths.started_unit_text_record(mount.name)) is None and systemd.is_active(
            node, carrier_unit(mount)
        ):
            write_json(node.paths.started_unit_text_record(mount.name), {"unit": installed_unit_digest(node, mount)})


def _apply_mount(node: Node, name: str) -> StepOutcome:
    start_units_of_next_mounts(node, name)
    return StepOutcome(*start_unit_protect_and_copy_homes(node, node.mount(name)))


def _describe_pending_mount(node: Node, name: str) -> str:
    mount = node.mount(name)
    try:
        return describe_pending_changes(node, mount)
    except MountFailed:
        if any(old.path == mount.path for old in remove_stale.removable_mounts(node)):
            return f"start {carrier_unit(mount)}"  # what lies there now goes before
        raise


STEP = MountStep("mount", _apply_mount, _describe_pending_mount)


# What a mount over the directory of home directories would hide: carried over to it, once for the whole cluster.
#
# The image's own user has its home and its ssh keys at /home/ubuntu; an FSx mount at /home would lock everybody out
# who logs in with them. Where HyperPod makes that mount, HyperPod sees to it. Standard library only, Python 3.8: this
# file is part of the bundle.

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
            hint="check whether its export squashes root; for FSx for OpenZFS: no_root_squash",
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
