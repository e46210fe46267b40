"""`data bench`."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Sequence

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.data.commands.progress import format_size
from hyperpod_kit.data.commands.rights import reading_as_owner
from hyperpod_kit.errors import UsageError
from hyperpod_kit.untrusted import terminal
from hyperpod_lab.data_bench.measure import BenchRow, Rival, load_rivals
from hyperpod_lab.data_bench.measure import bench as rows_of


def _format_row(row: BenchRow) -> str:
    if not row.seconds:
        return row.what
    return (
        f"{row.what:40} {row.samples:>10} samples {format_size(row.bytes):>11} {row.seconds:9.3f} s "
        f"{row.samples / max(row.seconds, 1e-9):>11.0f} samples/s {format_size(row.bytes_per_second):>11}/s "
        f"{row.processor / max(row.samples, 1) * 1e6:>9.2f} us of processor a sample"
    )


def bench(args: argparse.Namespace) -> int:
    """Measure."""
    try:
        workers = [int(number) for number in args.workers.split(",")]
    except ValueError:
        raise UsageError(f"--workers {args.workers}: numbers with commas, such as 0,2,4") from None
    logging.getLogger("hyperpod_kit.data").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    measured_rows = []
    if args.passes < 1:
        raise UsageError(f"--passes {args.passes}: at least 1")
    rivals: Sequence[Rival] = ()
    if args.rivals:
        rivals = load_rivals(args.rivals)
    rows = rows_of(
        args.sources,
        limit=args.samples,
        batch=args.batch,
        workers=workers,
        say=terminal.print_stderr,
        passes=args.passes,
        rivals=rivals,
    )
    with reading_as_owner(args.sources):
        for row in rows:
            measured_rows.append(row)
            if not args.json:
                terminal.print_stdout(_format_row(row))
    if args.json:
        terminal.print_json(
            document(
                "data bench",
                {
                    "measurements": [
                        {**row._asdict(), "bytes_a_second": round(row.bytes_per_second)} for row in measured_rows
                    ]
                },
            )
        )
    return 0
