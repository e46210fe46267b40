"""`hyperpod-kit node devices`: look at the GPUs and EFA devices now, or as the timer does.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.errors import NodeError, Unreachable
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.model.optional_steps import DeviceChecks
from hyperpod_kit.node.devices.collect import observe_devices
from hyperpod_kit.node.devices.cycle import check_devices_record_and_update_slurm
from hyperpod_kit.node.devices.record import DeviceRecord, make_record
from hyperpod_kit.node.machine.context import Node, open_node
from hyperpod_kit.untrusted import terminal

if TYPE_CHECKING:
    import argparse


def check_devices_command(args: argparse.Namespace) -> int:
    """Check GPUs and EFA devices and print what was found; with `--count` also count it, tell Slurm and leave
    metrics. Exit code 0 without a fault, 1 with one, 3 when another check is at it, or nothing says what
    should be here."""
    node = open_node()
    checks = node.config.steps.device_checks or DeviceChecks()
    if not args.count:
        record = make_record(observe_devices(node, checks, dcgm=args.dcgm), None, node.clock.wall())
        _print_record(node, record, args.json)
        if record.faults:
            return ExitCode.PROBLEM
        if record.gpus_expected is None:
            return ExitCode.ABSENT
        return ExitCode.OK
    try:
        done = check_devices_record_and_update_slurm(node, checks)
    except PermissionError as err:
        raise NodeError(f"{err.filename}: {err.strerror}", hint="sudo hyperpod-kit node devices --count") from err
    if done is None:
        raise Unreachable(
            "another process is checking the devices",
            hint="hyperpod-kit node devices checks them without counting failures",
        )
    for line in done.messages:
        print(line, file=sys.stderr)
    if args.json:
        _print_record(node, done.record, True)
    if done.record.faults:
        return 1
    return 0


def _print_record(node: Node, record: DeviceRecord, as_json: bool) -> None:
    if as_json:
        findings = [
            {**asdict(device_finding), "cure": device_finding.cure.name.lower()} for device_finding in record.findings
        ]
        terminal.print_json(document("node devices", {"node": node.facts.node, **asdict(record), "findings": findings}))
        return
    print(f"{record.instance_type or 'an unknown instance type'}: {record.device_counts_text}")
    for finding in record.findings:
        severity = "notice"
        if finding.is_fault:
            severity = "fault "
        print(f"{severity}  {finding.name}  {finding.detail}")
