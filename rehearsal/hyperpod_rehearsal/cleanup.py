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
from hyperpod_rehearsal.machines import cgroups, host, host_mounts, network, processes
from hyperpod_rehearsal.records import state, trusted_directory
from hyperpod_rehearsal.records.layout import CGROUP_PARENT, Layout, existing_rehearsals

DAEMON = "hyperpod_rehearsal.daemon"
DAEMON_PATIENCE = 60.0
"""Seconds that a daemon may take to end its machines before it is killed."""


def stop_daemon_and_guardian(layout: Layout) -> None:
    """Ask the daemon to take everything down, kill it when it does not; then wait for its guardian."""
    daemon = _read_recorded_process_if_running(layout, layout.daemon_file, DAEMON)
    processes.send_signal(daemon, signal.SIGTERM)
    if not processes.wait_for_exit(daemon, DAEMON_PATIENCE):
        processes.send_signal(daemon, signal.SIGKILL)
        processes.wait_for_exit(daemon, 10.0)
    # Still at work for a killed daemon, it would remove what the next one makes under the same names.
    guardian = _read_recorded_process_if_running(layout, layout.guardian_file, "hyperpod_rehearsal.guardian")
    if not processes.wait_for_exit(guardian, DAEMON_PATIENCE):
        processes.send_signal(guardian, signal.SIGKILL)
        processes.wait_for_exit(guardian, 10.0)


def _read_recorded_process_if_running(layout: Layout, file: Path, module: str) -> Optional[Process]:
    """The process that a state file names, None unless it is the one that this rehearsal started."""
    process = state.read_process_identity_or_none(file)
    # One that was started before the rehearsal had a distribution of its own runs on under its former name.
    former = f"hyperpod_kit.{module.replace('hyperpod_rehearsal', 'rehearsal')}"
    for name in (module, former):
        if processes.is_running_command(process, ["-m", name, "--state", str(layout.root)]):
            return process
    return None


def remove_host_resources_and_list_remaining(layout: Layout) -> list[str]:
    """Remove every machine, mount, link, namespace and cgroup of a rehearsal; returns what could not be removed."""
    runner = LocalRunner()
    remaining: list[str] = []
    if not cgroups.kill_members(layout.cgroup):
        remaining += [f"process {pid}" for pid in sorted(cgroups.member_pids(layout.cgroup))]
    remaining += [f"mount {point}" for point in host_mounts.unmount_below_and_list_remaining(layout.root, runner)]
    network.remove_rehearsal_network(layout, runner)
    remaining += [
        f"network namespace {name}" for name in network.list_network_namespaces() if name.startswith(layout.netns(""))
    ]
    remaining += [f"link {name}" for name in network.list_links(runner) if name == layout.bridge]
    if not cgroups.remove_group(layout.cgroup):
        remaining.append(f"cgroup {layout.cgroup}")
    if not cgroups.child_group_names(CGROUP_PARENT):
        cgroups.remove_group(CGROUP_PARENT)
    return remaining


def stop_and_remove(layout: Layout) -> None:
    """Stop a rehearsal and remove all of it, its state directory too.

    Raises RehearsalError naming what stayed, Untrusted when its directory is somebody else's.
    """
    trusted_directory.require_trusted(layout.root)
    stop_daemon_and_guardian(layout)
    remaining = remove_host_resources_and_list_remaining(layout)
    if remaining:
        # With a mount still in place, removing the directory would remove what is mounted there.
        raise RehearsalError(f"could not remove: {', '.join(remaining)}", hint="hyperpod-kit rehearse down")
    by_descriptor.remove_tree(layout.root, ignore_errors=True)
    with contextlib.suppress(OSError):
        by_descriptor.remove_directory(layout.root.parent)  # the last one takes the base directory along


class _Stray(Layout):
    """A rehearsal of which only the id is left."""

    @property
    def id(self) -> str:
        return self.root.name


def stop_and_remove_all_returning_names() -> list[str]:
    """Take down every rehearsal, also those whose state directory was deleted; returns their names.

    One whose control loop runs and whose state lies below another HPK_REHEARSAL_STATE is somebody else's, and stays.
    """
    host.require_root("taking every rehearsal down")
    names = []
    for layout in existing_rehearsals():
        stop_and_remove(layout)
        names.append(layout.root.name)
    for stray in sorted(rehearsal_ids_in_host_resources() - ids_of_running_rehearsals()):
        remaining = remove_host_resources_and_list_remaining(_Stray(Path("/nonexistent") / stray))
        if remaining:
            raise RehearsalError(f"could not remove: {', '.join(remaining)}")
        names.append(f"(stray {stray})")
    return names


def ids_of_running_rehearsals() -> set[str]:
    """Return the ids of the rehearsals of this machine whose control loop runs, wherever their state lies."""
    ids = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if DAEMON in words and "--state" in words[:-1]:
            ids.add(Layout(Path(words[words.index("--state") + 1])).id)
    return ids


def rehearsal_ids_in_host_resources() -> set[str]:
    """Return the rehearsal ids that appear in the names of cgroups, namespaces and links of this machine."""
    ids = {name for name in cgroups.child_group_names(CGROUP_PARENT) if re.fullmatch("[0-9a-f]{4}", name)}
    for name in [*network.list_network_namespaces(), *network.list_links(LocalRunner())]:
        match = re.fullmatch(r"hpk-([0-9a-f]{4})(-[0-9a-f]{8})?", name)
        if match:
            ids.add(match.group(1))
    return ids
