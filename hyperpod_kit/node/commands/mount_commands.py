"""`hyperpod-kit node mounts|health|repair|drain|gate|memory`: what a person, a unit and a hook of Slurm ask of a node.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Callable, Dict, TextIO, Tuple

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.tables import Column, format_rows
from hyperpod_kit.errors import Absent, NodeError, Unreachable, UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import MountState
from hyperpod_kit.node.machine.context import Node, open_node
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json

if TYPE_CHECKING:
    import argparse


def check_mounts_or_run_action_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.health import warnings
    from hyperpod_kit.node.observe import health_record, user_access
    from hyperpod_kit.node.observe.check import check_mounts
    from hyperpod_kit.node.slurm.guard.report import recorded_findings_or_guard_silent

    if args.names and args.names[0] in ACTIONS:
        if len(args.names) != 2:
            raise UsageError(f"mounts {args.names[0]} takes one NAME")
        node = open_node()
        return ACTIONS[args.names[0]](node, args.names[1])
    node = open_node()
    mounts = node.mounts
    if args.names:
        mounts = tuple(node.mount(name) for name in args.names)
    # Root asks as thoroughly as the timer does; what others may write says nothing about the mount.
    nearly_full = health_record.names_of_nearly_full(health_record.load_health_records(node))
    statuses = check_mounts(node, mounts, deep=os.geteuid() == 0, nearly_full=nearly_full)
    serving = [mount for mount, status in zip(mounts, statuses) if status.state == MountState.OK]
    refused = None
    if os.geteuid() == 0:
        refused = user_access.find_user_refusals(node, serving)
    warned = warnings.warning_lines_about_node(node, refused)
    slurm = recorded_findings_or_guard_silent(node)
    if args.json:
        terminal.print_json(
            document(
                "node mounts",
                {
                    "node": node.facts.node,
                    "instance_id": node.facts.instance_id,
                    "bundle_id": node.bundle_id,
                    "role": node.facts.role,
                    "checked_at": node.clock.wall(),
                    "mounts": [status.to_dict() for status in statuses],
                    "warnings": warned,
                    "slurm": [dataclass_to_json(finding) for finding in slurm],
                },
            )
        )
    else:
        print(format_rows(_MOUNT_COLUMNS, [_mount_row(status) for status in statuses]))
        for line in [*warned, *(f"Slurm: {finding.message}" for finding in slurm)]:
            print(f"warning: {line}", file=sys.stderr)
    if all(status.healthy for status in statuses):
        return 0
    return 1


_MOUNT_COLUMNS = ("NAME", "STATE", "PATH", Column("SOURCE", folds=True), Column("DETAIL", folds=True))


def _mount_row(status: MountStatus) -> Tuple[str, ...]:
    full = status.fullness_text
    if status.nearly_full:
        full = f"nearly full: {status.fullness_text}"
    detail = "; ".join(filter(None, (status.detail, full)))
    return status.name, status.state, status.path, status.source, detail


def ensure_mounted_action(node: Node, name: str) -> int:
    from hyperpod_kit.model.units import carrier_unit
    from hyperpod_kit.node.mounts.ensure import ensure_mounted

    mount = node.mount(name)
    if mount.traits.service.daemon:
        raise UsageError(f"{name} is mounted by its daemon's unit", hint=f"systemctl start {carrier_unit(mount)}")
    ensure_mounted(node, mount)
    return 0


def count_start_and_prepare_action(node: Node, name: str) -> int:
    from hyperpod_kit.node.mounts import back_off
    from hyperpod_kit.node.mounts.ensure import clear_path_for_mount_daemon

    back_off.count_daemon_start(node, node.mount(name))
    clear_path_for_mount_daemon(node, node.mount(name))
    return 0


def await_healthy_and_record_mount_action(node: Node, name: str) -> int:
    from hyperpod_kit.node.mounts import back_off
    from hyperpod_kit.node.mounts.ensure import await_mounted_or_raise
    from hyperpod_kit.node.mounts.kinds.mount_record import record_current_mount_as_kits
    from hyperpod_kit.node.mounts.protect import try_set_protective_flags

    await_mounted_or_raise(node, node.mount(name), seconds=60.0)
    try_set_protective_flags(node, node.mount(name))
    record_current_mount_as_kits(node, node.mount(name))  # from now on a mount that is laid above ours is seen as that
    back_off.delete_daemon_start_count(node, node.mount(name))
    return 0


def clear_dead_and_pause_action(node: Node, name: str) -> int:
    from hyperpod_kit.node.mounts import back_off
    from hyperpod_kit.node.mounts.ensure import detach_dead_mount

    detach_dead_mount(node, node.mount(name))
    node.clock.sleep(back_off.seconds_before_next_daemon_start(node, node.mount(name)))
    return 0


ACTIONS: Dict[str, Callable[[Node, str], int]] = {
    "ensure": ensure_mounted_action,
    "prepare": count_start_and_prepare_action,
    "await": await_healthy_and_record_mount_action,
    "clear": clear_dead_and_pause_action,
}
"""Words that no mount may have for a name where they are used: the second word decides."""


def run_health_check_command(args: argparse.Namespace) -> int:
    return run_health_check_and_print(args.json)


def run_health_check_and_print(as_json: bool) -> int:
    """Run one health check, as the timer starts it, and print what changed. Exit code 0 when all mounts serve
    and the guard knows of no fault of Slurm's, 1 when not or when that cannot be kept, 3 when another check
    is at it."""
    from hyperpod_kit.node.health.check_cycle import check_mounts_and_start_repairs
    from hyperpod_kit.node.slurm.guard.report import recorded_findings_or_guard_silent

    node = open_node()
    try:
        done = check_mounts_and_start_repairs(node)
    except PermissionError as err:
        raise NodeError(f"{err.filename}: {err.strerror}", hint="sudo hyperpod-kit node health") from err
    if done is None:
        raise Unreachable(
            "another process is checking the mounts",
            hint="hyperpod-kit node mounts checks them without counting failures",
        )
    for line in done.messages:
        print(line, file=sys.stderr)
    slurm = recorded_findings_or_guard_silent(node)
    if not _is_journal(sys.stderr):
        # Each time for a person; the journal has it when it changes, of Slurm from the guard's own unit.
        for record in done.records.values():
            if record.users_refused:
                print(f"warning: {record.users_refused}", file=sys.stderr)
        for finding in slurm:
            print(f"Slurm: {finding.message}", file=sys.stderr)
    if as_json:
        terminal.print_json(
            document(
                "node health",
                {
                    "node": node.facts.node,
                    "role": node.facts.role,
                    "bundle_id": node.bundle_id,
                    "repairs_ordered": done.ordered,
                    "unkept": done.unkept,
                    "mounts": {name: asdict(record) for name, record in done.records.items()},
                    "slurm": [dataclass_to_json(finding) for finding in slurm],
                },
            )
        )
    healthy = all(record.is_usable_by_jobs for record in done.records.values()) and not any(
        finding.fault for finding in slurm
    )
    if not done.unkept and healthy:
        return 0
    return 1


def _is_journal(stream: TextIO) -> bool:
    """Whether a stream goes to the journal, by what systemd says of the streams that it opened (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"


def repair_mount_command(args: argparse.Namespace) -> int:
    """Repair one mount now. Exit code 0 when it serves afterwards, 1 when not, 3 when another repair is at it."""
    from hyperpod_kit.node.health.repair import repair_if_needed_and_save_outcome

    node = open_node()
    try:
        done = repair_if_needed_and_save_outcome(node, node.mount(args.name))
    except PermissionError as err:
        raise NodeError(f"{err.filename}: {err.strerror}", hint=f"sudo hyperpod-kit node repair {args.name}") from err
    if done is None:
        raise Unreachable(f"{args.name}: another process is repairing it")
    print(f"{args.name}: {done.summary}", file=sys.stderr)
    if done.ok:
        return 0
    return 1


def update_slurm_drain_command(args: argparse.Namespace) -> int:
    """Drain this node in Slurm, or undrain it, by whether its mounts serve. Exit code 0 when Slurm agrees;
    raises where it refuses or does not respond."""
    from hyperpod_kit.node.slurm.drain import drain_or_undrain_for_mounts

    node = open_node()
    if not node.config.health.drain:
        raise Absent("this cluster's configuration has no health.drain", hint='"health": {"drain": true}')
    summary = drain_or_undrain_for_mounts(node)
    if summary:
        print(summary, file=sys.stderr)
    return 0


def clean_up_memory_command(args: argparse.Namespace) -> int:
    """Save and free the shared memory that ended jobs left. Exit code 0 when nothing is left that could be
    freed, 1 when something had to stay, 3 when another process is at it, 86 when something complete was
    given up."""
    from hyperpod_kit.node.memory.cleanup import save_and_free_ended_jobs_memory

    outcomes = save_and_free_ended_jobs_memory(open_node())
    if outcomes is None:
        raise Unreachable("another process is freeing shared memory")
    for outcome in outcomes:
        job = "a run without a job"
        if outcome.job:
            job = f"job {outcome.job}"
        line = f"{job} left captures of uid {outcome.uid} on this node: {outcome.summary}"
        if not outcome.done:
            line += "; they stay"
        print(line, file=sys.stderr)
    if any(outcome.lost for outcome in outcomes):
        return ExitCode.GAVE_UP
    if all(outcome.done for outcome in outcomes):
        return 0
    return 1


def prolog_gate_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.commands.prolog_gate import (
        record_spool_failure,
        refusal_text,
        repair_or_record_failing_mounts,
        restore_rules_or_reason,
    )
    from hyperpod_kit.node.memory.user_directory import ensure_user_directory

    node = open_node()
    started_at = node.clock.monotonic()
    job = os.environ.get("SLURM_JOB_ID", "")
    asked_by = "node gate"
    if job:
        asked_by = f"Prolog of job {job}"
    ensure_user_directory(node, os.environ.get("SLURM_JOB_UID", ""), asked_by=asked_by)
    failing = repair_or_record_failing_mounts(node, os.environ.get("SLURM_JOB_USER", ""))
    if failing:
        reason = refusal_text(failing)
    else:
        reason = restore_rules_or_reason(node) or record_spool_failure(node)
    devices = node.config.steps.device_checks
    if not reason and devices is not None and devices.gate:
        from hyperpod_kit.node.devices.gate import (
            refusal_for_device_faults_recording_it,
        )  # off by default, and dear to import

        reason = refusal_for_device_faults_recording_it(node, devices, started_at)
    if reason:
        print(reason, file=sys.stderr)
    if reason:
        return 1
    return 0
