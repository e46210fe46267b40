"""`data verify-ledger`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.data.loading.sample_log_check import EpochReport, check_sample_log
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import counted

_MAX_SHOWN = 12


def verify_ledger(args: argparse.Namespace) -> int:
    """Judge a ledger."""
    report = check_sample_log(args.ledger)
    if args.json:
        terminal.print_json(
            document(
                "data verify-ledger",
                {
                    "good": report.is_exactly_once,
                    "samples": report.samples,
                    "launches": report.launches,
                    "steps": report.steps,
                    "rolled_back": report.rolled_back,
                    "passed_over": list(report.passed_over),
                    "epochs": [
                        {
                            "epoch": epoch.epoch,
                            "complete": epoch.complete,
                            "once": epoch.once,
                            "missing": list(epoch.missing),
                            "left_out": epoch.left_out,
                            "repeated": list(epoch.repeated),
                        }
                        for epoch in report.epochs
                    ],
                    "problems": list(report.problems),
                },
            )
        )
        return 0 if report.is_exactly_once else 1
    for epoch in report.epochs:
        terminal.print_stdout(f"epoch {epoch.epoch}: {_describe_epoch(epoch, report.samples)}")
    if report.passed_over:
        terminal.print_stdout(
            f"bad records, which were replaced by other samples: samples {_format_numbers(report.passed_over)}"
        )
    for problem in report.problems:
        terminal.print_stdout(f"the ledger itself: {problem}")
    terminal.print_stdout(
        f"{counted(report.launches, 'launch', 'launches')}, {counted(report.steps, 'step')}, {report.rolled_back} "
        "more rolled back with their checkpoint"
    )
    return 0 if report.is_exactly_once else 1


def _describe_epoch(epoch: EpochReport, samples: int) -> str:
    if epoch.repeated:
        return f"samples {_format_numbers(epoch.repeated)} more than once"
    if not epoch.complete:
        return f"{epoch.once} of {samples} samples so far, each exactly once"
    if len(epoch.missing) > epoch.left_out:
        return f"samples {_format_numbers(epoch.missing)} never"
    if epoch.missing:
        return f'{counted(epoch.once, "sample")} exactly once, {len(epoch.missing)} left out by last="drop"'
    return f"every one of {samples} samples exactly once"


def _format_numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MAX_SHOWN]))
    if len(numbers) <= _MAX_SHOWN:
        return shown
    return f"{shown} and {len(numbers) - _MAX_SHOWN} more"
