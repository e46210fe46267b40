"""One health check: look at all mounts, count, order repairs, tell Slurm and the log, leave metrics. Bounded.

Nothing is repaired here: a repair takes as long as it takes, in a unit of its own, while the checks go on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.node_config import HealthPolicy
from hyperpod_kit.model.states import REPAIRS, MountState
from hyperpod_kit.model.units import DRAIN_UNIT, repair_unit
from hyperpod_kit.node.health import metrics
from hyperpod_kit.node.health.repair_policy import repair_action_due_after_back_off
from hyperpod_kit.node.health.warnings import warning_lines_about_node
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, remove_partials_of_dead_writers, write_volatile
from hyperpod_kit.node.machine.locks import hold_lock, is_locked
from hyperpod_kit.node.machine.steplog import append_json_line, format_timestamp
from hyperpod_kit.node.mounts.protect import find_unprotected
from hyperpod_kit.node.observe import health_record, user_access
from hyperpod_kit.node.observe.check import DEEP, DEEP_EVERY, MountCheck, deep_probe_mode_letters, observe_mounts
from hyperpod_kit.node.observe.health_record import HealthRecord
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.node.slurm import munge
from hyperpod_kit.node.slurm.guard.report import recorded_findings_or_guard_silent
from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.system.mountinfo import MountEntry
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.agent.shm.failure_note import FoundNote
    from hyperpod_kit.checkpoint.agent.shm.job_note import FoundJob

METRICS_WITHIN = 5.0
"""Seconds for the file of metrics."""


@dataclass(frozen=True)
class CheckCycle:
    """What one check left. messages: lines for a person, of what changed; ordered: names of the mounts to be repaired;
    unkept: why the next check will not know what this one has found, "" when it will."""

    records: Mapping[str, HealthRecord]
    ordered: Tuple[str, ...] = ()
    messages: Tuple[str, ...] = ()
    unkept: str = ""


def check_mounts_and_start_repairs(node: Node) -> Optional[CheckCycle]:
    """Check all mounts of this node once: save their records, start repairs and what else is due, write
    metrics and the log line; None when another check is at it."""
    with hold_lock(node, "health", seconds=0) as locked:
        if locked:
            return _check_mounts_and_start_repairs(node)
        return None


def _check_mounts_and_start_repairs(node: Node) -> CheckCycle:
    started_at = node.clock.monotonic()
    now = node.clock.wall()
    before = health_record.load_health_records(node)

    def modes(mount: Mount, entry: MountEntry) -> str:
        return due_deep_probe_mode_or_empty(mount, before.get(mount.name), entry.mount_id, now)

    mounts = node.mounts
    looks = observe_mounts(node, mounts, modes=modes, nearly_full=health_record.names_of_nearly_full(before))
    records: Dict[str, HealthRecord] = {}
    ordered: List[str] = []
    for mount, mount_check in zip(mounts, looks):
        record = with_new_repair_result(
            node, mount.name, record_after_check(before.get(mount.name), mount_check, node.config.health)
        )
        action = repair_action_due_after_back_off(mount, mount_check.status, record, node.config.health.interval)
        if action in REPAIRS and not is_locked(node, f"{mount.name}.repair"):
            ordered.append(mount.name)
            record = replace(
                record, repairs=record.repairs + 1, repairs_total=record.repairs_total + 1, repaired_at=now
            )
        records[mount.name] = record
    records = update_records_by_probing_as_users(node, before, records, now)
    # Before anything is ordered: a repair reads how often its mount has failed.
    unkept = save_records_and_degraded_marks(node, records, now)
    units = [repair_unit(name) for name in ordered]
    munge_state = munge.start_munged_if_due(node)
    rules_state = packet_rules.restore_rules(node)
    messages = [
        *(message for message in (unkept, munge_state.message, rules_state.message) if message),
        *describe_health_changes(before, records),
    ]
    if _is_slurm_drain_update_due(node, records, first=not before):
        units.append(DRAIN_UNIT)
    if units:
        try:
            # Not waited for: neither may hold up the next check.
            node.runner.run(["systemctl", "start", "--no-block", *units], timeout=10)
        except RunError as err:
            messages.append(f"cannot start {' '.join(units)}: {err.message}")
    directory = node.config.health.textfile_directory
    if directory:
        textfile = f"{directory}/{metrics.FILE}"
        text = metrics.render_metrics(
            node,
            records,
            node.clock.monotonic() - started_at,
            records_kept=not unkept,
            is_munged_running=munge_state.runs,
            saves=read_checkpoint_save_notes(node),
            jobs=read_job_notes(node),
            unprotected_count=len(find_unprotected(node)),
            are_rules_in_force=rules_state.in_force,
        )
        try:
            # Another may be at home there, the exporter's user for one, and have something mounted that hangs.
            call_in_child(textfile, partial(write_volatile, node.paths.under_root(textfile), text), METRICS_WITHIN)
        except NodeError as err:
            messages.append(f"no metrics: {err.message}")
    try:
        log_mounts_report_if_due(node, records, now)
    except OSError as err:
        messages.append(f"the state could not be reported outside the node: {err}")
    return CheckCycle(records, tuple(ordered), tuple(messages), unkept)


def _is_slurm_drain_update_due(node: Node, records: Mapping[str, HealthRecord], *, first: bool) -> bool:
    """Return whether the configuration lets the kit drain this node, and Slurm must be queried for that now."""
    if not node.config.health.drain:
        return False
    from hyperpod_kit.node.slurm import drain  # off by default, and dear to import

    return drain.is_slurm_update_due(node, records, first=first)


def update_records_by_probing_as_users(
    node: Node, before: Mapping[str, HealthRecord], records: Mapping[str, HealthRecord], now: float
) -> Dict[str, HealthRecord]:
    """Return the records with what users cannot write: tried as these users now and then, and at once on a
    mount that is new."""
    updated = dict(records)
    due = [mount for mount in node.mounts if is_user_probe_due(before.get(mount.name), records[mount.name], now)]
    if not due or os.geteuid():
        return updated
    refused = user_access.find_user_refusals(node, due)
    for mount in due:
        refusal = refused.get(mount.name, "")
        updated[mount.name] = replace(records[mount.name], users_refused=refusal, users_asked_at=now)
    return updated


def is_user_probe_due(before: Optional[HealthRecord], record: HealthRecord, now: float) -> bool:
    """Return whether writing as users is to be tried: on a mount that serves, when it has just begun to, or
    now and then."""
    if record.state != MountState.OK:
        return False
    if before is None or before.state != MountState.OK or before.mount_id != record.mount_id:
        return True
    return not 0 <= now - record.users_asked_at < DEEP_EVERY


def save_records_and_degraded_marks(node: Node, records: Mapping[str, HealthRecord], now: float) -> str:
    """Save the records and the degraded marks for the next check, the repairs and the scripts, and delete
    abandoned partial files; return why that failed, in a line, or "". Raises PermissionError."""
    directory = os.path.dirname(node.paths.health_records)
    try:
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(directory):
                if entry.is_dir(follow_symlinks=False):
                    remove_partials_of_dead_writers(entry.path)
            remove_partials_of_dead_writers(directory)
        health_record.save_health_records(node, records, now)
        write_or_delete_degraded_marks(node, records)
    except OSError as err:
        if isinstance(err, PermissionError):
            raise
        return (
            f"{directory} cannot be written: {err.strerror}: the mounts are checked and repaired, but failures are "
            f"not counted (df -h {directory}; df -i {directory})"
        )
    return ""


def record_after_check(before: Optional[HealthRecord], mount_check: MountCheck, policy: HealthPolicy) -> HealthRecord:
    """Return the record after this check of the mount."""
    entry, probed = mount_check.observation.entry, mount_check.observation.probed
    record = before or HealthRecord({})
    if probed is not None and probed.outcome == "not_asked":
        # A node that is too busy to ask has found nothing out: it must not be drained for that.
        return replace(record, status=asdict(mount_check.status))
    record = record.after_check(mount_check.status, policy)
    mount_id = 0
    if entry:
        mount_id = entry.mount_id
    answered = probed is not None and probed.outcome == "answered"
    failed = probed is not None and probed.operation in DEEP
    deep_at = record.deep_at
    # EACCES for root (root_squash) is not a failure: the mount is `ok` (classify.py).
    if mount_check.mode and answered and (not failed or mount_check.status.state == MountState.OK):
        deep_at = mount_check.status.checked_at
    elif failed or mount_id != record.mount_id:
        # It is tried again at the next check, so that the state stays what it is until it works.
        deep_at = 0.0
    return replace(record, mount_id=mount_id, deep_at=deep_at)


def due_deep_probe_mode_or_empty(mount: Mount, record: Optional[HealthRecord], mount_id: int, now: float) -> str:
    """What this check's probe does beyond stat and statvfs: not each time, and to a bucket a write once a mount.

    In a versioned bucket every write of a probe would stay behind as a version for ever.
    """
    mode = deep_probe_mode_letters(mount)
    if record is None or record.mount_id != mount_id or not record.deep_at:
        return mode
    if 0 <= now - record.deep_at < DEEP_EVERY:
        return ""
    if mount.traits.keeps_versions:
        return mode.replace("w", "")
    return mode


def with_new_repair_result(node: Node, name: str, record: HealthRecord) -> HealthRecord:
    """Return the record with the result of the last repair, when that is new."""
    if not record.repaired_at:
        return record
    result = read_json(node.paths.repair_result(name))
    # Another time, not a later one: the clock may have been set back.
    if not isinstance(result, dict) or result.get("at", 0.0) in (0.0, record.result_at):
        return record
    failed = record.failed_repairs_total + (not result["ok"])
    return replace(record, result_at=result["at"], last_repair=result["words"], failed_repairs_total=failed)


def write_or_delete_degraded_marks(node: Node, records: Mapping[str, HealthRecord]) -> None:
    """Write a small file for each mount that has failed too often, for scripts that read no JSON, and delete
    those of all others."""
    for name, record in records.items():
        path = node.paths.degraded_mark(name)
        if record.degraded:
            write_volatile(path, f"{record.state}: {record.status.get('detail', '')}\n")
        else:
            with contextlib.suppress(FileNotFoundError):
                by_descriptor.unlink(path)


def describe_health_changes(before: Mapping[str, HealthRecord], after: Mapping[str, HealthRecord]) -> List[str]:
    """One line for each change of a state, of being nearly full or of a degraded mark; none for a first check that is
    ok, and none for a repair, which has said its own words."""
    lines = []
    for name, record in after.items():
        old = before.get(name) or HealthRecord({"state": MountState.OK})
        detail = record.status.get("detail")
        if record.state != old.state:
            line = f"{name}: {old.state} -> {record.state}"
            if detail:
                line += f": {detail}"
            lines.append(line)
        if record.nearly_full != old.nearly_full:
            status = MountStatus(**record.status)
            condition = "no longer nearly full"
            if record.nearly_full:
                condition = "nearly full"
            lines.append(f"{name}: {condition}: {status.fullness_text}")
        if record.users_refused != old.users_refused:
            lines.append(f"{name}: {record.users_refused or 'users can write there again'}")
        if record.degraded and not old.degraded:
            lines.append(f"{name}: degraded after {counted(record.failures, 'failed check')}")
    return lines


# What programs of users leave in shared memory for the metrics: how saves fare, how jobs fare.
#
# Most nodes have neither most of the time, and every check would pay for the imports.


def read_checkpoint_save_notes(node: Node) -> Sequence[FoundNote]:
    """Read the notes in shared memory on how the saves of the runs here fare, which rank 0's agents write."""
    try:
        if not _has_user_file_ending_with(node, ".saves"):
            return ()
        from hyperpod_kit.checkpoint.agent.shm import failure_note

        return failure_note.read_all(node.paths.shared_memory)
    except OSError:
        return ()


def read_job_notes(node: Node) -> Sequence[FoundJob]:
    """Read the notes in shared memory on how jobs fare, which the `job run` of each batch script here writes."""
    try:
        if not _has_user_file_ending_with(node, ".job"):
            return ()
        from hyperpod_kit.checkpoint.agent.shm import job_note

        return job_note.read_notes_of_live_jobs(node.paths.shared_memory)
    except OSError:
        return ()


def _has_user_file_ending_with(node: Node, ending: str) -> bool:
    from hyperpod_kit.checkpoint.agent.shm import shm_paths

    with contextlib.closing(shm_paths.iter_user_files_as_uid_name_fd(node.paths.shared_memory, ending, 1)) as notes:
        return next(notes, None) is not None


# The state of all mounts as a line of provisioning.log, which HyperPod ships to CloudWatch: for whoever asks from
# outside and cannot log in here. `hyperpod-kit validate-mounts --via pull` reads these lines of a whole fleet.
#
# A line when a state has changed, and one every five minutes, so that silence says something too.

STEP = "mounts"
"""What the lines are known by, among those of the steps of the node's creation."""

EVERY = 300.0
"""Seconds after which an unchanged state is said again, by the first check that comes then."""

_ROOM = ("used_bytes", "free_bytes", "used_files", "free_files", "nearly_full")
_KEPT = ("kind", "path", "state", "source", "detail", *_ROOM)


def log_mounts_report_if_due(node: Node, records: Mapping[str, HealthRecord], now: float) -> None:
    """Append the report to provisioning.log when a state has changed or EVERY seconds have passed. Raises
    OSError when it cannot be written."""
    warning_lines = warning_lines_about_node(node)
    slurm = recorded_findings_or_guard_silent(node)
    now_is = {name: [record.state, record.nearly_full] for name, record in records.items()}
    # Details of Slurm's findings hold ages, and a line for each second would be no news.
    states = json.dumps([now_is, warning_lines, [finding.code for finding in slurm]], sort_keys=True)
    published = (read_text(node.paths.last_logged_mounts_line) or "").partition("\n")
    if published[2] == states and 0 <= now - _float_or_zero(published[0]) < EVERY:
        return
    append_json_line(node.paths.provisioning_log, make_mounts_report(node, records, now, warning_lines, slurm))
    write_volatile(node.paths.last_logged_mounts_line, f"{now!r}\n{states}")


def make_mounts_report(
    node: Node,
    records: Mapping[str, HealthRecord],
    now: float,
    warning_lines: Sequence[str] = (),
    slurm: Sequence[SlurmFinding] = (),
) -> Dict[str, Any]:
    """Return the line to publish: a step like the others, and a report as `node mounts --json` prints it,
    without empty fields."""
    mounts: List[Dict[str, Any]] = []
    for name, record in records.items():
        status = record.status
        entry = {"name": name, **{key: status.get(key) for key in _KEPT if status.get(key)}}
        if not status.get("required", True):
            entry["required"] = False
        mounts.append(entry)
    healthy = all(record.is_usable_by_jobs for record in records.values())
    report: Dict[str, Any] = {
        "ts": format_timestamp(now),
        "node": node.facts.node,
        "role": node.facts.role,
        "step": STEP,
        "status": "ok" if healthy else "failed",
        "instance_id": node.facts.instance_id,
        "bundle_id": node.bundle_id,
        "checked_at": round(now, 1),
        "mounts": mounts,
    }
    if warning_lines:
        report["warnings"] = list(warning_lines)
    if slurm:
        report["slurm"] = [dataclass_to_json(finding) for finding in slurm]
    return report


def _float_or_zero(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return 0.0
