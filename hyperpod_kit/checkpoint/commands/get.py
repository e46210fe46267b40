"""`checkpoint get`: one tensor, for whoever has no torch."""

from __future__ import annotations

import argparse

from hyperpod_kit.checkpoint.commands.look import open_root
from hyperpod_kit.checkpoint.commands.table import size
from hyperpod_kit.checkpoint.repository import tensor_export
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import clean


def get(args: argparse.Namespace) -> int:
    """0 written. Raises as `tensor_export.get`."""
    made = tensor_export.get(open_root(args), args.tensor, args.output, args.attempt)
    if args.json:
        terminal.data({**made._asdict(), "output": args.output})
        return 0
    for attempt, why in made.rejected:
        terminal.say(f"passed over {attempt}: {why}")
    shape = " x ".join(map(str, made.shape)) or "one number"
    name = clean(made.name)
    terminal.out(f"{name} of {made.attempt}: {made.dtype}, {shape}, {size(made.nbytes)} verified, in {args.output}")
    return 0
