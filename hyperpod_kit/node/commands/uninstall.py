"""`hyperpod-kit node uninstall`: take back what the bundle put on this node; users' data and Slurm stay.

The controller comes first: as long as its slurm.conf names files of the kit, Slurm needs them on every node. A part
that cannot go now (a mount in use) keeps the program and its records here, and a second run goes on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Sequence

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.model.optional_steps import OptionalSteps
from hyperpod_kit.model.states import Role
from hyperpod_kit.model.units import PREFIX, SLURM_STATE_UNIT, SWEEP_UNIT
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node, open_node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.mounts import remove_stale
from hyperpod_kit.node.optional.optional_step import steps_to_undo, undo_leftovers
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.node.setup import containers, logind
from hyperpod_kit.node.slurm import take_back
from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings
from hyperpod_kit.system.mountinfo import parse_mountinfo
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    import argparse

HOME = "/opt/hyperpod-kit"
LINK = "/usr/local/bin/hyperpod-kit"
METRICS = re.compile(r"hyperpod_kit[a-z_]*\.prom")
DIRECTORIES = ("/var/lib/hyperpod-kit", "/var/cache/hyperpod-kit", "/run/hyperpod-kit", HOME)
"""What is the kit's alone; the program is the last to go."""
STAYS = (
    "users and groups, homes, file systems, buckets and the empty directories that were mount points",
    "packages of mount clients, user_allow_other in /etc/fuse.conf",
    "Slurm, munge and their data; captures of users in /dev/shm; /var/log/provision",
)


class UninstallPart(NamedTuple):
    """A part of what goes. `pending`: what `remove` would do now, in words, "" for nothing; `remove`: returns what has
    to stay for now, in words."""

    name: str
    pending: Callable[[Node], str]
    remove: Callable[[Node], Sequence[str]]


def uninstall_command(args: argparse.Namespace) -> int:
    """Exit code 0 when nothing of the kit is left, 1 when something has to stay for now. Raises NodeError."""
    node = open_node()
    _require_nothing_needs_the_kit(node)
    if args.dry_run:
        for part in PARTS:
            print(f"{part.name}: {part.pending(node) or 'nothing'}")
        _print_what_stays()
        return ExitCode.OK
    audit.record_root_action_in_journal("uninstalled", HOME, "node uninstall", asked_by="node uninstall")
    for part in PARTS:
        pending = part.pending(node)
        staying = part.remove(node)
        print(f"{part.name}: {pending or 'nothing'}", flush=True)
        if staying:
            print(f"kept for now: {'; '.join(staying)}")
            print("next: repeat hyperpod-kit node uninstall once that has ended")
            return ExitCode.PROBLEM
    _print_what_stays()
    return ExitCode.OK


def _print_what_stays() -> None:
    for line in STAYS:
        print(f"stays: {line}")


def _require_nothing_needs_the_kit(node: Node) -> None:
    """Raise NodeError where Slurm's configuration or a job would miss the kit."""
    if os.geteuid() != 0 and not node.paths.root:
        raise NodeError("only root may uninstall", hint="sudo hyperpod-kit node uninstall")
    if node.facts.role != Role.CONTROLLER:
        _require_slurm_conf_without_kit(node)
    processes = _processes_of_the_kit(node)
    if processes:
        raise NodeError(
            f"{counted(len(processes), 'process of a job runs', 'processes of jobs run')} from {HOME} on this node, "
            f"first {processes[0]}",
            hint="scontrol update nodename=$(hostname -s) state=drain reason=uninstall; wait until its jobs have ended",
        )


def _require_slurm_conf_without_kit(node: Node) -> None:
    for path in (node.paths.fetched_slurm_conf, node.paths.slurm_conf):
        settings = parse_slurm_conf_settings(read_text(path) or "")
        named = sorted(name for name, value in settings.items() if HOME in value)
        if named:
            raise NodeError(
                f"{path} still names files of the kit ({', '.join(named)}): Slurm would drain this node without them",
                hint="hyperpod-kit node uninstall on the controller first",
            )


def _processes_of_the_kit(node: Node) -> List[str]:
    """Return the numbers of processes that others run from the kit's directory: ranks' wrappers, `job run`, agents."""
    found = []
    for name in sorted(os.listdir(node.paths.proc)):
        if not name.isdigit() or int(name) in (os.getpid(), os.getppid()):
            continue
        with contextlib.suppress(OSError):
            if os.stat(f"{node.paths.proc}/{name}").st_uid != 0 and HOME in (
                read_text(node.paths.cmdline(int(name))) or ""
            ):
                found.append(name)
    return found


def _bare(node: Node) -> Node:
    """Return the node as if its configuration asked for no mount and no optional step."""
    return replace(node, config=replace(node.config, mounts=(), steps=OptionalSteps()))


def _remove_slurm_lines(node: Node) -> Sequence[str]:
    # The guard would put them back, and a repair a mount.
    _stop_units(node, [name for name in _kit_units(node) if name.endswith(".timer")])
    take_back.remove_kit_lines_and_move_state_home(node)
    return ()


# --- Optional steps, mounts, units -----------------------------------------------------------------------------------


def _pending_steps(node: Node) -> str:
    from hyperpod_kit.node.creation.steps import ALL

    return ", ".join(step.name for step in steps_to_undo(_bare(node), ALL))


def _undo_steps(node: Node) -> Sequence[str]:
    from hyperpod_kit.node.creation.steps import ALL

    undo_leftovers(_bare(node), ALL)
    return ()


def _pending_mounts(node: Node) -> str:
    bare = _bare(node)
    made = [mount for mount in remove_stale.unwanted_mounts(bare) if remove_stale.is_mounted_by_kit(bare, mount)]
    return ", ".join(f"unmount {mount.path}" for mount in made)


def _remove_mounts(node: Node) -> Sequence[str]:
    # slurmctld is bound to it no more, and it has the mount of Slurm's state open.
    _stop_units(node, [name for name in _kit_units(node) if name == SLURM_STATE_UNIT])
    _, notes = remove_stale.remove_stale_mounts_and_units(_bare(node))
    return notes


def _kit_units(node: Node) -> List[str]:
    directory = node.paths.unit("")
    if not os.path.isdir(directory):
        return []
    return sorted(name for name in os.listdir(directory) if name.startswith(PREFIX))


def _pending_units(node: Node) -> str:
    return ", ".join(_kit_units(node))


def _remove_units(node: Node) -> Sequence[str]:
    units = [name for name in _kit_units(node) if os.path.isfile(node.paths.unit(name))]
    startable = [name for name in units if name.endswith((".service", ".timer")) and "@." not in name]
    if startable:
        node.runner.run(["systemctl", "disable", "--quiet", "--no-reload", *startable], timeout=60, check=False)
    _stop_units(node, startable)
    for name in units:
        by_descriptor.unlink(node.paths.unit(name), missing_ok=True)
    by_descriptor.remove_tree(node.paths.unit(f"{SWEEP_UNIT}.d"), ignore_errors=True)
    if units:
        systemd.daemon_reload(node)
    return ()


def _stop_units(node: Node, units: Sequence[str]) -> None:
    if units:
        node.runner.run(["systemctl", "stop", *units], timeout=120, check=False)


# --- Rules and files -------------------------------------------------------------------------------------------------


def _pending_rules(node: Node) -> str:
    expected = packet_rules.expected_rules(node)
    if expected and packet_rules.are_rules_in_force(node):
        return f"packet rules; then {packet_rules.exposure_without_rules(expected)}"
    return ""


def _remove_rules(node: Node) -> Sequence[str]:
    packet_rules.remove_rules(node)
    return ()


def _files(node: Node) -> List[str]:
    paths = [node.paths.under_root(path) for path in (logind.CONF, containers.FSTAB, LINK)]
    return [*(path for path in paths if os.path.lexists(path)), *_metrics_files(node)]


def _metrics_files(node: Node) -> List[str]:
    directory = node.paths.under_root(node.config.health.textfile_directory)
    if not node.config.health.textfile_directory or not os.path.isdir(directory):
        return []
    return [f"{directory}/{name}" for name in sorted(os.listdir(directory)) if METRICS.fullmatch(name)]


def _mounts_below(node: Node, directory: str) -> List[str]:
    """Return where something is mounted in a directory of the kit: a local disk, for example, has others' data."""
    entries = parse_mountinfo(read_text(node.paths.mountinfo) or "")
    return [entry.path for entry in entries if f"{entry.path}/".startswith(f"{directory}/")]


def _pending_files(node: Node) -> str:
    directories = [path for path in DIRECTORIES if os.path.lexists(node.paths.under_root(path))]
    return ", ".join([*_files(node), *directories])


def _remove_files(node: Node) -> Sequence[str]:
    mounted = [path for directory in DIRECTORIES for path in _mounts_below(node, directory)]
    if mounted:
        return [f"{path} is mounted, and its content does not belong to the kit: umount {path}" for path in mounted]
    for path in _files(node):
        by_descriptor.unlink(path, missing_ok=True)
    with contextlib.suppress(RunError):
        node.runner.run(["systemctl", "kill", "--signal=HUP", "systemd-logind.service"], timeout=30)
    for path in DIRECTORIES:
        if os.path.lexists(node.paths.under_root(path)):
            by_descriptor.remove_tree(node.paths.under_root(path))
    return ()


PARTS = (
    UninstallPart("slurm", take_back.describe_pending_changes, _remove_slurm_lines),
    UninstallPart("optional steps", _pending_steps, _undo_steps),
    UninstallPart("mounts", _pending_mounts, _remove_mounts),
    UninstallPart("packet rules", _pending_rules, _remove_rules),
    UninstallPart("units", _pending_units, _remove_units),
    UninstallPart("files", _pending_files, _remove_files),
)
"""In this order: what Slurm starts goes before what it needs, and the program last."""
