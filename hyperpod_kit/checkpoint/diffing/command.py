"""`hyperpod-kit checkpoint diff`: what two checkpoints have differently."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.commands import look, on_paths
from hyperpod_kit.checkpoint.commands.table import table
from hyperpod_kit.checkpoint.dcp import place
from hyperpod_kit.checkpoint.diffing.compare import CheckpointAt, CheckpointDiff, TensorForm, diff, text_of
from hyperpod_kit.checkpoint.diffing.items import ItemDifference
from hyperpod_kit.checkpoint.formats.byte_progress import SaidProgress
from hyperpod_kit.checkpoint.repository import pins
from hyperpod_kit.errors import UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted import terminal

_EXAMPLES = """Examples:
  hyperpod-kit checkpoint diff /fsx/alice/run1 /fsx/alice/run2  # the newest of each
  hyperpod-kit checkpoint diff /fsx/alice/run1/ATTEMPT ATTEMPT  # two of one run, as `ls` names them
  hyperpod-kit checkpoint diff /fsx/alice/run1 s3://my-bucket/run1 --json"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hyperpod-kit checkpoint diff",
        description="What is different in checkpoint B: tensors that were added and removed, that have another shape "
        "or type, and that changed, with the largest difference; other values. Every byte of both is verified. "
        "Exit codes: 0 they are the same, 1 they differ or one is damaged, 2 usage, 3 could not check.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = "a root (its newest), ROOT/ATTEMPT, or the ATTEMPT of the other one's root"
    parser.add_argument("before", metavar="A", help=words)
    parser.add_argument("after", metavar="B", help=words)
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="lines a kind (default 50, 0 all)")
    parser.add_argument("--json", action="store_true", help="for programs: all of it")
    return parser


def main(argv: list[str]) -> int:
    """Exit codes: 0 the same, 1 not, 2 usage, 3 could not check. Raises HyperpodKitError."""
    args = build_parser().parse_args(argv)
    if args.limit < 0:
        raise UsageError(f"--limit {args.limit}: expected 0 (all) or how many lines of a kind")
    return ending.raised(
        lambda: on_paths.bounded(lambda: _diff(args), (args.before, args.after)),
        lambda err: ending.Ending(str(err), None, ExitCode.ABSENT),
    )


def _diff(args: argparse.Namespace) -> int:
    made = diff(*_pair(args.before, args.after), progress=SaidProgress("read and verified"))
    if args.json:
        terminal.data(_json(made))
    else:
        _show(made, args.limit or None)
    return 0 if made.is_empty else 1


def _pair(before: str, after: str) -> tuple[CheckpointAt, CheckpointAt]:
    places = [place.parse(text) for text in (before, after)]
    roots = [found.root for found in places]
    if not any(roots):
        raise UsageError(f"{before} and {after} are names of checkpoints, and no root is named: ROOT/{before}")
    opened = [_open(found.root or roots[1 - number], found.attempt) for number, found in enumerate(places)]
    return opened[0], opened[1]


def _open(root: str, attempt: str) -> CheckpointAt:
    store = look.open_root(argparse.Namespace(root=root))
    name = attempt or look.newest(store)
    pins.require(store, name)
    return CheckpointAt(store, name)


def _json(made: CheckpointDiff) -> dict[str, Any]:
    return {
        "before": made.before,
        "after": made.after,
        "same": made.is_empty,
        "equal": made.equal,
        "added": {name: _form(form) for name, form in made.added.items()},
        "removed": {name: _form(form) for name, form in made.removed.items()},
        "reshaped": {
            name: {"before": _form(before), "after": _form(after)} for name, (before, after) in made.reshaped.items()
        },
        "changed": {
            name: {
                "items": difference.items,
                "changed": difference.changed,
                "max_abs": _number(difference.max_abs),
                "max_rel": _number(difference.max_rel),
            }
            for name, difference in made.changed.items()
        },
        "values": {path: {"before": before, "after": after} for path, (before, after) in made.values.items()},
    }


def _form(form: TensorForm) -> dict[str, Any]:
    return {"dtype": form.dtype, "shape": list(form.shape)}


def _number(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else "inf"


def _show(made: CheckpointDiff, limit: int | None) -> None:
    counts = {
        "changed": len(made.changed),
        "of another shape or type": len(made.reshaped),
        "added": len(made.added),
        "removed": len(made.removed),
        "equal": made.equal,
    }
    tensors = ", ".join(f"{count} {word}" for word, count in counts.items())
    terminal.out(f"{made.before} -> {made.after}: tensors: {tensors}; other values: {len(made.values)} changed")
    largest_first = sorted(made.changed.items(), key=lambda row: row[1].max_rel, reverse=True)
    changed = [(name, *_words(difference)) for name, difference in largest_first]
    _table(("CHANGED", "ITEMS", "OF", "MAX ABS", "MAX REL"), changed, limit, right=(1, 2, 3, 4))
    reshaped = [(name, _text(before), _text(after)) for name, (before, after) in made.reshaped.items()]
    _table(("OTHER SHAPE OR TYPE", "A", "B"), reshaped, limit)
    _table(("ADDED", "FORM"), [(name, _text(form)) for name, form in made.added.items()], limit)
    _table(("REMOVED", "FORM"), [(name, _text(form)) for name, form in made.removed.items()], limit)
    values = [(path, text_of(before), text_of(after)) for path, (before, after) in made.values.items()]
    _table(("OTHER VALUE", "A", "B"), values, limit)


def _words(difference: ItemDifference) -> tuple[str, str, str, str]:
    return (
        str(difference.changed),
        str(difference.items),
        f"{difference.max_abs:.3g}",
        f"{difference.max_rel:.3g}",
    )


def _text(form: TensorForm) -> str:
    return f"{form.dtype} {list(form.shape)}"


def _table(
    heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], limit: int | None, *, right: tuple[int, ...] = ()
) -> None:
    if not rows:
        return
    terminal.out("\n" + table(heads, rows[:limit], right=right))
    if limit is not None and len(rows) > limit:
        terminal.out(f"and {len(rows) - limit} more: --limit 0, or --json")
