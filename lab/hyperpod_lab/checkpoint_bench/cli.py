"""`hyperpod-kit checkpoint bench`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.program import parse_command
from hyperpod_kit.command_line.specs import CommandSpec, OptionSpec
from hyperpod_kit.errors import first_line
from hyperpod_kit.storage.bench.replay.launch import BenchError
from hyperpod_kit.storage.bench.replay.workload import MODES, SIZES
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.version import version
from hyperpod_lab import checkpoint_bench
from hyperpod_lab.checkpoint_bench import machine, run, summary
from hyperpod_lab.checkpoint_bench.phases import Bench

_LINES = (
    ("memory floor", "floor_s", None),
    ("stall of a save", "stall_s", "stall_over_floor"),
    ("first save", "first_stall_s", None),
    ("write limit", "write_s", None),
    ("captured to durable", "persist_s", "persist_over_limit"),
    ("lost with overlapped copy", "overlap_lost_s", "overlap_over_floor"),
    ("inflation of a save, blocking", "inflation_blocking_s", None),
    ("inflation of a save, overlapped", "inflation_overlap_s", None),
    ("cold read limit", "read_s", None),
    ("cold restore", "cold_restore_s", "cold_restore_over_limit"),
    ("memory floor, after restores", "hot_floor_s", None),
    ("digest and copy, after restores", "hot_proof_s", None),
    ("hot restore", "hot_restore_s", "hot_restore_over_proof"),
)
_NO_RATE = ("overlap_lost_s", "inflation_blocking_s", "inflation_overlap_s")


def main(argv: list[str]) -> int:
    """Exit codes: 0 measured, 1 a phase failed, 2 usage. A missed bar is a figure, not a failure."""
    try:
        args = parse_command(COMMAND, argv, "hyperpod-kit checkpoint bench")
    except SystemExit as end:
        return int(end.code or 0)
    begin = time.monotonic()
    report: dict[str, Any] = {
        "version": version(),
        "torch": torch.__version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine.describe_machine_and_file_systems(args.dir, shm_paths.shared_memory_root()),
        "repeat": args.repeat,
        "patience": args.patience,
        "errors": [],
        "left_out": [],
        "runs": [],
    }

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {text}", file=sys.stderr, flush=True)

    with Bench(args.dir, shm_paths.shared_memory_root(), args.patience) as scratch:
        measured: list[run.Run] = []
        kinds = list(itertools.product(args.sizes, args.modes))
        pace = run.TimeShare(begin, len(kinds) * len({"save", *args.phases} - {"overlap"}))
        for each in [run.Run(scratch, size, mode, args.repeat, pace, say) for size, mode in kinds]:
            if _run_or_note_error(report, partial(each.measure_saves_and_restores, args.phases)):
                measured.append(each)

        def train_all() -> None:
            report["left_out"] += run.train_in_time_listing_left_out(measured, pace, say)

        if "overlap" in args.phases:
            _run_or_note_error(report, train_all)
    report["runs"] = [
        {"size": each.size, "mode": each.mode, "summary": summary.summarize_run(each.samples), "samples": each.samples}
        for each in measured
    ]
    report["seconds"] = time.monotonic() - begin
    report["summary"] = summary.worst_ratios([each["summary"] for each in report["runs"]])
    if args.json:
        terminal.print_json(document("checkpoint bench", report))
    else:
        _print_report(report)
    if report["errors"]:
        return 1
    return 0


def _run_or_note_error(report: dict[str, Any], work: Callable[[], None]) -> bool:
    """Run `work` and return whether it did not fail; an error is printed and noted in the report."""
    try:
        work()
        return True
    except BenchError as err:
        print(f"error: {err}", file=sys.stderr, flush=True)
        report["errors"].append(first_line(err))
        return False


def _format_figure(values: dict[str, Any], label: str, seconds_key: str, ratio_key: str | None) -> str:
    line = f"  {label:32} {values[seconds_key]:8.3f} s "
    if seconds_key in _NO_RATE:
        line += " " * 13
    else:
        line += f"{values['bytes'] / 1e9 / values[seconds_key]:8.2f} GB/s"
    if ratio_key is not None:
        line += f"   {ratio_key} {values[ratio_key]:.3f}"
    return line


def _format_worst_ratio(name: str, worst: float | None) -> str:
    figure = "not measured"
    if worst is not None:
        figure = f"{worst:.3f}"
    sign = ">="
    if name in summary.LOWER_IS_BETTER:
        sign = "<="
    return f"  {name:26} {figure}  ({sign} {summary.BARS[name]})"


def _print_report(report: dict[str, Any]) -> None:
    about = report["machine"]
    print(
        f"{about['processor']}, {about['cores']} cores, {about['memory'] / 2**30:.0f} GiB, {about['directory']} on "
        f"{about['file_system']}, torch {report['torch']}, {report['time']}; {report['seconds']:.0f} s"
    )
    for each in report["runs"]:
        values = each["summary"]
        print(f"\n{each['size']} {each['mode']}: {values['bytes'] / 1e9:.3f} GB, medians of {values['samples']}")
        for label, seconds, ratio in _LINES:
            if seconds in values:
                print(_format_figure(values, label, seconds, ratio))
    for text in report["left_out"]:
        print(f"\n{text}")
    print("\nsummary, the worst of all runs (what is promised):")
    for name, value in report["summary"].items():
        print(_format_worst_ratio(name, value))


def _choices_parser(allowed: list[str]) -> Any:
    def parse(text: str) -> list[str]:
        invalid = [word for word in text.split(",") if word not in allowed]
        if invalid:
            raise argparse.ArgumentTypeError(f"{', '.join(invalid)}: expected some of {', '.join(allowed)}")
        return text.split(",")

    return parse


COMMAND = CommandSpec(
    "bench",
    "Measure saves and restores against the limits of the machine.",
    "hyperpod_lab.checkpoint_bench.cli:main",
    description=(checkpoint_bench.__doc__ or "").strip(),
    options=(
        OptionSpec(
            "--sizes", "Sizes of the state to measure.", "0.5g,2g", _choices_parser(list(SIZES)), default=["0.5g", "2g"]
        ),
        OptionSpec(
            "--modes",
            "One process, two ranks with FSDP2, or both.",
            "single,fsdp2",
            _choices_parser(list(MODES)),
            default=list(MODES),
        ),
        OptionSpec(
            "--phases",
            "Phases to measure; save is always measured.",
            ",".join(run.PHASES),
            _choices_parser(list(run.PHASES)),
            default=list(run.PHASES),
        ),
        OptionSpec("--repeat", "Samples of each figure, where the time permits (default 5)", "REPEAT", int, default=5),
        OptionSpec(
            "--patience",
            "Wait so long in all for a quiet machine before samples (default 40)",
            "SECONDS",
            float,
            default=40.0,
        ),
        OptionSpec(
            "--dir",
            "A directory on the disk to measure; 4 checkpoints must fit.",
            "DIR",
            Path,
            default=Path(os.environ.get("TMPDIR", "/tmp")),
        ),
        OptionSpec("--json", "Print JSON on stdout, with raw samples."),
    ),
    examples=("", "--sizes 0.5g --modes single --dir /fsx/alice --json"),
)
