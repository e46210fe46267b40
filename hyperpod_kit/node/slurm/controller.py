"""The node that runs slurmctld: our hooks in its configuration, then the daemons, in this order.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.states import LifecycleMode, Role
from hyperpod_kit.model.units import SLURM_STATE_UNIT, SWEEP_UNIT, carrier_unit, systemd_escape_path
from hyperpod_kit.node import deferred_actions, systemd
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_if_different
from hyperpod_kit.node.paths import SPANK_PLUGIN
from hyperpod_kit.node.slurm import accounting_lines, fence, platform_directory, pyxis_line, running_slurmctld, state
from hyperpod_kit.node.slurm.hooks import merge_hooks, parse_slurm_conf_settings, with_kit_block, without_setting
from hyperpod_kit.node.slurm.saved_state import RunningSlurmctld, StateCopy
from hyperpod_kit.node.step import SCRIPTED, Step, StepOutcome
from hyperpod_kit.node.timing import wait_for

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
    slurmctld = running_slurmctld.query_slurmctld(node)
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
    return StateMove(where, current, running_slurmctld.running_slurmctld_from_status(node, where, slurmctld))


def describe_pending_hooks_and_state_move(node: Node) -> str:
    """Return what `install_hooks_and_move_state` would do, in words; "" for nothing. Raises NodeError."""
    differing = [path for path, text in expected_files(node)[0].items() if read_text(path) != text]
    move = pending_state_move(node)
    leading = platform_directory.directory_to_link(node, read_slurm_conf(node))
    parts = []
    if move:
        parts.append(_describe_move(node, move))
    if differing:
        parts.append(f"our lines into {', '.join(differing)}")
    if leading:
        parts.append(f"let {leading} lead to it")
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
        kept = f"{kept}, as it is in {move.current_directory}; put aside what is there now"
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
    # A controller that stands by reads its files when it starts, and is told nothing by `scontrol reconfigure`.
    standing_by = bool(differing) and node.config.controllers > 1
    if standing_by or accounting_lines.needs_slurmctld_restart(read_slurm_conf(node), files[node.paths.slurm_conf]):
        stop_slurmctld_and_record_restart(node)
    if differing:
        deferred_actions.record_action(node, RECONFIGURE)
        for path in differing:
            write_if_different(path, files[path])
    where = state.shared_state_location(node)
    leading = platform_directory.directory_to_link(node, read_slurm_conf(node))
    if where and leading:
        notes.append(platform_directory.replace_by_link_to_shared_state(node, leading, where))
    if not deferred_actions.is_recorded(node, RECONFIGURE) and not deferred_actions.is_recorded(node, RESTART):
        return bool(leading), notes
    systemd.daemon_reload(node)
    if deferred_actions.is_recorded(node, RESTART):
        start_slurmctld(node)
        await_slurmctld_response(node)
    # After a restart too: nodes that run already have a copy of the configuration and are told only by this.
    if systemd.is_active(node, UNITS[1]):
        node.runner.run([node.paths.scontrol, "reconfigure"], timeout=60)
    deferred_actions.delete_action_record(node, RECONFIGURE)
    deferred_actions.delete_action_record(node, RESTART)
    return True, notes


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
            fence.claim_lease_or_require_others_down(node, move.where)
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
