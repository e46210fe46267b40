"""`hyperpod-kit checkpoint diff`: what two checkpoints have differently."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.commands import inspection, on_paths
from hyperpod_kit.checkpoint.convert.files.byte_progress import TerminalProgress
from hyperpod_kit.checkpoint.dcp import checkpoint_location
from hyperpod_kit.checkpoint.diffing.compare import CheckpointAt, CheckpointDiff, TensorForm, diff, value_text
from hyperpod_kit.checkpoint.diffing.items import ItemDifference
from hyperpod_kit.checkpoint.repository.records import pins
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.program import parse_command
from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, OptionSpec
from hyperpod_kit.command_line.tables import Column, format_rows
from hyperpod_kit.errors import UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted import terminal

_CHECKPOINT_HELP = "ROOT (its newest checkpoint), ROOT/CHECKPOINT, or a CHECKPOINT of the other root."

COMMAND = CommandSpec(
    "diff",
    "Compare two checkpoints.",
    "hyperpod_kit.checkpoint.diffing.command:main",
    description="Compare checkpoint B with checkpoint A: tensors that were added or removed, have another shape or "
    "type, or changed, with the largest difference; and other values. Every byte of both is verified. The exit code "
    "is 0 when they are the same, and 1 when they differ or one is damaged.",
    arguments=(ArgumentSpec("before", "A", _CHECKPOINT_HELP), ArgumentSpec("after", "B", _CHECKPOINT_HELP)),
    options=(
        OptionSpec("--limit", "Maximum lines per kind of difference, 0 for all; default: 50.", "N", int, default=50),
        OptionSpec("--json", "Print JSON on stdout, without a limit."),
    ),
    examples=(
        "/fsx/alice/run1 /fsx/alice/run2  # the newest of each",
        "/fsx/alice/run1/CHECKPOINT CHECKPOINT  # two of one run, as `ls` shows them",
        "/fsx/alice/run1 s3://my-bucket/run1 --json",
    ),
)


def main(argv: list[str]) -> int:
    """Exit codes: 0 the same, 1 not, 2 usage, 3 could not check. Raises HyperpodKitError."""
    args = parse_command(COMMAND, argv, "hyperpod-kit checkpoint diff")
    if args.limit < 0:
        raise UsageError(f"--limit {args.limit}: expected 0 (all) or a number of lines per kind")
    return ending.run_converting_os_to_kit_errors(
        lambda: on_paths.run_with_deadline_on_paths(lambda: _diff_and_print_report(args), (args.before, args.after)),
        lambda err: ending.Ending(str(err), None, ExitCode.ABSENT),
    )


def _diff_and_print_report(args: argparse.Namespace) -> int:
    comparison = diff(*_open_pair(args.before, args.after), progress=TerminalProgress("read and verified"))
    if args.json:
        terminal.print_json(document("checkpoint diff", _to_json(comparison)))
    else:
        _print_comparison(comparison, args.limit or None)
    if comparison.is_empty:
        return 0
    return 1


def _open_pair(before: str, after: str) -> tuple[CheckpointAt, CheckpointAt]:
    locations = [checkpoint_location.parse(text) for text in (before, after)]
    roots = [location.root for location in locations]
    if not any(roots):
        raise UsageError(f"{before} and {after} are names of checkpoints without a root: give ROOT/{before}")
    checkpoints = [
        _open_named_or_newest(location.root or roots[1 - number], location.checkpoint_id)
        for number, location in enumerate(locations)
    ]
    return checkpoints[0], checkpoints[1]


def _open_named_or_newest(root: str, checkpoint_id: str) -> CheckpointAt:
    store = inspection.open_existing_root_as_owner(argparse.Namespace(root=root))
    chosen_id = checkpoint_id or inspection.newest_committed_checkpoint_id(store)
    pins.require_committed(store, chosen_id)
    return CheckpointAt(store, chosen_id)


def _to_json(comparison: CheckpointDiff) -> dict[str, Any]:
    return {
        "before": comparison.before,
        "after": comparison.after,
        "same": comparison.is_empty,
        "equal": comparison.equal,
        "added": {name: _form_json(form) for name, form in comparison.added.items()},
        "removed": {name: _form_json(form) for name, form in comparison.removed.items()},
        "reshaped": {
            name: {"before": _form_json(before), "after": _form_json(after)}
            for name, (before, after) in comparison.reshaped.items()
        },
        "changed": {
            name: {
                "items": difference.items,
                "changed": difference.changed,
                "max_abs": _number_or_inf_text(difference.max_abs),
                "max_rel": _number_or_inf_text(difference.max_rel),
            }
            for name, difference in comparison.changed.items()
        },
        "values": {path: {"before": before, "after": after} for path, (before, after) in comparison.values.items()},
    }


def _form_json(form: TensorForm) -> dict[str, Any]:
    return {"dtype": form.dtype, "shape": list(form.shape)}


def _number_or_inf_text(value: float) -> float | str:
    """JSON has no infinity."""
    if math.isfinite(value):
        return value
    return "inf"


def _print_comparison(comparison: CheckpointDiff, limit: int | None) -> None:
    counts = {
        "changed": len(comparison.changed),
        "of another shape or type": len(comparison.reshaped),
        "added": len(comparison.added),
        "removed": len(comparison.removed),
        "equal": comparison.equal,
    }
    tensors = ", ".join(f"{count} {label}" for label, count in counts.items())
    terminal.print_stdout(
        f"{comparison.before} -> {comparison.after}: tensors: {tensors}; other values: {len(comparison.values)} changed"
    )
    largest_first = sorted(comparison.changed.items(), key=lambda row: row[1].max_rel, reverse=True)
    changed = [(name, *_difference_cells(difference)) for name, difference in largest_first]
    numbers = [Column(head, is_number=True) for head in ("ITEMS", "OF", "MAX ABS", "MAX REL")]
    _print_table(("CHANGED", *numbers), changed, limit)
    reshaped = [(name, _form_text(before), _form_text(after)) for name, (before, after) in comparison.reshaped.items()]
    _print_table(("OTHER SHAPE OR TYPE", *_VALUE_COLUMNS), reshaped, limit)
    _print_table(("ADDED", "FORM"), [(name, _form_text(form)) for name, form in comparison.added.items()], limit)
    _print_table(("REMOVED", "FORM"), [(name, _form_text(form)) for name, form in comparison.removed.items()], limit)
    values = [(path, value_text(before), value_text(after)) for path, (before, after) in comparison.values.items()]
    _print_table(("OTHER VALUE", *_VALUE_COLUMNS), values, limit)


def _difference_cells(difference: ItemDifference) -> tuple[str, str, str, str]:
    return (
        str(difference.changed),
        str(difference.items),
        f"{difference.max_abs:.3g}",
        f"{difference.max_rel:.3g}",
    )


def _form_text(form: TensorForm) -> str:
    return f"{form.dtype} {list(form.shape)}"


_VALUE_COLUMNS = (Column("A", folds=True), Column("B", folds=True))


def _print_table(columns: Sequence[Column | str], rows: Sequence[tuple[str, ...]], limit: int | None) -> None:
    if not rows:
        return
    terminal.print_stdout("\n" + format_rows(columns, rows[:limit]))
    if limit is not None and len(rows) > limit:
        terminal.print_stdout(f"and {len(rows) - limit} more: --limit 0, or --json")
