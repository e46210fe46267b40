"""Taking a rehearsal down whatever state it is in: by the names that everything carries, not by a list.

The daemon may have been killed at any moment, so nothing here needs it, and doing all of it twice changes nothing.
"""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path
from typing import Optional

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.system.process import Process
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal import cgroups, host, host_mounts, network, own_place, processes, state
from hyperpod_rehearsal.layout import CGROUP_PARENT, Layout, existing

DAEMON_PATIENCE = 60.0
"""Seconds that a daemon may take to end its machines before it is killed."""


def stop_daemon(layout: Layout) -> None:
    """Ask the daemon to take everything down, kill it when it does not; then wait for its guardian."""
    daemon = _ours(layout, layout.daemon_file, "hyperpod_rehearsal.daemon")
    processes.end(daemon, signal.SIGTERM)
    if not processes.wait_gone(daemon, DAEMON_PATIENCE):
        processes.end(daemon, signal.SIGKILL)
        processes.wait_gone(daemon, 10.0)
    # Still at work for a killed daemon, it would remove what the next one makes under the same names.
    guardian = _ours(layout, layout.guardian_file, "hyperpod_rehearsal.guardian")
    if not processes.wait_gone(guardian, DAEMON_PATIENCE):
        processes.end(guardian, signal.SIGKILL)
        processes.wait_gone(guardian, 10.0)


def _ours(layout: Layout, file: Path, module: str) -> Optional[Process]:
    """The process that a state file names, None unless it is the one that this rehearsal started."""
    process = state.read_process(file)
    # One that was started before the rehearsal had a distribution of its own runs on under its former name.
    former = f"hyperpod_kit.{module.replace('hyperpod_rehearsal', 'rehearsal')}"
    for name in (module, former):
        if processes.runs(process, ["-m", name, "--state", str(layout.root)]):
            return process
    return None


def remove_traces(layout: Layout) -> list[str]:
    """Remove every machine, mount, link, namespace and cgroup of a rehearsal; returns what could not be removed."""
    runner = LocalRunner()
    left: list[str] = []
    if not cgroups.kill(layout.cgroup):
        left += [f"process {pid}" for pid in sorted(cgroups.members(layout.cgroup))]
    left += [f"mount {point}" for point in host_mounts.unmount_below(layout.root, runner)]
    network.remove_all(layout, runner)
    left += [f"network namespace {name}" for name in network.namespaces() if name.startswith(layout.netns(""))]
    left += [f"link {name}" for name in network.links(runner) if name == layout.bridge]
    if not cgroups.remove(layout.cgroup):
        left.append(f"cgroup {layout.cgroup}")
    if not cgroups.groups_below(CGROUP_PARENT):
        cgroups.remove(CGROUP_PARENT)
    return left


def down(layout: Layout) -> None:
    """Stop a rehearsal and remove all of it, its state directory too.

    Raises RehearsalError naming what stayed, Untrusted when its directory is somebody else's.
    """
    own_place.require(layout.root)
    stop_daemon(layout)
    left = remove_traces(layout)
    if left:
        # With a mount still in place, removing the directory would remove what is mounted there.
        raise RehearsalError(f"could not remove: {', '.join(left)}", hint="hyperpod-kit rehearse down")
    by_descriptor.remove_tree(layout.root, ignore_errors=True)
    with contextlib.suppress(OSError):
        by_descriptor.remove_directory(layout.root.parent)  # the last one takes the base directory along


class _Stray(Layout):
    """A rehearsal of which only the id is left."""

    @property
    def id(self) -> str:
        return self.root.name


def down_all() -> list[str]:
    """Take down every rehearsal, also those whose state directory was deleted; returns their names."""
    host.require_root("taking every rehearsal down")
    names = []
    for layout in existing():
        down(layout)
        names.append(layout.root.name)
    for stray in sorted(stray_ids()):
        left = remove_traces(_Stray(Path("/nonexistent") / stray))
        if left:
            raise RehearsalError(f"could not remove: {', '.join(left)}")
        names.append(f"(stray {stray})")
    return names


def stray_ids() -> set[str]:
    """Ids found in cgroups, namespaces and links of this machine."""
    found = {name for name in cgroups.groups_below(CGROUP_PARENT) if re.fullmatch("[0-9a-f]{4}", name)}
    for name in [*network.namespaces(), *network.links(LocalRunner())]:
        match = re.fullmatch(r"hpk-([0-9a-f]{4})(-[0-9a-f]{8})?", name)
        if match:
            found.add(match.group(1))
    return found
