"""`hyperpod-kit checkpoint export`: a checkpoint for other tools."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.commands import on_paths
from hyperpod_kit.checkpoint.commands.inspection import open_existing_root_as_owner
from hyperpod_kit.checkpoint.convert.export_checkpoint import FORMATS, export
from hyperpod_kit.checkpoint.convert.files.byte_progress import TerminalProgress
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted import terminal

_EXAMPLES = """Examples:
  hyperpod-kit checkpoint export /fsx/alice/run1 --to safetensors --output model.safetensors
  hyperpod-kit checkpoint export /fsx/alice/run1 --to huggingface --output /fsx/alice/model
  hyperpod-kit checkpoint export s3://my-bucket/run1 --to dcp --output /fsx/alice/run1-dcp"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hyperpod-kit checkpoint export",
        description="A checkpoint for other tools.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("root", help="checkpoint root")
    parser.add_argument("--attempt", help="which checkpoint (default: the newest valid one)")
    parser.add_argument("--to", required=True, choices=FORMATS, help="format to write")
    parser.add_argument(
        "--output",
        required=True,
        help="file to make (dcp, deepspeed, huggingface, megatron: a directory); not one that exists",
    )
    parser.add_argument("--dry-run", action="store_true", help="read no tensor, and only say what would be written")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def main(argv: list[str]) -> int:
    """Exit codes: 0 written, 1 not, 2 usage, 3 what is named is not there. Raises HyperpodKitError."""
    args = build_parser().parse_args(argv)
    return ending.run_converting_os_to_kit_errors(
        lambda: on_paths.run_with_deadline_on_paths(lambda: _export_and_print_report(args), (args.root, args.output)),
        lambda err: ending.Ending(str(err), None, ExitCode.PROBLEM),
    )


def _export_and_print_report(args: argparse.Namespace) -> int:
    exported = export(
        open_existing_root_as_owner(args),
        args.to,
        args.output,
        attempt=args.attempt,
        dry_run=args.dry_run,
        progress=TerminalProgress("read and verified"),
    )
    if args.json:
        terminal.print_json({**asdict(exported), "output": args.output, "dry_run": args.dry_run})
        return 0
    for attempt, reason in exported.rejected:
        terminal.print_stderr(f"passed over {attempt}: {reason}")
    if exported.own:
        terminal.print_stderr(f"{exported.own} of the model's tensors are each rank's own: those of rank 0 are written")
    done = f" verified, written to {args.output}"
    if args.dry_run:
        done = f", nothing was written to {args.output}"
    terminal.print_stdout(
        f"step {exported.step} ({exported.attempt}): {exported.tensors} tensors, {exported.bytes} bytes{done}"
    )
    return 0
