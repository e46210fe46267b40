"""`data verify-ledger`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hyperpod_kit.data.ledger_check import EpochReport, check
from hyperpod_kit.untrusted import terminal

_SHOWN = 12


def verify_ledger(args: argparse.Namespace) -> int:
    """Judge a ledger."""
    found = check(args.ledger)
    if args.json:
        terminal.data(
            {
                "good": found.good,
                "samples": found.samples,
                "launches": found.launches,
                "steps": found.steps,
                "rolled_back": found.rolled_back,
                "passed_over": list(found.passed_over),
                "epochs": [
                    {
                        "epoch": one.epoch,
                        "complete": one.complete,
                        "once": one.once,
                        "missing": list(one.missing),
                        "left_out": one.left_out,
                        "repeated": list(one.repeated),
                    }
                    for one in found.epochs
                ],
                "problems": list(found.problems),
            }
        )
        return 0 if found.good else 1
    for one in found.epochs:
        terminal.out(f"epoch {one.epoch}: {_words(one, found.samples)}")
    if found.passed_over:
        terminal.out(f"bad records, in whose places others came: samples {_some(found.passed_over)}")
    for said in found.problems:
        terminal.out(f"the ledger itself: {said}")
    terminal.out(
        f"{found.launches} launches, {found.steps} steps, {found.rolled_back} more rolled back with their checkpoint"
    )
    return 0 if found.good else 1


def _words(one: EpochReport, samples: int) -> str:
    if one.repeated:
        return f"samples {_some(one.repeated)} more than once"
    if not one.complete:
        return f"{one.once} of {samples} samples so far, each exactly once"
    if len(one.missing) > one.left_out:
        return f"samples {_some(one.missing)} never"
    if one.missing:
        return f'{one.once} samples exactly once, {len(one.missing)} left out by last="drop"'
    return f"every one of {samples} samples exactly once"


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more
