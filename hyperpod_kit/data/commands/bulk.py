"""`data stage`, `data merge`, `data split`, `data make-corpus`."""

from __future__ import annotations

import argparse
import dataclasses
import os

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.data.bulk import corpus
from hyperpod_kit.data.bulk import merge as merging
from hyperpod_kit.data.bulk import stage as staging
from hyperpod_kit.data.bulk.destination import watch_mount
from hyperpod_kit.data.commands.progress import ByteLine, format_size
from hyperpod_kit.data.commands.rights import reading_as_owner
from hyperpod_kit.errors import DataUnavailable, UsageError
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import counted

_MIB = 1 << 20


def stage(args: argparse.Namespace) -> int:
    """Copy a source into a directory."""
    if args.rate is not None and args.rate <= 0:
        raise UsageError(f"--rate {args.rate:g}: expected MiB per second, more than 0")
    rate = None if args.rate is None else args.rate * _MIB
    line = ByteLine("staging")
    try:
        with reading_as_owner([args.source], args.reply_timeout), watch_mount(
            args.out, args.reply_timeout, _print_error_and_exit_at_once
        ):
            report = staging.stage(
                args.source,
                args.out,
                rate=rate,
                workers=args.workers,
                dry_run=args.dry_run,
                lock_timeout=args.wait,
                reply_timeout=args.reply_timeout,
                progress=line.show_progress,
            )
    finally:
        line.clear_line()
    if args.json:
        terminal.print_json(document("data stage", {**dataclasses.asdict(report), "dry_run": args.dry_run}))
        return 0
    outcome = f"into {args.out} in {report.seconds:.1f} s"
    if args.dry_run:
        outcome = "would come"
    if report.known:
        outcome += f"; {counted(report.known, 'was', 'were')} there"
    terminal.print_stdout(f"{counted(report.brought, 'file')}, {format_size(report.brought_bytes)}, {outcome}")
    if report.by_size:
        terminal.print_stdout(f"for {report.by_size} of them only the size was compared: their ETags are not digests")
    return 0


def _print_error_and_exit_at_once(error: DataUnavailable) -> None:
    """Exit without waiting for the threads that write."""
    terminal.print_error_and_hint(error.message, error.hint)
    os._exit(error.exit_code)


def merge(args: argparse.Namespace) -> int:
    """Merge small files into tars."""
    line = ByteLine("merging")
    try:
        with reading_as_owner([args.source]):
            report = merging.merge_into_tars(args.source, args.out, size=args.mib * _MIB, progress=line.show_progress)
    finally:
        line.clear_line()
    return _print_report("data merge", args, report, f"into {counted(report.tars, 'tar')} in {args.out}")


def split(args: argparse.Namespace) -> int:
    """Split tars into the files they were merged from."""
    line = ByteLine("splitting")
    try:
        with reading_as_owner([args.source]):
            report = merging.extract_merged_files(args.source, args.out, progress=line.show_progress)
    finally:
        line.clear_line()
    return _print_report(
        "data split", args, report, f"out of {counted(report.tars, 'tar')}, into {args.out}; every digest matches"
    )


def _print_report(command: str, args: argparse.Namespace, report: merging.MergeReport, summary: str) -> int:
    if args.json:
        terminal.print_json(document(command, dataclasses.asdict(report)))
    else:
        terminal.print_stdout(f"{counted(report.files, 'file')}, {format_size(report.bytes)}, {summary}")
    return 0


def make_corpus(args: argparse.Namespace) -> int:
    """Write a corpus of files of one size."""
    line = ByteLine("writing")
    try:
        files, done = corpus.write_random_jsonl_files(
            args.out,
            files=args.files,
            bytes_per_file=args.kib * 1024,
            refuse_above_total_bytes=args.cap * _MIB,
            seed=args.seed,
            progress=line.show_progress,
        )
    finally:
        line.clear_line()
    if args.json:
        terminal.print_json(document("data make-corpus", {"files": files, "bytes": done}))
    else:
        terminal.print_stdout(f"{counted(files, 'file')}, {format_size(done)}, in {args.out}")
    return 0
