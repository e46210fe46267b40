"""Check mounts: look at the kernel's list, probe all of them at the same time, identify, classify.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Dict, List, Optional, Sequence

from hyperpod_kit.errors import RunError
from hyperpod_kit.model.mounts import Mount, MountStatus
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_json, read_text, write_json
from hyperpod_kit.node.health.check import Seen, classify
from hyperpod_kit.node.health.probe import Probe, Probed
from hyperpod_kit.node.mounts.kind import Identity
from hyperpod_kit.node.mounts.kinds import kind_of
from hyperpod_kit.node.mounts.table import Entry, find


def check_all(node: Node, mounts: Sequence[Mount], deadline: Optional[float] = None) -> List[MountStatus]:
    """The state of every mount, in order; takes `deadline` seconds for all together when all of them hang."""
    deadline = node.config.health.deadline if deadline is None else deadline
    mountinfo = read_text(node.paths.mountinfo) or ""
    entries: Dict[str, Optional[Entry]] = {mount.name: find(mountinfo, mount.path) for mount in mounts}
    probes: Dict[str, Probe] = {}
    for mount in mounts:
        entry = entries[mount.name]
        if entry is not None and not earlier_probe_is_stuck(node, mount, entry):
            probes[mount.name] = Probe(node.paths.real(mount.path))
    return [_status(node, mount, entries[mount.name], probes.get(mount.name), deadline) for mount in mounts]


def check(node: Node, mount: Mount, deadline: Optional[float] = None) -> MountStatus:
    """The state of one mount."""
    return check_all(node, [mount], deadline)[0]


def _status(node: Node, mount: Mount, entry: Optional[Entry], probe: Optional[Probe], deadline: float) -> MountStatus:
    seen = Seen(None)
    if entry is not None:
        probed = probe.finish(deadline) if probe is not None else Probed("no_answer")
        if probe is not None and probed.outcome == "no_answer" and probe.pid is not None:
            remember_stuck_probe(node, mount, entry, probe.pid)
        try:
            identity = kind_of(mount).identify(node, mount, entry)
            if probed.outcome == "no_answer":
                identity = replace(identity, endpoint_gone=kind_of(mount).endpoint_gone(node, mount, entry))
        except RunError as err:
            identity = Identity(None, entry.source, str(err))
        seen = Seen(entry, probed, identity)
    state, detail = classify(mount, seen, deadline)
    return MountStatus(
        name=mount.name, kind=mount.kind, path=mount.path, state=state, detail=detail,
        source=seen.identity.source if seen.identity else "",
        latency_ms=seen.probed.latency_ms if seen.probed else 0.0,
        required=mount.required, checked_at=node.clock.wall())


def start_time(pid: int) -> Optional[str]:
    """When a process started, in the kernel's own count; None when it has ended. Tells a reused id from the old one."""
    try:
        fields = (read_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None


def remember_stuck_probe(node: Node, mount: Mount, entry: Entry, pid: int) -> None:
    """Note a prober that SIGKILL may not have freed."""
    started = start_time(pid)
    if started is None:
        return
    with contextlib.suppress(PermissionError):  # an ordinary user may look, and keeps no notes
        write_json(node.paths.stuck_probe(mount.name), {"pid": pid, "started": started, "mount_id": entry.mount_id})


def earlier_probe_is_stuck(node: Node, mount: Mount, entry: Entry) -> bool:
    """Whether a prober of this very mount still hangs: then the mount does, and a second one would only join it."""
    noted = read_json(node.paths.stuck_probe(mount.name))
    return bool(noted and noted["mount_id"] == entry.mount_id and start_time(noted["pid"]) == noted["started"])
