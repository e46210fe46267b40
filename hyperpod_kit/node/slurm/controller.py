"""The node that runs slurmctld: our hooks in its configuration, then the daemons, in this order.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.slurm_state import StateCopy
from hyperpod_kit.model.states import LifecycleMode, Role
from hyperpod_kit.model.units import SLURM_STATE_UNIT, SWEEP_UNIT, carrier_unit, systemd_escape_path
from hyperpod_kit.node.machine import deferred_actions, systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.paths import SPANK_PLUGIN
from hyperpod_kit.node.machine.step import SCRIPTED, Step, StepOutcome
from hyperpod_kit.node.machine.timing import wait_for
from hyperpod_kit.node.slurm import accounting_lines, cluster_id, lease, pyxis_line, state
from hyperpod_kit.node.slurm.hooks import (
    merge_hooks,
    parse_slurm_conf_settings,
    with_kit_block,
    without_kit_block,
    without_setting,
)
from hyperpod_kit.node.slurm.lease_keeper import UNIT, LeaseKeeper
from hyperpod_kit.node.slurm.saved_state import RunningSlurmctld
from hyperpod_kit.node.slurm.state import StateLocation, make_state_directories
from hyperpod_kit.untrusted import by_descriptor

ANSWERS_WITHIN = 120.0
STARTS_WITHIN = 240.0
"""Seconds for slurmctld, where it waits for the lease of a machine that died."""

UNITS = ("munge.service", "slurmctld.service")


RECONFIGURE, RESTART = "slurm-reconfigure", "slurmctld-restart"

DROP_IN = """\
# Written by hyperpod-kit: slurmctld's state is on {path}.
[Unit]
# Never without the mount and without the lease on the state: an empty one would end every job.
BindsTo={keeper}
After={keeper} {mount} {carrier}
StartLimitIntervalSec=0

[Service]
Restart=on-failure
RestartSec=2
"""


SWEEP_DROP_IN = """\
# Written by hyperpod-kit: SlurmUser of slurm.conf.
[Service]
User={user}
"""


def expected_files(node: Node) -> Tuple[Dict[str, str], List[str]]:
    """(path -> text of each file that is ours or has our block in it, notes). Raises NodeError.

    That is when the platform has not written slurm.conf.
    """
    conf = read_slurm_conf(node)
    hooks = read_text(f"{node.paths.bundle}/slurm/hooks.conf")
    if hooks is None:
        raise NodeError("slurm/hooks.conf is not in the bundle", hint="hyperpod-kit upload with the same version")
    hyperpod = os.path.isdir(node.paths.hyperpod_node_directory)
    if "pam_slurm_adopt" in node.config.steps.enabled_step_names:
        # The module asks for the step that stands for a job from its beginning, and there is none without this flag.
        hooks = hooks.replace("PrologFlags=Alloc\n", "PrologFlags=Alloc,Contain\n")
    elif hyperpod:
        # HyperPod gives a running job a node in place of a lost one. Slurm starts no Prolog there by itself, and under
        # this flag slurmd would wait for that, fail the step and drain the node.
        hooks = without_setting(hooks, "PrologFlags")
    location_on_mount = state.shared_state_location(node)
    if location_on_mount:
        location = location_on_mount.state
    else:
        location = existing_kit_state_location(conf)
    if location:
        state_setting = {"StateSaveLocation": location}
    else:
        state_setting = {}
    text, notes = merge_hooks(conf, hooks, {**state_setting, **accounting_lines.accounting_settings(node, conf)})
    if location and not location_on_mount:
        notes.append(f"StateSaveLocation stays {location}: to move it, stop slurmctld and do so by hand")
    # HyperPod's own plugin has an option of this name for srun: ours would take it away, and no node were replaced.
    contexts = ""
    if hyperpod:
        contexts = " contexts=allocator"
    plugstack_text = read_text(node.paths.plugstack_conf) or ""
    plugstack = with_kit_block(
        plugstack_text, [f"optional {SPANK_PLUGIN}{contexts}", *pyxis_line.plugstack_lines(node, plugstack_text)]
    )
    files = {
        node.paths.slurm_conf: text,
        node.paths.plugstack_conf: plugstack,
        node.paths.unit(f"{SWEEP_UNIT}.d/user.conf"): SWEEP_DROP_IN.format(user=slurm_user(conf)),
    }
    if location_on_mount:
        files[node.paths.unit(f"{UNITS[1]}.d/hyperpod-kit.conf")] = DROP_IN.format(
            path=location_on_mount.mount.path,
            keeper=SLURM_STATE_UNIT,
            mount=f"{systemd_escape_path(location_on_mount.mount.path)}.mount",
            carrier=carrier_unit(location_on_mount.mount),
        )
    return files, notes


def read_slurm_conf(node: Node) -> str:
    """What slurm.conf says now. Raises NodeError when the platform has not written it."""
    conf = read_text(node.paths.slurm_conf)
    if conf is None:
        raise NodeError(
            f"{node.paths.slurm_conf}: the platform has not written it on this controller",
            hint="check provisioning_parameters.json in the bundle, or SlurmConfig of the request",
        )
    return conf


def slurm_user(slurm_conf_text: str) -> str:
    """Return SlurmUser of slurm.conf, who may do with jobs what the sweep does. Raises NodeError."""
    user = parse_slurm_conf_settings(slurm_conf_text).get("slurmuser", "root")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", user):
        raise NodeError(f"SlurmUser is {user!r} in slurm.conf, expected the name of a user")
    return user


def existing_kit_state_location(slurm_conf_text: str) -> str:
    """Return StateSaveLocation of slurm.conf where the kit has put it on a mount earlier; "" elsewhere."""
    location = parse_slurm_conf_settings(slurm_conf_text).get("statesavelocation", "")
    if f"/{state.DIRECTORY}/" in location:
        return location
    return ""


@dataclass(frozen=True)
class StateMove:
    """slurmctld's state is to go to `where`; `current_directory`: the directory in which it has it now, "" where nobody
    says; `running`: what is known of the slurmctld that runs, and is stopped for the move."""

    where: state.StateLocation
    current_directory: str
    running: Optional[RunningSlurmctld]


def pending_state_move(node: Node) -> Optional[StateMove]:
    """Return the move that is due when slurmctld's state is elsewhere than configured, else None. Raises
    NodeError.

    A slurmctld that runs may have another directory than slurm.conf names: it has not read that anew.
    """
    where = state.shared_state_location(node)
    if where is None:
        return None
    written = parse_slurm_conf_settings(read_slurm_conf(node)).get("statesavelocation", "")
    slurmctld = query_slurmctld(node)
    if slurmctld:
        location = slurmctld.location
    else:
        location = written
    if written == location == where.state:
        return None
    if location != where.state:
        current = location
    else:
        current = written
    return StateMove(where, current, running_slurmctld_from_status(node, where, slurmctld))


def describe_pending_hooks_and_state_move(node: Node) -> str:
    """Return what `install_hooks_and_move_state` would do, in words; "" for nothing. Raises NodeError."""
    differing = [path for path, text in expected_files(node)[0].items() if read_text(path) != text]
    move = pending_state_move(node)
    leading = directory_to_link(node, read_slurm_conf(node))
    parts = []
    if move:
        parts.append(_describe_move(node, move))
    if differing:
        parts.append(f"the kit's lines into {', '.join(differing)}")
    if leading:
        parts.append(f"make {leading} point to it")
    if deferred_actions.is_recorded(node, RESTART):
        parts.append("start slurmctld")
    elif not differing and deferred_actions.is_recorded(node, RECONFIGURE):
        parts.append("scontrol reconfigure")
    return "; ".join(part for part in parts if part)


def _describe_move(node: Node, move: StateMove) -> str:
    kept = f"keep Slurm's state in {move.where.state}"
    decision = state.decide_which_state_copy_goes_on(
        node, move.where, move.current_directory, requested=node.requested_state_copy, running=move.running
    )
    if decision.choice == StateCopy.LOCAL and state.has_saved_state(node, move.where):
        kept = f"{kept}, as it is in {move.current_directory}; set the present state aside"
    if decision.comparison:
        return f"{kept}: {decision.comparison}"
    return kept


def install_hooks_and_move_state(node: Node) -> Tuple[bool, List[str]]:
    """Put the kit's lines into slurm.conf and plugstack.conf; return (changed, notes). A running slurmctld
    reads them anew, by `scontrol reconfigure` or a restart.

    Its state is moved, when it is not where the configuration wants it, while it does not run. Raises
    NodeError.
    """
    files, notes = expected_files(node)
    move = pending_state_move(node)
    if move:
        notes += _move_state(node, move)
    differing = [path for path, text in files.items() if read_text(path) != text]
    notes += _stop_slurmctld_for_what_it_reads_at_its_start(node, files[node.paths.slurm_conf], bool(differing))
    if differing:
        deferred_actions.record_action(node, RECONFIGURE)
        for path in differing:
            write_if_different(path, files[path])
    where = state.shared_state_location(node)
    leading = directory_to_link(node, read_slurm_conf(node))
    if where and leading:
        notes.append(replace_by_link_to_shared_state(node, leading, where))
    has_read_files = _have_slurmctld_read_changed_files(node)
    cluster_id.delete_record_of_new_database(node)
    return has_read_files or bool(leading), notes


def _stop_slurmctld_for_what_it_reads_at_its_start(node: Node, slurm_conf_text: str, differs: bool) -> List[str]:
    """Stop slurmctld where the new files take effect only at its start; return notes. Raises NodeError."""
    # A controller that stands by reads its files when it starts, and is told nothing by `scontrol reconfigure`.
    standing_by = differs and node.config.controllers > 1
    has_new_database = cluster_id.is_database_new(node)
    if (
        standing_by
        or has_new_database
        or accounting_lines.needs_slurmctld_restart(read_slurm_conf(node), slurm_conf_text)
    ):
        stop_slurmctld_and_record_restart(node)
    if not has_new_database:
        return []
    note = cluster_id.set_own_id_aside(node, slurm_conf_text)
    if not note:
        return []
    return [note]


def _have_slurmctld_read_changed_files(node: Node) -> bool:
    """Start slurmctld or have it reconfigured, as recorded; False where nothing is. Raises NodeError."""
    if not deferred_actions.is_recorded(node, RECONFIGURE) and not deferred_actions.is_recorded(node, RESTART):
        return False
    systemd.daemon_reload(node)
    if deferred_actions.is_recorded(node, RESTART):
        start_slurmctld(node)
        await_slurmctld_response(node)
    # After a restart too: nodes that run already have a copy of the configuration and are told only by this.
    if systemd.is_active(node, UNITS[1]):
        node.runner.run([node.paths.scontrol, "reconfigure"], timeout=60)
    deferred_actions.delete_action_record(node, RECONFIGURE)
    deferred_actions.delete_action_record(node, RESTART)
    return True


def _move_state(node: Node, move: StateMove) -> List[str]:
    """Stop slurmctld and make the newer copy of its state the shared one; return notes. Raises NodeError:
    slurmctld is started again then, on what it had."""
    # What cannot be decided is known before anything is stopped; what slurmctld saves when it ends is newer still.
    state.decide_which_state_copy_goes_on(
        node, move.where, move.current_directory, requested=node.requested_state_copy, running=move.running
    )
    stop_slurmctld_and_record_restart(node)
    try:
        decision = state.decide_which_state_copy_goes_on(
            node, move.where, move.current_directory, requested=node.requested_state_copy, running=move.running
        )
        if decision.choice == StateCopy.LOCAL and state.has_saved_state(node, move.where):
            claim_lease_or_require_others_down(node, move.where)
        done = state.make_chosen_copy_the_shared_one(
            node, move.where, slurm_user(read_slurm_conf(node)), move.current_directory, decision.choice
        )
    except NodeError:
        if deferred_actions.is_recorded(node, RESTART):
            start_slurmctld(node)
            deferred_actions.delete_action_record(node, RESTART)
        raise
    if done:
        audit.record_root_action_in_journal(
            "moved", f"Slurm's state to {move.where.state}", done, asked_by="node apply"
        )
    return [note for note in (done, decision.comparison) if note]


def stop_slurmctld_and_record_restart(node: Node) -> None:
    """Stop slurmctld where it runs, and record that its start is due: jobs go on without it."""
    if systemd.is_active(node, UNITS[1]):
        deferred_actions.record_action(node, RESTART)
        node.runner.run(["systemctl", "stop", UNITS[1]], timeout=120)


def start_slurmctld(node: Node) -> bool:
    """Start slurmctld; True when it did not run before. Raises NodeError with the reason of what it waits for."""
    timeout = 90.0
    if state.shared_state_location(node):
        timeout = STARTS_WITHIN
    try:
        return systemd.start(node, UNITS[1], timeout=timeout)
    except RunError as err:
        keeper = ""
        if state.shared_state_location(node):
            keeper = systemd.last_log_line(node, SLURM_STATE_UNIT)
        raise NodeError(
            f"slurmctld does not start: {keeper or systemd.last_log_line(node, UNITS[1]) or err.message}",
            hint=f"journalctl -u slurmctld -u {SLURM_STATE_UNIT}",
        ) from err


def describe_pending_daemon_starts(node: Node) -> str:
    """Return what `start_controller` would do, in words; "" for nothing."""
    resting = [unit for unit in UNITS if not (systemd.is_enabled(node, unit) and systemd.is_active(node, unit))]
    if resting:
        return f"enable and start {', '.join(resting)}"
    return ""


def start_munge_and_slurmctld(node: Node) -> bool:
    """Start munge and slurmctld, now and at boot, and wait until slurmctld answers. Raises NodeError."""
    changed = systemd.enable(node, *UNITS)
    changed = systemd.start(node, UNITS[0], timeout=90) or changed
    changed = start_slurmctld(node) or changed
    await_slurmctld_response(node)
    return changed


def await_slurmctld_response(node: Node) -> None:
    """Wait until slurmctld answers `scontrol ping`. Raises NodeError."""

    def check_response() -> Optional[bool]:
        try:
            output = node.runner.run([node.paths.scontrol, "ping"], timeout=20, check=False).stdout
        except RunError:
            return None
        if " is UP" in output:
            return True
        return None

    if wait_for(check_response, seconds=ANSWERS_WITHIN, clock=node.clock, first=0.2, longest=2.0) is None:
        raise NodeError(
            f"slurmctld does not answer after {ANSWERS_WITHIN:g} s: {systemd.last_log_line(node, 'slurmctld.service')}",
            hint="journalctl -u slurmctld",
        )


def _apply_hooks(node: Node) -> StepOutcome:
    changed, notes = install_hooks_and_move_state(node)
    return StepOutcome(changed, "; ".join(notes))


def _apply_controller_start(node: Node) -> StepOutcome:
    return StepOutcome(start_munge_and_slurmctld(node))


HOOKS_STEP = Step(
    "slurm-hooks",
    _apply_hooks,
    describe_pending_hooks_and_state_move,
    roles=(Role.CONTROLLER,),
    modes=SCRIPTED,
    after_success=True,
)
# In on_init_complete mode HyperPod has started Slurm, and restarting slurmd there would undo its configuration.
STEP = Step(
    "slurm-controller",
    _apply_controller_start,
    describe_pending_daemon_starts,
    roles=(Role.CONTROLLER,),
    modes=(LifecycleMode.ON_CREATE,),
    after_success=True,
)


# Before the shared state of slurmctld is put aside for a newer copy: no other machine's slurmctld works on it.

CLAIM_WITHIN = lease.TAKEOVER + 20.0
"""Seconds in which another machine that has gone shows it."""


def claim_lease_or_require_others_down(node: Node, where: StateLocation) -> None:
    """Claim the lease on the shared state, or, with several controllers, require that all others are down.
    Raises NodeError where another slurmctld may work on it. The local one has been stopped."""
    if node.config.controllers > 1:
        _require_other_controllers_down(node)
        return
    make_state_directories(node, where)
    messages: List[str] = []
    keeper = LeaseKeeper(node, where, messages.append)
    # A lease that this machine has already is left to the unit that renews it.
    if not keeper.owns() and not keeper.claim(within=CLAIM_WITHIN):
        reason = "no lease on it"
        if messages:
            reason = messages[-1]
        raise NodeError(
            f"the shared state was not replaced with this machine's newer state: {reason}",
            hint="stop slurmctld and hyperpod-kit-slurm-state.service on the other machine, then repeat the command",
        )


def _require_other_controllers_down(node: Node) -> None:
    try:
        pinged = node.runner.run([node.paths.scontrol, "ping"], timeout=60, check=False).stdout
    except RunError as err:
        raise NodeError(f"unknown whether the other controllers run: {err.message}", hint="scontrol ping") from err
    running = re.findall(r"(?m)^Slurmctld\(\w+\) at (\S+) is UP", pinged)
    if running:
        raise NodeError(
            "the shared state is not replaced with this machine's newer state while slurmctld runs on "
            f"{', '.join(running)}",
            hint=(
                "on the other controllers: systemctl stop slurmctld; then hyperpod-kit node apply on this one, and "
                "last on the others"
            ),
        )


# Where slurmctld would have its state if our lines were not in slurm.conf: a link to where it has it.
#
# HyperPod's agent, or a person, may write slurm.conf without our block, and a slurmctld that reads it anew (since
# Slurm 23.11 `scontrol reconfigure` starts it anew) would begin with nothing, or with what lay there, and end every
# job that it does not know. With the link it goes on with the same state.


def directory_to_link(node: Node, conf: str) -> str:
    """Return the directory that is to become a link, "" for none: slurm.conf names no directory on this
    machine's own disk, several controllers share it, or it is a link already. `conf`: the text of
    slurm.conf."""
    configured = parse_slurm_conf_settings(without_kit_block(conf)).get("statesavelocation", "")
    where = state.shared_state_location(node)
    if where is None or node.config.controllers > 1 or configured == where.state or configured.count("/") < 3:
        return ""
    if any(configured.startswith(f"{mount.path.rstrip('/')}/") for mount in node.mounts):
        return ""
    path = node.paths.under_root(configured)
    try:
        leads = os.readlink(path)
    except FileNotFoundError:
        if os.path.isdir(os.path.dirname(path)):
            return configured
        return ""
    except OSError:
        if os.path.isdir(path) and not os.path.ismount(path):
            return configured
        return ""
    if leads != where.state:
        return configured
    return ""


def replace_by_link_to_shared_state(node: Node, directory: str, where: state.StateLocation) -> str:
    """Make `directory` a link to the shared state; what was there is put aside. slurmctld must not work on it.

    Return what was done, in words, also where it cannot be done: then the directory stays as it is.
    """
    path = node.paths.under_root(directory)
    link = f"{path}.hyperpod-kit"
    try:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(link)
        by_descriptor.symlink(where.state, link)
        kept = ""
        if os.path.lexists(path):
            kept = state.unused_set_aside_path(path, node.clock.wall())
            by_descriptor.rename(path, kept)
        by_descriptor.rename(link, path)
        state.remove_oldest_set_aside_copies(path, kept)
    except OSError as err:
        return f"{directory} does not point to {where.state}: {err.strerror}"
    if not kept:
        return f"{directory} now points to {where.state}"
    return f"{directory} now points to {where.state}; its previous content is kept in {kept}"


# The slurmctld of this machine, while it runs: where it has its state, and which copies of it are its own work.

_LOCATION = re.compile(r"(?m)^StateSaveLocation\s*=\s*(\S+)\s*$")
_BOOT_TIME = re.compile(r"(?m)^BOOT_TIME\s*=\s*(\S+)\s*$")


SHOWN_TO = 1.0
"""Seconds: slurmctld shows the second in which it has started."""


@dataclass(frozen=True)
class SlurmctldStatus:
    """What it says of itself. `location`: the directory in which it saves; `since`: Unix seconds of its start, None
    where it does not say."""

    location: str
    since: Optional[float]


def query_slurmctld(node: Node) -> Optional[SlurmctldStatus]:
    """Query where the running slurmctld saves and since when it runs; None when it does not run or respond, or
    another machine's may respond."""
    if node.config.controllers > 1 or not systemd.is_active(node, UNIT):
        return None
    try:
        # Times in UTC: scontrol formats them.
        argv = [node.paths.scontrol, "show", "config"]
        printed = node.runner.run(argv, timeout=20, check=False, env={"TZ": "UTC"}).stdout
    except RunError:
        return None
    location = _LOCATION.search(printed)
    if location:
        return SlurmctldStatus(location.group(1), _parse_boot_time(printed))
    return None


def running_slurmctld_from_status(
    node: Node, where: StateLocation, slurmctld: Optional[SlurmctldStatus]
) -> Optional[RunningSlurmctld]:
    """Return on which copy of the state the running slurmctld works, and whether it alone can have saved the
    shared one since its start. None: not known."""
    if slurmctld is None or slurmctld.since is None:
        return None
    if slurmctld.location == where.state:
        copy = StateCopy.SHARED
    else:
        copy = StateCopy.LOCAL
    return RunningSlurmctld(copy, slurmctld.since, _has_held_lease(node, where, slurmctld.since))


def _has_held_lease(node: Node, where: StateLocation, since: float) -> bool:
    """Whether this machine has had the lease on the shared state from that moment until now."""
    try:
        taken = LeaseKeeper(node, where, lambda text: None).owned_since()
    except NodeError:
        return False
    return taken is not None and taken < since + SHOWN_TO


def _parse_boot_time(printed: str) -> Optional[float]:
    match = _BOOT_TIME.search(printed)
    try:
        if match:
            return float(calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")))
        return None
    except ValueError:
        return None
