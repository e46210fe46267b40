"""`data merge`, `data split`, `data make-corpus`."""

from __future__ import annotations

import argparse
import dataclasses

from hyperpod_kit.data.bulk import corpus
from hyperpod_kit.data.bulk import merge as merging
from hyperpod_kit.data.commands.progress import ByteLine, size
from hyperpod_kit.untrusted import terminal

_MIB = 1 << 20


def merge(args: argparse.Namespace) -> int:
    """Small files into tars."""
    line = ByteLine("merging")
    try:
        found = merging.merge(args.source, args.out, size=args.mib * _MIB, progress=line.advance)
    finally:
        line.end()
    return _said(args, found, f"into {found.tars} tars in {args.out}")


def split(args: argparse.Namespace) -> int:
    """And back."""
    line = ByteLine("splitting")
    try:
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
