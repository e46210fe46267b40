"""`data index`, `data show`, `data verify`."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any, NamedTuple

from hyperpod_kit.data.commands.progress import ByteLine, size
from hyperpod_kit.data.commands.rights import reading_as_owner
from hyperpod_kit.data.dataset import IndexedDataset
from hyperpod_kit.data.default_order import order_for, order_of
from hyperpod_kit.data.formats.table import SUFFIXES, module_of
from hyperpod_kit.data.index.build import build
from hyperpod_kit.data.index.layout import IndexedFile, SampleIndex
from hyperpod_kit.data.mixing import WELL_MIXED, Mixing, SortedBy, mixing_of, sorted_by
from hyperpod_kit.data.order import ShuffledOrder
from hyperpod_kit.data.reading.listing import storage_of
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.data.reading.source_files import open_source, said_of_change
from hyperpod_kit.data.spread_order import LANES
from hyperpod_kit.errors import DataError, UsageError, first_line
from hyperpod_kit.untrusted import terminal


def index(args: argparse.Namespace) -> int:
    """Make or renew an index."""
    if args.format is not None and args.format not in SUFFIXES:
        raise UsageError(f"--format {args.format}: expected one of {', '.join(SUFFIXES)}")
    with reading_as_owner(args.sources, args.answer):
        return _index(args)


def _index(args: argparse.Namespace) -> int:
    begun = time.monotonic()
    line = ByteLine("indexing")
    try:
        built = build(
            args.sources,
            args.out,
            format=args.format,
            threads=args.threads,
            check=args.check,
            on_bad=args.on_bad,
            answer=args.answer,
            progress=line.advance,
        )
    finally:
        line.end()
    made = built.index
    seconds = time.monotonic() - begun
    mixing = _mixing(made)
    if args.json:
        counts = {"read": built.read, "known": built.known, "passed_over": built.passed_over}
        terminal.data({**_facts(made), **counts, **_mixing_facts(mixing)})
        return 0
    terminal.out(
        f"{made.folder}: {made.samples} samples in {made.files} files, {size(made.bytes)}, in {seconds:.1f} s"
        + (f"; {built.known} files were known already" if built.known else "")
    )
    if made.skipped:
        terminal.out(f"{made.skipped} records are none and were left out")
    if built.passed_over:
        terminal.out(f"{built.passed_over} files are of no known format and were passed over")
    _say_mixing(mixing)
    return 0


class _DefaultMixing(NamedTuple):
    """Of the loader's own order, and by what its data is sorted; `unread`: why that is not known."""

    mixing: Mixing
    order: ShuffledOrder
    by: list[SortedBy]
    unread: str = ""


def _mixing(found: SampleIndex) -> _DefaultMixing | None:
    """None for an index without samples."""
    if not found.samples:
        return None
    try:
        order = order_of(IndexedDataset(found, patience=0.0, answer=5.0))
    except (DataError, OSError):  # of Parquet; which one it is, its files say
        order = order_for(found, 0)
    mixing = mixing_of(order)
    try:
        return _DefaultMixing(mixing, order, sorted_by(found))
    except (DataError, OSError) as err:
        return _DefaultMixing(mixing, order, [], first_line(err))


def _mixing_facts(found: _DefaultMixing | None) -> dict[str, Any]:
    if found is None:
        return {}
    mixing, order = found.mixing, found.order
    figures = {
        "batch": mixing.batch,
        "all": mixing.all,
        "parts": round(mixing.parts, 1),
        "uniform": round(mixing.uniform, 1),
    }
    default = {"block": order.block, "lanes": order.lanes}
    return {**default, "mixing": figures, "sorted_by": [one._asdict() for one in found.by]}


def _say_mixing(found: _DefaultMixing | None) -> None:
    if found is None:
        return
    mixing = found.mixing
    terminal.out(f"order    blocks of {found.order.block:,} samples, {found.order.lanes} side by side, by default")
    terminal.out(
        f"mixing   a batch of {mixing.batch:,} has samples from {mixing.parts:.0f} of {mixing.all} parts of the data, "
        f"one of a uniform shuffle from {mixing.uniform:.0f} ({mixing.share:.0%})"
    )
    if found.unread:
        terminal.out(f"         whether the data is sorted is not known: {found.unread}")
    for one in found.by:
        terminal.out(
            f"warning: the data is sorted by {one.name}: {one.neighbours:.0%} of neighbours have it in common, "
            f"{one.others:.0%} of others"
        )
    if mixing.share < WELL_MIXED:
        terminal.out(
            "hint: where neighbours are alike, a batch is less varied than chance makes it. Each lane of the order "
            "has a row group, or a member, in memory: give more, as IndexedDataset(index, memory=1 << 30) and "
            f"order=SpreadOrder(len(data), seed, block={found.order.block}, lanes={LANES}), or write smaller ones"
        )


def _facts(found: SampleIndex) -> dict[str, Any]:
    return {
        "index": found.folder,
        "sources": list(found.sources),
        "files": found.files,
        "samples": found.samples,
        "bytes": found.bytes,
        "skipped": found.skipped,
        "formats": list(found.formats),
        "data": found.data,
    }


def show(args: argparse.Namespace) -> int:
    """What an index says."""
    # Whoever owns the index says what its sources are.
    with reading_as_owner([args.index]):
        return _show(args)


def _show(args: argparse.Namespace) -> int:
    found = SampleIndex.open(args.index)
    files = [found.file(number) for number in range(min(found.files, max(0, args.files)))]
    if args.json:
        rows = [
            {"path": one.path, "format": one.format, "bytes": one.size, "samples": one.samples, "skipped": one.skipped}
            for one in files
        ]
        terminal.data({**_facts(found), **_mixing_facts(_mixing(found)), "first_files": rows})
        return 0
    for name, value in _facts(found).items():
        terminal.out(f"{name:8} {', '.join(value) if isinstance(value, list) else value}")
    _say_mixing(_mixing(found))
    for one in files:
        terminal.out(f"  {one.samples:>10} {one.format:8} {size(one.size):>10}  {one.path}")
    if found.files > len(files):
        terminal.out(f"  and {found.files - len(files)} more files: --files {found.files}")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Compare files with their fingerprints."""
    with reading_as_owner([args.index], args.answer):
        return _verify(args)


def _verify(args: argparse.Namespace) -> int:
    found = SampleIndex.open(args.index)
    mounts = SourceMounts(args.answer)
    wrong = []
    for number in range(found.files):
        said = _problem(found.file(number), mounts, args.bytes)
        if said:
            wrong.append(said)
    if args.json:
        terminal.data({"index": found.folder, "files": found.files, "wrong": wrong})
    else:
        for said in wrong:
            terminal.out(said)
        terminal.out(f"{found.files - len(wrong)} of {found.files} files are those that were indexed")
    return 1 if wrong else 0


def _problem(file: IndexedFile, mounts: SourceMounts, every_byte: bool) -> str | None:
    """What is wrong with a file. Raises DataUnavailable."""
    with storage_of(file.path), contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(contextlib.closing(open_source(file.path, mounts)))
        except (FileNotFoundError, PermissionError) as err:
            return str(err)
        if (source.size, source.mtime_ns) != (file.size, file.mtime_ns):
            return said_of_change(file.path, (file.size, file.mtime_ns), (source.size, source.mtime_ns))
        if every_byte:
            digest = module_of(file.format).scan(source, lambda count: None).digest
            if digest != file.digest:
                return f"{file.path}: expected digest {file.digest}, found {digest}"
    return None
