"""`data index`, `data show`, `data verify`."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any, NamedTuple

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.tables import Column, format_rows
from hyperpod_kit.data.commands.progress import ByteLine, format_size
from hyperpod_kit.data.commands.rights import reading_as_owner
from hyperpod_kit.data.dataset import IndexedDataset
from hyperpod_kit.data.formats.table import SUFFIXES, import_format_module
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.index.layout import IndexedFile, SampleIndex
from hyperpod_kit.data.mixing import WELL_MIXED, Mixing, SortedBy, detect_fields_data_is_sorted_by, measure_mixing
from hyperpod_kit.data.order.default_order import choose_shuffled_order, order_of
from hyperpod_kit.data.order.order import ShuffledOrder
from hyperpod_kit.data.order.spread_order import LANES
from hyperpod_kit.data.reading.listing import storage_errors_as_data_unavailable
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.data.reading.source_files import describe_change, open_source
from hyperpod_kit.errors import DataError, UsageError, first_line
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import counted


def index(args: argparse.Namespace) -> int:
    """Make or renew an index."""
    if args.format is not None and args.format not in SUFFIXES:
        raise UsageError(f"--format {args.format}: expected one of {', '.join(SUFFIXES)}")
    with reading_as_owner(args.sources, args.reply_timeout):
        return _build_and_report_index(args)


def _build_and_report_index(args: argparse.Namespace) -> int:
    started_at = time.monotonic()
    line = ByteLine("indexing")
    try:
        outcome = build_index(
            args.sources,
            args.out,
            format=args.format,
            threads=args.threads,
            check=args.check,
            on_bad=args.on_bad,
            reply_timeout=args.reply_timeout,
            progress=line.show_progress,
        )
    finally:
        line.clear_line()
    index = outcome.index
    seconds = time.monotonic() - started_at
    mixing = _measure_default_mixing_unless_empty(index)
    if args.json:
        counts = {"read": outcome.read, "known": outcome.reused, "passed_over": outcome.passed_over}
        terminal.print_json(document("data index", {**_index_facts(index), **counts, **_mixing_as_json(mixing)}))
        return 0
    reused = ""
    if outcome.reused:
        reused = f"; {counted(outcome.reused, 'file was', 'files were')} already indexed"
    terminal.print_stdout(
        f"{index.folder}: {counted(index.samples, 'sample')} in {counted(index.files, 'file')}, "
        f"{format_size(index.bytes)}, in {seconds:.1f} s{reused}"
    )
    if index.skipped:
        terminal.print_stdout(f"{counted(index.skipped, 'bad record was', 'bad records were')} left out")
    if outcome.passed_over:
        terminal.print_stdout(
            f"skipped {counted(outcome.passed_over, 'file of unknown format', 'files of unknown formats')}"
        )
    _print_mixing(mixing)
    return 0


class _DefaultMixing(NamedTuple):
    """Of the loader's own order, and by what its data is sorted; `unread`: why that is not known."""

    mixing: Mixing
    order: ShuffledOrder
    by: list[SortedBy]
    unread: str = ""


def _measure_default_mixing_unless_empty(index: SampleIndex) -> _DefaultMixing | None:
    """Measure how the default order mixes; None for an index without samples."""
    if not index.samples:
        return None
    try:
        order = order_of(IndexedDataset(index, patience=0.0, answer=5.0))
    except (DataError, OSError):  # of Parquet; which one it is, its files say
        order = choose_shuffled_order(index, 0)
    mixing = measure_mixing(order)
    try:
        return _DefaultMixing(mixing, order, detect_fields_data_is_sorted_by(index))
    except (DataError, OSError) as err:
        return _DefaultMixing(mixing, order, [], first_line(err))


def _mixing_as_json(measured: _DefaultMixing | None) -> dict[str, Any]:
    if measured is None:
        return {}
    mixing, order = measured.mixing, measured.order
    figures = {
        "batch": mixing.batch,
        "all": mixing.all,
        "parts": round(mixing.parts, 1),
        "uniform": round(mixing.uniform, 1),
    }
    default = {"block": order.block, "lanes": order.lanes}
    return {**default, "mixing": figures, "sorted_by": [value._asdict() for value in measured.by]}


def _print_mixing(measured: _DefaultMixing | None) -> None:
    if measured is None:
        return
    mixing = measured.mixing
    terminal.print_stdout(
        f"order    blocks of {measured.order.block:,} samples, {measured.order.lanes} side by side, by default"
    )
    terminal.print_stdout(
        f"mixing   a batch of {mixing.batch:,} has samples from {mixing.parts:.0f} of {mixing.all} parts of the data, "
        f"one of a uniform shuffle from {mixing.uniform:.0f} ({mixing.share_of_uniform:.0%})"
    )
    if measured.unread:
        terminal.print_stdout(f"         unknown whether the data is sorted: {measured.unread}")
    for value in measured.by:
        terminal.print_stdout(
            f"warning: the data is sorted by {value.name}: {value.neighbours:.0%} of neighbours have it in common, "
            f"{value.others:.0%} of others"
        )
    if mixing.share_of_uniform < WELL_MIXED:
        terminal.print_stdout(
            "hint: if neighbours are alike, a batch is less varied than a random one. Each lane of the order keeps a "
            "row group, or a member, in memory: use more lanes and memory, for example "
            "IndexedDataset(index, memory=1 << 30) and "
            f"order=SpreadOrder(len(data), seed, block={measured.order.block}, lanes={LANES}), or write smaller row "
            "groups or members"
        )


def _index_facts(index: SampleIndex) -> dict[str, Any]:
    return {
        "index": index.folder,
        "sources": list(index.sources),
        "files": index.files,
        "samples": index.samples,
        "bytes": index.bytes,
        "skipped": index.skipped,
        "formats": list(index.formats),
        "data": index.data,
    }


def show(args: argparse.Namespace) -> int:
    """Print what an index says."""
    # Whoever owns the index says what its sources are.
    with reading_as_owner([args.index]):
        return _print_index(args)


def _print_index(args: argparse.Namespace) -> int:
    index = SampleIndex.open(args.index)
    files = [index.file(number) for number in range(min(index.files, max(0, args.files)))]
    if args.json:
        rows = [
            {
                "path": file.path,
                "format": file.format,
                "bytes": file.size,
                "samples": file.samples,
                "skipped": file.skipped,
            }
            for file in files
        ]
        terminal.print_json(
            document(
                "data show",
                {
                    **_index_facts(index),
                    **_mixing_as_json(_measure_default_mixing_unless_empty(index)),
                    "first_files": rows,
                },
            )
        )
        return 0
    for name, value in _index_facts(index).items():
        if isinstance(value, list):
            value = ", ".join(value)
        terminal.print_stdout(f"{name:8} {value}")
    _print_mixing(_measure_default_mixing_unless_empty(index))
    columns = ("FILE", "FORMAT", Column("SIZE", is_number=True), Column("SAMPLES", is_number=True))
    terminal.print_stdout(
        format_rows(
            columns,
            [
                (_path_below_source(file.path, index), file.format, format_size(file.size), str(file.samples))
                for file in files
            ],
        )
    )
    if index.files > len(files):
        terminal.print_stdout(f"  and {counted(index.files - len(files), 'more file')}: --files {index.files}")
    return 0


def _path_below_source(path: str, index: SampleIndex) -> str:
    """Return the path of a file relative to the source, where the index has only one."""
    sources = list(index.sources)
    prefix = f"{sources[0]}/"
    if len(sources) == 1 and path.startswith(prefix):
        return path[len(prefix) :]
    return path


def verify(args: argparse.Namespace) -> int:
    """Compare files with their fingerprints."""
    with reading_as_owner([args.index], args.reply_timeout):
        return _verify_files_and_report(args)


def _verify_files_and_report(args: argparse.Namespace) -> int:
    index = SampleIndex.open(args.index)
    mounts = SourceMounts(args.reply_timeout)
    problems = []
    for number in range(index.files):
        problem = _find_difference_from_index(index.file(number), mounts, args.bytes)
        if problem:
            problems.append(problem)
    if args.json:
        terminal.print_json(document("data verify", {"index": index.folder, "files": index.files, "wrong": problems}))
    else:
        for problem in problems:
            terminal.print_stdout(problem)
        terminal.print_stdout(
            f"{index.files - len(problems)} of {index.files} files are unchanged since they were indexed"
        )
    return 1 if problems else 0


def _find_difference_from_index(file: IndexedFile, mounts: SourceMounts, every_byte: bool) -> str | None:
    """Describe what is wrong with a file. Raises DataUnavailable."""
    with storage_errors_as_data_unavailable(file.path), contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(contextlib.closing(open_source(file.path, mounts)))
        except (FileNotFoundError, PermissionError) as err:
            return str(err)
        if (source.size, source.mtime_ns) != (file.size, file.mtime_ns):
            return describe_change(file.path, (file.size, file.mtime_ns), (source.size, source.mtime_ns))
        if every_byte:
            digest = import_format_module(file.format).scan(source, lambda count: None).digest
            if digest != file.digest:
                return f"{file.path}: expected digest {file.digest}, found {digest}"
    return None
