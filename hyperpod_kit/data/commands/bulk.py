"""`data stage`, `data merge`, `data split`, `data make-corpus`."""

from __future__ import annotations

import argparse
import dataclasses
import os

from hyperpod_kit.data.bulk import corpus
from hyperpod_kit.data.bulk import merge as merging
from hyperpod_kit.data.bulk import stage as staging
from hyperpod_kit.data.bulk.destination import watched
from hyperpod_kit.data.commands.progress import ByteLine, size
from hyperpod_kit.data.commands.rights import reading_as_owner
from hyperpod_kit.errors import DataUnavailable, UsageError
from hyperpod_kit.untrusted import terminal

_MIB = 1 << 20


def stage(args: argparse.Namespace) -> int:
    """A source into a directory."""
    if args.rate is not None and args.rate <= 0:
        raise UsageError(f"--rate {args.rate:g}: MiB a second, more than 0")
    line = ByteLine("staging")
    try:
        with reading_as_owner([args.source], args.answer), watched(args.out, args.answer, _end):
            found = staging.stage(
                args.source,
                args.out,
                rate=args.rate * _MIB if args.rate else None,
                workers=args.workers,
                dry_run=args.dry_run,
                wait=args.wait,
                answer=args.answer,
                progress=line.advance,
            )
    finally:
        line.end()
    if args.json:
        terminal.data({**dataclasses.asdict(found), "dry_run": args.dry_run})
        return 0
    brought = f"{found.brought} files, {size(found.brought_bytes)}, "
    terminal.out(
        brought
        + ("would come" if args.dry_run else f"into {args.out} in {found.seconds:.1f} s")
        + (f"; {found.known} were there" if found.known else "")
    )
    if found.by_size:
        terminal.out(f"of {found.by_size} of them only the size could be compared: their ETags are no digests")
    return 0


def _end(error: DataUnavailable) -> None:
    """At once: the threads that write would be waited for otherwise."""
    terminal.error(error.message, error.hint)
    os._exit(error.exit_code)


def merge(args: argparse.Namespace) -> int:
    """Small files into tars."""
    line = ByteLine("merging")
    try:
        with reading_as_owner([args.source]):
            found = merging.merge(args.source, args.out, size=args.mib * _MIB, progress=line.advance)
    finally:
        line.end()
    return _said(args, found, f"into {found.tars} tars in {args.out}")


def split(args: argparse.Namespace) -> int:
    """And back."""
    line = ByteLine("splitting")
    try:
        with reading_as_owner([args.source]):
            found = merging.split(args.source, args.out, progress=line.advance)
    finally:
        line.end()
    return _said(args, found, f"out of {found.tars} tars, into {args.out}; every digest is the one it had")


def _said(args: argparse.Namespace, found: merging.MergeReport, words: str) -> int:
    if args.json:
        terminal.data(dataclasses.asdict(found))
    else:
        terminal.out(f"{found.files} files, {size(found.bytes)}, {words}")
    return 0


def make_corpus(args: argparse.Namespace) -> int:
    """Files of one size."""
    line = ByteLine("writing")
    try:
        files, done = corpus.make(
            args.out,
            files=args.files,
            size=args.kib * 1024,
            cap=args.cap * _MIB,
            seed=args.seed,
            progress=line.advance,
        )
    finally:
        line.end()
    if args.json:
        terminal.data({"files": files, "bytes": done})
    else:
        terminal.out(f"{files} files, {size(done)}, in {args.out}")
    return 0
