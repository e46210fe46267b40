"""`hyperpod-kit node slurm`: look at Slurm on this node now, or as the timer does.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.errors import NodeError, Unreachable
from hyperpod_kit.model.states import LifecycleMode
from hyperpod_kit.node.machine.context import Node, open_node
from hyperpod_kit.node.machine.files import read_json, write_volatile, write_volatile_json
from hyperpod_kit.node.machine.locks import hold_lock, is_locked
from hyperpod_kit.node.slurm.guard import mend as mending
from hyperpod_kit.node.slurm.guard.collect import PlaneFacts, collect_facts
from hyperpod_kit.node.slurm.guard.judge import judge
from hyperpod_kit.node.slurm.guard.mend import Mended, Tries
from hyperpod_kit.slurm.findings import GuardRecord, SlurmFinding, read_guard_record
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json

if TYPE_CHECKING:
    import argparse


def check_slurm_command(args: argparse.Namespace) -> int:
    """Check Slurm on this node and print the findings; with `--mend`, run a round as the timer does. Exit code
    0 without a fault, 1 with one, 3 when another round is at it."""
    node = open_node()
    if not args.mend:
        mended = mended_from_record(read_guard_record(node.paths.slurm_guard_record))
        now = node.clock.wall()
        return _print_record(node, GuardRecord(now, tuple(judge_all(collect_facts(node), mended, now))), args.json)
    try:
        done = check_and_mend_slurm(node)
    except PermissionError as err:
        raise NodeError(f"{err.filename}: {err.strerror}", hint="sudo hyperpod-kit node slurm --mend") from err
    if done is None:
        raise Unreachable(
            "another process is checking Slurm", hint="hyperpod-kit node slurm checks without changing anything"
        )
    for line in done.messages:
        print(line, file=sys.stderr)
    if args.json:
        return _print_record(node, done.record, True)
    if any(finding.fault for finding in done.record.findings):
        return 1
    return 0


def _print_record(node: Node, record: GuardRecord, as_json: bool) -> int:
    """Print the findings; return exit code 1 when any is a fault, else 0."""
    if as_json:
        findings = [dataclass_to_json(finding) for finding in record.findings]
        terminal.print_json(
            document("node slurm", {"node": node.facts.node, "checked_at": record.checked_at, "findings": findings})
        )
    else:
        for finding in record.findings:
            severity = "notice"
            if finding.fault:
                severity = "fault "
            print(f"{severity}  {finding.code}  {finding.detail}")
            if finding.remedy:
                print(f"        do: {finding.remedy}")
        if not record.findings:
            print(f"{node.facts.node}: no problem with Slurm")
    if any(finding.fault for finding in record.findings):
        return 1
    return 0


# One round of the guard: look, mend, look again where something was done, judge, keep, leave metrics.
#
# In a unit of its own: a slurmctld that does not answer must not hold up the checks of the mounts.

METRICS = "hyperpod_kit_slurm.prom"

LOCK = "slurm-guard"


@dataclass(frozen=True)
class GuardCycle:
    """said: lines for a person, of what changed and of what was done."""

    record: GuardRecord
    messages: Tuple[str, ...] = ()


def check_and_mend_slurm(node: Node) -> Optional[GuardCycle]:
    """Run one round: check Slurm, mend what is due, save the record and the metrics; None when another round
    is at it."""
    with hold_lock(node, LOCK, seconds=0) as locked:
        if locked:
            return _check_and_mend_slurm(node)
        return None


def _check_and_mend_slurm(node: Node) -> GuardCycle:
    before = read_guard_record(node.paths.slurm_guard_record)
    started_at = node.clock.monotonic()
    messages: List[str] = []
    if is_apply_finished(node):
        facts = collect_facts(node)
        if is_current_bundle_applied(node):
            mended = mending.mend_slurm_where_due(node, facts, before.notes if before else {})
        else:
            mended = mended_from_record(before)
        if mended.done:
            facts = collect_facts(node)
        findings = judge_all(facts, mended, node.clock.wall())
    else:
        # What `node apply` is at work on is neither whole nor lost: what was known holds until it has ended.
        mended = mended_from_record(before)
        findings = []
        if before:
            findings = list(before.findings)
    record = GuardRecord(node.clock.wall(), tuple(findings), mended.to_dict())
    messages += [*mended.done, *describe_finding_changes(before.findings if before else (), findings)]
    try:
        write_volatile_json(node.paths.slurm_guard_record, record.to_dict())
    except OSError as err:
        messages.append(f"{node.paths.slurm_guard_record}: {err.strerror}: the findings cannot be recorded")
    directory = node.config.health.textfile_directory
    if directory:
        path, text = f"{directory}/{METRICS}", render_metrics(record, node.clock.monotonic() - started_at)
        try:
            # Another may be at home there, and have something mounted that hangs.
            call_in_child(path, partial(write_volatile, node.paths.under_root(path), text), 5.0)
        except NodeError as err:
            messages.append(f"no metrics: {err.message}")
    return GuardCycle(record, tuple(messages))


def judge_all(facts: PlaneFacts, mended: Mended, now: float) -> List[SlurmFinding]:
    """Return the findings about Slurm, and about what the guard did."""
    if facts.unbuildable:
        hopeless = {mending.BUILT}
    else:
        hopeless = set()
    return [*judge(facts), *mending.findings_about_mending(mended.without_notes(hopeless), now)]


def mended_from_record(record: Optional[GuardRecord]) -> Mended:
    """The notes of the last round, for one in which nothing is done."""
    noted: Mapping[str, Any]
    if record:
        noted = record.notes
    else:
        noted = {}
    return Mended({name: Tries.parse_or_empty(noted[name]) for name in mending.CODES if name in noted})


def is_apply_finished(node: Node) -> bool:
    """Whether `node apply` has come to an end here, and is not at it."""
    return isinstance(read_json(node.paths.apply_status), dict) and not is_locked(node, "apply")


def is_current_bundle_applied(node: Node) -> bool:
    """Whether what is there is this bundle's, as `node apply` has left it: else it is `node apply` that is due."""
    if node.config.lifecycle_mode == LifecycleMode.AMI_ONLY:
        return False
    status: Dict[str, Any] = read_json(node.paths.apply_status) or {}
    return status.get("ok") is True and status.get("bundle_id") == node.bundle_id


def describe_finding_changes(before: Sequence[SlurmFinding], after: Sequence[SlurmFinding]) -> List[str]:
    """A line for each finding that is new, and for each that is over."""
    old, new = ({finding.code: finding for finding in findings} for findings in (before, after))
    lines = [f"{code}: {finding.message}" for code, finding in new.items() if code not in old]
    return [*lines, *(f"{code}: over" for code in old if code not in new)]


def render_metrics(record: GuardRecord, seconds: float) -> str:
    """All series, for the node exporter. Pure."""
    faults = sum(finding.fault for finding in record.findings)
    labels = [f'code="{reported.code}",fault="{str(reported.fault).lower()}"' for reported in record.findings]
    lines = [
        *_metric_lines("hyperpod_kit_slurm_faults", "Problems with Slurm on this node.", [("", faults)]),
        *_metric_lines("hyperpod_kit_slurm_guard_seconds", "Duration of the last check.", [("", round(seconds, 3))]),
    ]
    if labels:
        samples = [(f"{{{label}}}", 1) for label in dict.fromkeys(labels)]
        lines += _metric_lines("hyperpod_kit_slurm_finding", "1 for each finding of the guard about Slurm.", samples)
    return "\n".join(lines) + "\n"


def _metric_lines(name: str, help_text: str, samples: Iterable[Tuple[str, float]]) -> Iterator[str]:
    yield from (f"# HELP {name} {help_text}", f"# TYPE {name} gauge")
    for labels, value in samples:
        yield f"{name}{labels} {value}"
