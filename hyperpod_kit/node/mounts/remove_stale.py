"""Take away what an earlier configuration put on this node and this one does not want: units, and mounts with them.

A mount that is in use stays until the next boot: no job loses its files because a line was removed from a
configuration. What is not ours is never touched: units by their prefix, mounts by the record of having made them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from typing import List, Sequence, Tuple

from hyperpod_kit import audit
from hyperpod_kit.errors import RunError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import mount_from_dict, mount_to_dict
from hyperpod_kit.model.states import RESPONSIVE, MountState
from hyperpod_kit.model.units import PREFIX, carrier_unit, expected_units
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, write_json
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.mounts.ensure import detach_dead_mount
from hyperpod_kit.node.mounts.kinds.mount_record import delete_record, read_record
from hyperpod_kit.node.observe.check import check_mount
from hyperpod_kit.system.mountinfo import find_mount_at
from hyperpod_kit.untrusted import by_descriptor

MNT_EXPIRE = 4
"""umount2(2): of a mount that is in use it says EBUSY, of any other EAGAIN, and marks that one; a second call would
unmount what is still marked, and whoever walks over the mount takes the mark away."""


def recorded_mounts(node: Node) -> List[Mount]:
    """The mounts that this node was given so far and that were not taken away."""
    mounts = []
    for raw in read_json(node.paths.recorded_mounts) or []:
        with contextlib.suppress(KeyError, TypeError, ValueError):  # of a version that knew other kinds or fields
            mounts.append(mount_from_dict(raw))
    return mounts


def record_mounts(node: Node) -> None:
    """Add this node's mounts to the record of those that it was given, before anything of them is installed."""
    earlier = [mount for mount in recorded_mounts(node) if mount not in node.mounts]
    write_json(node.paths.recorded_mounts, [mount_to_dict(mount) for mount in (*node.mounts, *earlier)])


def is_same_ignoring_options(old: Mount, new: Mount) -> bool:
    """Return whether what `old` made is where and what `new` asks for. Other options are
    bring_up's business."""
    return (old.kind, old.name, old.path, old.source_field_values()) == (
        new.kind,
        new.name,
        new.path,
        new.source_field_values(),
    )


def unwanted_mounts(node: Node) -> List[Mount]:
    """Return the recorded mounts that are not configured any more: removed, moved to another path, or made
    from something else."""
    return [old for old in recorded_mounts(node) if not any(is_same_ignoring_options(old, new) for new in node.mounts)]


def unwanted_units(node: Node) -> List[str]:
    """Return the installed units of the kit, and their drop-in files, that no mount of this node has."""
    expected = set(expected_units(node.mounts, node.facts.role, node.config.steps))
    directory = node.paths.unit("")
    names = []
    if os.path.isdir(directory):
        names = sorted(os.listdir(directory))
    return [
        name for name in names if name.startswith(PREFIX) and name not in expected and os.path.isfile(directory + name)
    ]


def describe_pending_changes(node: Node) -> str:
    """Return what `remove_stale_mounts_and_units` would do, in words; "" for nothing."""
    going = removable_mounts(node)
    units = removable_units(node, [mount for mount in unwanted_mounts(node) if mount not in going])
    disabling = [unit for unit in _enabled_units(node, unwanted_units(node)) if unit not in units]
    made_mounts = [mount.path for mount in going if is_mounted_by_kit(node, mount)]
    parts = []
    if made_mounts:
        parts.append(f"unmount {', '.join(made_mounts)}")
    if units:
        parts.append(f"remove {', '.join(units)}")
    if disabling:
        parts.append(f"disable {', '.join(disabling)}")
    return "; ".join(part for part in parts if part)


def removable_mounts(node: Node) -> List[Mount]:
    """The unwanted mounts that can be taken away now."""
    return [mount for mount in unwanted_mounts(node) if not reason_to_keep_mounted(node, mount)]


def removable_units(node: Node, staying: Sequence[Mount]) -> List[str]:
    """The unwanted units. A daemon that stays needs its own, or systemd would not start it again when it dies."""
    needed = {carrier_unit(mount) for mount in staying}
    return [name for name in unwanted_units(node) if name not in needed]


def remove_stale_mounts_and_units(node: Node) -> Tuple[bool, List[str]]:
    """Unmount and delete what the configuration has no more; return (changed, notes). A note names each mount
    that has to stay until the next boot, and why."""
    enabled = _enabled_units(node, unwanted_units(node))
    if enabled:
        node.runner.run(["systemctl", "disable", "--quiet", "--no-reload", *enabled], timeout=30)
    # First, or a repair would mount again what goes now.
    _stop_units(node, [unit for unit in unwanted_units(node) if unit.endswith(".timer")])
    changed, notes = bool(enabled), []
    staying: List[Mount] = []
    for mount in unwanted_mounts(node):
        reason = reason_to_keep_mounted(node, mount)
        try:
            changed = (not reason and _unmount_and_delete_records(node, mount)) or changed
        except RunError as err:  # it became busy just now
            reason = err.message
        if reason:
            staying.append(mount)
            notes.append(f"{mount.path} {reason}: it is removed at the next boot")
    units = removable_units(node, staying)
    if units:
        _stop_units(node, [name for name in units if name.endswith(".service")])
        for name in units:
            by_descriptor.unlink(node.paths.unit(name))
        systemd.daemon_reload(node)
    if recorded_mounts(node) != [*node.mounts, *staying]:
        write_json(node.paths.recorded_mounts, [mount_to_dict(mount) for mount in (*node.mounts, *staying)])
    return changed or bool(units), notes


def reason_to_keep_mounted(node: Node, mount: Mount) -> str:
    """Why a mount cannot be taken away now, "" when it can or when there is nothing of ours at its path."""
    if not is_mounted_by_kit(node, mount):
        return ""
    state = check_mount(node, mount).state
    if state == MountState.HUNG:
        return "does not answer"
    if state in RESPONSIVE and is_mount_in_use(node.paths.under_root(mount.path)):
        return "is in use"
    return ""


def is_mounted_by_kit(node: Node, mount: Mount) -> bool:
    """Return whether what is mounted at the path is there because the kit made this very mount."""
    entry = find_mount_at(read_text(node.paths.mountinfo) or "", mount.path)
    if entry is None or mount.platform:
        return False
    if mount.traits.service.daemon:
        return systemd.is_active(node, carrier_unit(mount))
    record = read_record(node, mount)
    return record is not None and record.device == entry.device


def is_mount_in_use(path: str) -> bool:
    """Whether a process of this mount namespace has something open on the mount at `path`. Only for one that answers:
    the kernel walks the path."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.stat(path)
    done = libc.umount2(os.fsencode(path), MNT_EXPIRE)
    error_number = ctypes.get_errno()
    os.stat(path)
    return bool(done != 0 and error_number == errno.EBUSY)


def _unmount_and_delete_records(node: Node, mount: Mount) -> bool:
    """Unmount one mount if the kit made it, and delete its records; True when it was there. Raises RunError
    when it is busy."""
    made_here = is_mounted_by_kit(node, mount)
    detach_dead_mount(node, mount)
    if made_here:
        audit.record_root_action_in_journal(
            "unmounted", mount.path, "it is no longer in the configuration", asked_by="apply of a bundle"
        )
    if mount.traits.service.daemon:
        _stop_units(node, [carrier_unit(mount)])  # the daemon unmounts when it ends
    elif is_mounted_by_kit(node, mount):
        node.runner.run(["umount", mount.path], timeout=60)  # never lazily
    delete_record(node, mount)
    for path in (
        node.paths.started_unit_text_record(mount.name),
        node.paths.repair_result(mount.name),
        node.paths.degraded_mark(mount.name),
    ):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(path)
    return made_here


def _enabled_units(node: Node, units: Sequence[str]) -> List[str]:
    return [unit for unit in units if unit.endswith((".service", ".timer")) and systemd.is_enabled(node, unit)]


def _stop_units(node: Node, units: Sequence[str]) -> None:
    if units:
        node.runner.run(["systemctl", "stop", *units], timeout=120, check=False)


def _apply_removals(node: Node) -> StepOutcome:
    changed, notes = remove_stale_mounts_and_units(node)
    return StepOutcome(changed, "; ".join(notes))


STEP = Step("retire", _apply_removals, describe_pending_changes)
