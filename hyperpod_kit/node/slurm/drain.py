"""Keep jobs away from a node whose required mount is degraded, or whose slurmd could not store a job, and let them
back, without ever touching what somebody else said about the node.

What was told to Slurm is noted on disk: only a node whose reason is still, to the letter, the one that we gave is
undrained. An administrator who resumes a node that we drained is not argued with.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.states import STATES, Role
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, write_json
from hyperpod_kit.node.observe import health_record
from hyperpod_kit.node.observe.health_record import HealthRecord
from hyperpod_kit.node.slurm import gate_refusal
from hyperpod_kit.node.slurm.spool import SPOOL_REASON, SPOOL_REASON_OF_SLURM, spool_failure
from hyperpod_kit.slurm.control import MOUNT_REASON, node_fields
from hyperpod_kit.slurm.versions import HOLDS_BY_REASON
from hyperpod_kit.untrusted import by_descriptor

PREFIX = MOUNT_REASON

ASKED_BY = "node drain"

CLEAR = ""
"""Wish: every required mount serves, so nothing of ours should hold the node."""

AGAIN_AFTER = 60.0
"""Seconds until Slurm is asked again: it did not answer, it refused, or somebody else had drained the node."""

SECONDS = 20.0

_GIVEN = re.compile(r"\s*\[[^\]@\[]*@([0-9][^\]\s]*)\]")


def desired_reason_or_too_early(node: Node, records: Mapping[str, HealthRecord]) -> Optional[str]:
    """Return the reason for which this node should be drained, CLEAR for none, or None: something fails, but
    not for long enough."""
    # One user's home must not keep everybody from the node: for that user's jobs there is the gate.
    required = [(mount.name, records.get(mount.name)) for mount in node.mounts if mount.required and not mount.owner]
    for name, record in required:
        if record is not None and (record.degraded or (record.failures and has_unhandled_gate_refusal(node))):
            return f"{PREFIX}{name}:{record.state}"
    if all(record is not None and record.failures == 0 for _, record in required):
        return _spool_reason_or_clear(node)
    return None


def _spool_reason_or_clear(node: Node) -> str:
    """Return the reason for slurmd's spool directory while it lasts. Only the gate begins it: no check writes there
    unless a job was refused for it."""
    if _is_spool_watched(node) and spool_failure(node):
        return SPOOL_REASON
    return CLEAR


def _is_spool_watched(node: Node) -> bool:
    """Return whether the gate has refused a job for slurmd's spool directory, and the end of that was not seen yet."""
    refusal = gate_refusal.read_refusal(node.paths.gate_refusal_record) or {}
    return SPOOL_REASON in (refusal.get("slurm_reason"), _read_last_drain_note(node).get("wish"))


def has_unhandled_gate_refusal(node: Node) -> bool:
    """Return whether the gate has kept a job from starting, and Slurm was not updated since."""
    return gate_refusal.read_refusal(node.paths.gate_refusal_record) is not None


def is_slurm_update_due(node: Node, records: Mapping[str, HealthRecord], *, first: bool) -> bool:
    """Return whether Slurm must be queried and updated; costs no command. first: nothing is known yet
    since boot."""
    reason = desired_reason_or_too_early(node, records)
    if reason is None or node.facts.role == Role.CONTROLLER:
        return False
    note = _read_last_drain_note(node)
    if reason != note.get("wish", None if first else CLEAR) or has_unhandled_gate_refusal(node):
        return True
    return not note.get("settled", True) and not 0 <= node.clock.wall() - note.get("at", 0.0) < AGAIN_AFTER


@dataclass(frozen=True)
class SlurmNodeStatus:
    """This node in Slurm. state: Slurm's word, such as `IDLE+DRAIN`; reason: without its author, "" for none;
    reason_at: Unix seconds, 0.0 when not said; version: of the slurmd that has registered, "" when not said."""

    state: str
    reason: str
    reason_at: float
    version: str = ""

    @property
    def draining(self) -> bool:
        return "DRAIN" in self.state


def drain_or_undrain_for_mounts(node: Node) -> str:
    """Drain this node in Slurm, or undrain it, as its mounts require; return what was done, in words, "" for
    nothing.

    Raises NodeError when Slurm does not answer or refuses.
    """
    reason = desired_reason_or_too_early(node, health_record.load_health_records(node))
    if reason is None:
        return ""
    note = _read_last_drain_note(node)
    try:
        summary, given = _update_slurm_returning_message_and_reason(node, reason, note, query_local_node(node))
    except RunError as err:
        _save_note(node, desired=reason, reason=note.get("reason", ""), agreed=False)
        raise NodeError(
            f"the state of this node's mounts could not be reported to Slurm: {err.message}",
            hint=f"on the controller: scontrol show node {node.facts.node}",
        ) from err
    try:
        _save_note(node, desired=reason, reason=given, agreed=given == reason)
    except OSError as err:
        # The refusal's record is in memory and stays: without the note it alone says whose drain this is.
        raise NodeError(
            f"Slurm's state of this node was updated ({summary or 'no change'}), but not recorded in "
            f"{node.paths.last_drain_request_note}: {err.strerror or err}",
            hint="df -h / and df -i / on this node",
        ) from err
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.gate_refusal_record)
    return summary


def _update_slurm_returning_message_and_reason(
    node: Node, reason: str, note: Mapping[str, Any], slurm_node: SlurmNodeStatus
) -> Tuple[str, str]:
    """Drain or undrain the node where the reason requires it; return (message, the reason of the kit's that
    now stands)."""
    given = str(note.get("reason", ""))
    given_by_kit = is_kit_reason(node, slurm_node, given)
    if reason == CLEAR:
        if not (slurm_node.draining and given_by_kit):
            return "", CLEAR
        # Not `resume`, which would also bring up a node that Slurm has down for a reason of its own.
        update_local_node(node, "state=undrain")
        audit.record_root_action_in_journal(
            "undrained", f"node {node.facts.node}", f"{slurm_node.reason} is over", asked_by=ASKED_BY
        )
        return f"undrained: {slurm_node.reason} is over", CLEAR
    if slurm_node.reason and HOLDS_BY_REASON.search(slurm_node.state) and not given_by_kit:
        # A node that is down has a reason too, and ours would take its place.
        return f"unchanged: {slurm_node.state}, {slurm_node.reason}", CLEAR
    if not slurm_node.draining and _reason_without_mount_state(given) == _reason_without_mount_state(reason):
        return "unchanged: a person has resumed this node", reason
    if slurm_node.draining and slurm_node.reason == reason:
        return "", reason
    update_local_node(node, "state=drain", f"reason={reason}")
    audit.record_root_action_in_journal("drained", f"node {node.facts.node}", reason, asked_by=ASKED_BY)
    return f"drained: {reason}", reason


def _reason_without_mount_state(reason: str) -> str:
    """The reason without the mount's state."""
    return reason.rpartition(":")[0]


def is_kit_reason(node: Node, slurm_node: SlurmNodeStatus, given: str) -> bool:
    """Return whether Slurm's reason for the node is one that the kit gave: as noted, in the kit's own words
    about a mount of this node, or Slurm's own for what the kit's gate has refused a job for."""
    if slurm_node.reason == SPOOL_REASON or (given and slurm_node.reason == given):
        return True
    if slurm_node.reason == SPOOL_REASON_OF_SLURM:
        return _is_spool_watched(node)
    if slurm_node.reason.startswith(PREFIX):
        name, _, state = slurm_node.reason[len(PREFIX) :].rpartition(":")
        return state in STATES and any(mount.name == name for mount in node.mounts)
    return is_prolog_error_for_recorded_refusal(node, slurm_node, node.paths.gate_refusal_record)


def is_prolog_error_for_recorded_refusal(node: Node, slurm_node: SlurmNodeStatus, refusal_path: str) -> bool:
    """Return whether the reason is Slurm's own text for the refusal that a gate has recorded in
    `path`."""
    refusal = gate_refusal.read_refusal(refusal_path)
    if refusal is None:
        return False
    scontrol = slurm_program_path_or_name(node, "scontrol")
    return gate_refusal.is_prolog_error_for(node, slurm_node.reason, slurm_node.reason_at, refusal, scontrol)


def query_local_node(node: Node, within: float = SECONDS) -> SlurmNodeStatus:
    """Query slurmctld for this node's state, reason and version. Raises RunError, also when it does not know
    this node."""
    argv = [slurm_program_path_or_name(node, "scontrol"), "--oneliner", "show", "node", node.facts.node]
    # Times in UTC: the controller's zone and ours may differ, and the answer is formatted here.
    done = node.runner.run(argv, timeout=within, env={"TZ": "UTC"})
    fields = node_fields((done.stdout.splitlines() or [""])[0])
    if fields.get("NodeName") != node.facts.node:
        raise RunError(argv, 1, done.stdout, done.stderr or f"no node {node.facts.node} in the answer")
    reason, when = _split_reason_and_time(fields.get("Reason", ""))
    import calendar  # not for every check that asks `is_due`

    at = 0.0
    with contextlib.suppress(ValueError):
        at = float(calendar.timegm(time.strptime(when, "%Y-%m-%dT%H:%M:%S")))
    return SlurmNodeStatus(fields.get("State", ""), reason, at, fields.get("Version", ""))


def _split_reason_and_time(text: str) -> Tuple[str, str]:
    """(reason, when it was given) of `a fan [root@2026-11-22T01:02:03]`, by the last such mark: what looks like one
    before it is part of the reason, which is none of ours then."""
    marks = list(_GIVEN.finditer(text))
    if marks:
        return (text[: marks[-1].start()].strip(), marks[-1].group(1))
    return (text.strip(), "")


def slurm_program_path_or_name(node: Node, name: str) -> str:
    """Return the path of a Slurm command: where HyperPod has it, else its name alone, for PATH."""
    path = os.path.join(os.path.dirname(node.paths.scontrol), name)
    if os.path.exists(path):
        return path
    return name


def update_local_node(node: Node, *arguments: str) -> None:
    """Run `scontrol update` for this node with these arguments. Raises RunError."""
    node.runner.run(
        [slurm_program_path_or_name(node, "scontrol"), "update", f"nodename={node.facts.node}", *arguments],
        timeout=SECONDS,
    )


def _read_last_drain_note(node: Node) -> Dict[str, Any]:
    note = read_json(node.paths.last_drain_request_note)
    if isinstance(note, dict):
        return note
    return {}


def _save_note(node: Node, *, desired: str, reason: str, agreed: bool) -> None:
    write_json(
        node.paths.last_drain_request_note,
        {"wish": desired, "reason": reason, "settled": agreed, "at": node.clock.wall()},
    )
