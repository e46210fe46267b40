"""Check mounts: look at the kernel's list, probe all of them at the same time, identify, classify.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Callable, Container, Dict, List, Mapping, Optional, Sequence

from hyperpod_kit.errors import RunError
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import RESPONSIVE
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, try_write_volatile_json
from hyperpod_kit.node.mounts.kinds.kind import MountIdentity
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.observe.classify import MountObservation, classify
from hyperpod_kit.node.observe.probe import Probed, probe_all
from hyperpod_kit.system import fullness
from hyperpod_kit.system.mountinfo import MountEntry, find_mount_at
from hyperpod_kit.system.process import identify_unless_gone_or_zombie

Modes = Callable[[Mount, MountEntry], str]
"""What the probe of a mount may do beyond stat and statvfs, given what is mounted now."""


DEEP = ("list", "write")
"""Operations that not every probe makes."""

DEEP_EVERY = 300.0
"""Seconds between two probes that list or write."""


@dataclass(frozen=True)
class MountCheck:
    """What one look at one mount found.

    mode: what the probe did beyond stat and statvfs, as `deep_probe_mode_letters` writes it.
    """

    status: MountStatus
    observation: MountObservation
    mode: str = ""


def check_mounts(
    node: Node,
    mounts: Sequence[Mount],
    deadline: Optional[float] = None,
    *,
    deep: bool = False,
    nearly_full: Container[str] = (),
) -> List[MountStatus]:
    """Check every mount, and return their states in order; takes `deadline` seconds for all together when all
    of them hang.

    deep: do what `deep_probe_mode_letters` says, but write nothing where it would stay for ever
    (`Traits.keeps_versions`). nearly_full: names of those that were so at the last check.
    """

    def modes(mount: Mount, entry: MountEntry) -> str:
        mode = ""
        if deep:
            mode = deep_probe_mode_letters(mount)
        if mount.traits.keeps_versions:
            return mode.replace("w", "")
        return mode

    return [mount_check.status for mount_check in observe_mounts(node, mounts, deadline, modes, nearly_full)]


def check_mount(node: Node, mount: Mount) -> MountStatus:
    """Check one mount by stat and statvfs, and return its state."""
    return observe_mounts(node, [mount])[0].status


def deep_probe_mode_letters(mount: Mount) -> str:
    """What a probe of this mount may do beyond stat and statvfs, as its kind says in model/mounts: `l` list, for
    `Traits.cached_stat`; `w` write and remove a file, for `Mount.probe_may_write`."""
    mode = ""
    if mount.traits.cached_stat:
        mode += "l"
    if mount.probe_may_write():
        mode += "w"
    return mode


def no_deep_probe_mode(mount: Mount, entry: MountEntry) -> str:
    """Return the mode of a probe that does nothing more than stat and statvfs."""
    return ""


def observe_mounts(
    node: Node,
    mounts: Sequence[Mount],
    deadline: Optional[float] = None,
    modes: Modes = no_deep_probe_mode,
    nearly_full: Container[str] = (),
) -> List[MountCheck]:
    """Probe and classify every mount, in order. `nearly_full`: names of those that were so at the last check.

    Where one was unmounted after the kernel listed it and before it was touched, the directory beneath has
    answered: such a mount is probed once more, with a deadline of its own, and is unknown when that happens
    again.
    """
    if deadline is None:
        deadline = node.config.health.deadline
    checks = _observe_once(node, mounts, deadline, modes, nearly_full)
    changed = _remounted(node, mounts, checks)
    if changed:
        checks.update(_observe_once(node, changed, deadline, modes, nearly_full))
        for mount in _remounted(node, changed, checks):
            entry = checks[mount.name].observation.entry
            was_nearly_full = mount.name in nearly_full
            checks[mount.name] = _identify_and_classify(
                node, mount, entry, Probed("not_asked"), deadline, "", was_nearly_full
            )
    return [checks[mount.name] for mount in mounts]


def _remounted(node: Node, mounts: Sequence[Mount], checks: Mapping[str, MountCheck]) -> List[Mount]:
    """Those that were mounted when they were looked at, and now are not, or by another mount."""
    mountinfo = read_text(node.paths.mountinfo) or ""

    def mount_id(entry: Optional[MountEntry]) -> Optional[int]:
        if entry:
            return entry.mount_id
        return None

    entries = [(mount, checks[mount.name].observation.entry) for mount in mounts]
    return [
        mount for mount, entry in entries if entry and mount_id(find_mount_at(mountinfo, mount.path)) != entry.mount_id
    ]


def _observe_once(
    node: Node, mounts: Sequence[Mount], deadline: float, modes: Modes, nearly_full: Container[str]
) -> Dict[str, MountCheck]:
    mountinfo = read_text(node.paths.mountinfo) or ""
    entries = {mount.name: find_mount_at(mountinfo, mount.path) for mount in mounts}
    stuck: Dict[str, str] = {}
    modes_by_name: Dict[str, str] = {}
    for mount in mounts:
        entry = entries[mount.name]
        if entry is None:
            continue
        operation = stuck_probe_operation(node, mount, entry)
        if operation is not None:
            stuck[mount.name] = operation
        # Do not repeat a probe that is still stuck in the kernel: a second process would only join the first.
        if operation is None or operation in DEEP:
            if operation is None:
                modes_by_name[mount.name] = modes(mount, entry)
            else:
                modes_by_name[mount.name] = ""
    targets = [
        (node.paths.under_root(mount.path), modes_by_name[mount.name])
        for mount in mounts
        if mount.name in modes_by_name
    ]
    probed = dict(zip(modes_by_name, probe_all(targets, deadline, f".hyperpod-kit-probe-{node.facts.node}")))
    for name, operation in stuck.items():
        probe = probed.get(name)
        if probe is None:
            probed[name] = Probed("no_answer")
        elif probe.outcome == "answered":
            probed[name] = replace(probe, errno=errno.ETIMEDOUT, operation=operation)
    return {
        mount.name: _identify_and_classify(
            node,
            mount,
            entries[mount.name],
            probed.get(mount.name),
            deadline,
            modes_by_name.get(mount.name, ""),
            mount.name in nearly_full,
        )
        for mount in mounts
    }


def _identify_and_classify(
    node: Node,
    mount: Mount,
    entry: Optional[MountEntry],
    probed: Optional[Probed],
    deadline: float,
    mode: str,
    was_nearly_full: bool,
) -> MountCheck:
    observation = MountObservation(None)
    if entry is not None and probed is not None:
        if probed.pid is not None:
            remember_stuck_probe(node, mount, entry, probed)
        try:
            identity = kind_of(mount).identify(node, mount, entry)
            if probed.outcome == "no_answer":
                identity = replace(identity, endpoint_is_dead=kind_of(mount).endpoint_is_dead(node, mount, entry))
        except RunError as err:
            identity = MountIdentity(None, entry.source, str(err))
        observation = MountObservation(entry, probed, identity)
    state, detail = classify(mount, observation, deadline)
    status = MountStatus(
        name=mount.name,
        kind=mount.kind,
        path=mount.path,
        state=state,
        detail=detail,
        source=observation.identity.source if observation.identity else "",
        latency_ms=observation.probed.latency_ms if observation.probed else 0.0,
        required=mount.required,
        checked_at=node.clock.wall(),
        # What could not be asked stays what it was.
        nearly_full=was_nearly_full,
    )
    if observation.probed is not None and state in RESPONSIVE:
        status = with_capacity(status, mount, observation.probed)
    return MountCheck(status, observation, mode)


def with_capacity(status: MountStatus, mount: Mount, probed: Probed) -> MountStatus:
    """Return the status with how full the mount is; without it where the daemon makes the numbers up (a
    bucket)."""
    if not mount.traits.tells_capacity:
        return replace(status, nearly_full=False)
    measured = replace(
        status,
        used_bytes=max(0, probed.size - probed.available),
        free_bytes=probed.available,
        used_files=max(0, probed.inodes - probed.available_inodes),
        free_files=probed.available_inodes,
    )
    return replace(measured, nearly_full=fullness.is_nearly_full(measured.used_share, status.nearly_full))


def process_start_ticks_or_none(pid: int) -> Optional[str]:
    """When a process started, in the kernel's own count; None when it has ended. Tells a reused id from the old one."""
    try:
        process_id = identify_unless_gone_or_zombie(pid)
    except OSError:  # another user's, and /proc is mounted with hidepid
        return None
    if process_id is None:
        return None
    return str(process_id.started)


def remember_stuck_probe(node: Node, mount: Mount, entry: MountEntry, probed: Probed) -> None:
    """Record a prober that SIGKILL may not have freed."""
    if probed.pid is None:
        started = None
    else:
        started = process_start_ticks_or_none(probed.pid)
    if started is None:
        return
    operation = ""
    if probed.outcome == "answered":
        operation = probed.operation
    # An ordinary user may look too, and keeps no notes.
    try_write_volatile_json(
        node.paths.stuck_probe_record(mount.name),
        {"pid": probed.pid, "started": started, "mount_id": entry.mount_id, "operation": operation},
    )


def stuck_probe_operation(node: Node, mount: Mount, entry: MountEntry) -> Optional[str]:
    """Return the operation in which a recorded prober of this very mount still hangs, "" for stat and statvfs;
    None when none does."""
    noted = read_json(node.paths.stuck_probe_record(mount.name))
    if noted and noted["mount_id"] == entry.mount_id and process_start_ticks_or_none(noted["pid"]) == noted["started"]:
        return str(noted.get("operation", ""))
    return None
