"""`checkpoint get`: one tensor, for whoever has no torch."""

from __future__ import annotations

import argparse

from hyperpod_kit.checkpoint.commands.inspection import open_existing_root_as_owner
from hyperpod_kit.checkpoint.commands.table import format_byte_count
from hyperpod_kit.checkpoint.repository import tensor_export
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import clean_one_line


def write_tensor_to_output_file(args: argparse.Namespace) -> int:
    """Write one tensor to a file and print what it is; 0 when written. Raise as `tensor_export.export_tensor`."""
    tensor = tensor_export.export_tensor(open_existing_root_as_owner(args), args.tensor, args.output, args.attempt)
    if args.json:
        terminal.print_json({**tensor._asdict(), "output": args.output})
        return 0
    for checkpoint_id, reason in tensor.rejected:
        terminal.print_stderr(f"passed over {checkpoint_id}: {reason}")
    shape = " x ".join(map(str, tensor.shape)) or "one number"
    name = clean_one_line(tensor.name)
    terminal.print_stdout(
        f"{name} of {tensor.attempt}: {tensor.dtype}, {shape}, {format_byte_count(tensor.nbytes)} verified, in "
        f"{args.output}"
    )
    return 0
