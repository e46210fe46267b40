"""`hyperpod-kit checkpoint export`: a checkpoint for other tools."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.commands import on_paths
from hyperpod_kit.checkpoint.commands.inspection import open_existing_root_as_owner
from hyperpod_kit.checkpoint.convert.export_checkpoint import FORMATS, export
from hyperpod_kit.checkpoint.convert.files.byte_progress import TerminalProgress
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.program import parse_command
from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, OptionSpec
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import counted

COMMAND = CommandSpec(
    "export",
    "Export a checkpoint for other tools.",
    "hyperpod_kit.checkpoint.convert.export_command:main",
    arguments=(ArgumentSpec("root", "ROOT", "Checkpoint root."),),
    options=(
        OptionSpec("--attempt", "Checkpoint, as `ls` shows it; default: the newest valid one.", "CHECKPOINT"),
        OptionSpec("--to", "Format to write.", choices=FORMATS, is_required=True),
        OptionSpec(
            "--out",
            "File to create (dcp, deepspeed, huggingface, megatron: directory); must not exist.",
            "OUTPUT",
            is_required=True,
        ),
        OptionSpec("--dry-run", "Show what would be written; read no tensors and write nothing."),
        OptionSpec("--json", "Print JSON on stdout."),
    ),
    examples=(
        "/fsx/alice/run1 --to safetensors --out model.safetensors",
        "/fsx/alice/run1 --to huggingface --out /fsx/alice/model",
        "s3://my-bucket/run1 --to dcp --out /fsx/alice/run1-dcp",
    ),
)


def main(argv: list[str]) -> int:
    """Exit codes: 0 written, 1 not, 2 usage, 3 what is named is not there. Raises HyperpodKitError."""
    args = parse_command(COMMAND, argv, "hyperpod-kit checkpoint export")
    return ending.run_converting_os_to_kit_errors(
        lambda: on_paths.run_with_deadline_on_paths(lambda: _export_and_print_report(args), (args.root, args.out)),
        lambda err: ending.Ending(str(err), None, ExitCode.PROBLEM),
    )


def _export_and_print_report(args: argparse.Namespace) -> int:
    exported = export(
        open_existing_root_as_owner(args),
        args.to,
        args.out,
        attempt=args.attempt,
        dry_run=args.dry_run,
        progress=TerminalProgress("read and verified"),
    )
    if args.json:
        terminal.print_json(
            document("checkpoint export", {**asdict(exported), "output": args.out, "dry_run": args.dry_run})
        )
        return 0
    for attempt, reason in exported.rejected:
        terminal.print_stderr(f"passed over {attempt}: {reason}")
    if exported.own:
        terminal.print_stderr(
            f"{counted(exported.own, 'tensor')} of the model with a different value on each rank: rank 0's is written"
        )
    done = f" verified, written to {args.out}"
    if args.dry_run:
        done = f", nothing was written to {args.out}"
    terminal.print_stdout(
        f"step {exported.step} ({exported.attempt}): {counted(exported.tensors, 'tensor')}, "
        f"{exported.bytes} bytes{done}"
    )
    return 0
