"""`hyperpod-kit node slurm`: look at Slurm on this node now, or as the timer does.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from hyperpod_kit.errors import NodeError, Unreachable
from hyperpod_kit.node.context import Node, open_node
from hyperpod_kit.node.slurm.guard.collect import collect_facts
from hyperpod_kit.node.slurm.guard.cycle import check_and_mend_slurm, judge_all, mended_from_record
from hyperpod_kit.slurm.findings import GuardRecord, read_guard_record

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
            "another process is looking at Slurm just now", hint="hyperpod-kit node slurm looks and changes nothing"
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
        findings = [finding.to_dict() for finding in record.findings]
        print(json.dumps({"node": node.facts.node, "checked_at": record.checked_at, "findings": findings}))
    else:
        for finding in record.findings:
            severity = "notice"
            if finding.fault:
                severity = "fault "
            print(f"{severity}  {finding.code}  {finding.detail}")
            if finding.remedy:
                print(f"        do: {finding.remedy}")
        if not record.findings:
            print(f"{node.facts.node}: Slurm is as it should be")
    if any(finding.fault for finding in record.findings):
        return 1
    return 0
