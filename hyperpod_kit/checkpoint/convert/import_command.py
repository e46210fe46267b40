"""`hyperpod-kit checkpoint import`: a checkpoint of another program as the first one of a root."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.commands import on_paths
from hyperpod_kit.checkpoint.convert.files.byte_progress import TerminalProgress
from hyperpod_kit.checkpoint.convert.import_checkpoint import SOURCES, import_checkpoint
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.program import parse_command
from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, OptionSpec
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted import source_owner, terminal
from hyperpod_kit.untrusted.text import counted

COMMAND = CommandSpec(
    "import",
    "Import a checkpoint of another program.",
    "hyperpod_kit.checkpoint.convert.import_command:main",
    arguments=(
        ArgumentSpec(
            "source",
            "SOURCE",
            "Output of the other program: a directory (safetensors, torch: a file); for deepspeed, the directory "
            "with `latest`.",
        ),
    ),
    options=(
        OptionSpec("--from", "Program that wrote it.", choices=SOURCES, dest="kind", is_required=True),
        OptionSpec("--tag", "For deepspeed: tag of the checkpoint; default: the content of `latest`.", "TAG"),
        OptionSpec("--step", "Step of the checkpoint; default: from its metadata or its name.", "N", int),
        OptionSpec("--out", "Checkpoint root to write to; must have no checkpoints.", "ROOT", is_required=True),
        OptionSpec("--dry-run", "Check the files and show what would be written, and write nothing."),
        OptionSpec("--json", "Print JSON on stdout."),
    ),
    examples=(
        "/fsx/alice/deepspeed --from deepspeed --out /fsx/alice/run1",
        "/fsx/alice/deepspeed --from deepspeed --tag global_step80 --out s3://bucket/run1",
        "/fsx/alice/old/step-500 --from dcp --out /fsx/alice/run1",
        "/fsx/models/llama --from huggingface --out /fsx/alice/run1",
    ),
)


def main(argv: list[str]) -> int:
    """Exit codes: 0 committed (or there already), 1 not, 2 usage, 3 nothing is there. Raises HyperpodKitError."""
    args = parse_command(COMMAND, argv, "hyperpod-kit checkpoint import")
    return ending.run_converting_os_to_kit_errors(
        lambda: on_paths.run_with_deadline_on_paths(lambda: _import_and_print_report(args), (args.source, args.out)),
        lambda err: ending.Ending(str(err), None, ExitCode.PROBLEM),
    )


def _import_and_print_report(args: argparse.Namespace) -> int:
    with source_owner.opening_sources_as_owner_of([args.source]):
        imported = import_checkpoint(
            args.source,
            args.kind,
            args.out,
            tag=args.tag,
            step=args.step,
            dry_run=args.dry_run,
            progress=TerminalProgress("imported"),
        )
    if args.json:
        terminal.print_json(
            document("checkpoint import", {**asdict(imported), "output": args.out, "dry_run": args.dry_run})
        )
        return 0
    if imported.unchecked:
        unit = "file"
        if args.kind in ("dcp", "megatron"):
            unit = "tensor"
        terminal.print_stderr(
            f"{counted(imported.unchecked, unit)} without checksums: changed bytes cannot be detected"
        )
    ranks_text = ""
    if args.kind == "deepspeed":
        ranks_text = f" of {counted(imported.ranks, 'rank')}"
    if imported.already:
        outcome = f"already imported as {imported.attempt} of {args.out}"
    elif args.dry_run:
        outcome = f"nothing was written to {args.out}"
    else:
        outcome = f"committed as {imported.attempt} to {args.out}"
    terminal.print_stdout(
        f"step {imported.step}{ranks_text}: {counted(imported.tensors, 'tensor')}, {imported.bytes} "
        f"bytes of files, {outcome}"
    )
    return 0
