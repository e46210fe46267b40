"""What `storage usage` prints, and says while it counts."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Callable, Iterator, Sequence

from hyperpod_kit.cli.terminal.output import (
    live_status,
    print_json,
    print_table,
    print_text,
    print_to_stderr,
    table_cell,
)
from hyperpod_kit.command_line.tables import Column, TextTable, format_utc
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.storage.usage.ledger import UsageLedger
    from hyperpod_kit.storage.usage.report import Total, UsageReport

BAR = 20
_TABLES = {"user": "users", "group": "groups", "directory": "directories", "run": "runs"}


@contextmanager
def show_count_progress(root: str, ledger: UsageLedger) -> Iterator[Callable[[int], None]]:
    """Print where a resumed count goes on, and show progress on a terminal.

    Yields show(counted so far).
    """
    if ledger.resumed:
        started_at = format_utc(ledger.started_at)
        print_to_stderr(
            f"{root}: resumes after {ledger.count_entries():,} counted since {started_at}; --fresh starts from the "
            "beginning"
        )
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    with live_status() as line:
        yield lambda count: line(f"{root}: {count:,} counted")


def format_size(count: float) -> str:
    """Bytes as a person reads them, in units of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            if unit == "B":
                return f"{count:,.0f} B"
            return f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def print_usage_reports(usage_reports: list[UsageReport], by: Sequence[str], top: int, as_json: bool) -> None:
    """Every table of every root."""
    if as_json:
        print_json("storage usage", {"roots": [report.to_json() for report in usage_reports]})
        return
    for report in usage_reports:
        _print_total(report)
        for line in growth_lines(report):
            print_text(f"  {line}")
        _print_ages(report)
        for name in by:
            _print_usage_table(report, name, getattr(report, _TABLES[name]), top)
        _print_deletable_checkpoints(report, top)
        _print_unread_and_foreign_paths(report)


def _print_total(report: UsageReport) -> None:
    print_text(
        f"{report.root}: {format_size(report.total.allocated)} in {report.total.entries:,} "
        f"{counted_noun(report)}{_format_free_space(report)}"
    )
    for kind, part in report.kinds.items():
        if kind:
            print_text(f"  of these {format_size(part.allocated)} in {part.entries:,} {kind}")


def _format_free_space(report: UsageReport) -> str:
    if report.room is None:
        return ""
    total, free = report.room
    if not total:
        return ""
    return f"; the file system has {format_size(free)} of {format_size(total)} free ({1 - free / total:.0%} full)"


def counted_noun(report: UsageReport) -> str:
    """Name what is counted."""
    if report.root.startswith("s3://"):
        return "objects, versions and uploads"
    return "files and directories"


def growth_lines(report: UsageReport) -> list[str]:
    """Describe how fast a location grows and when it is full, or that this is not known yet."""
    from hyperpod_kit.storage.usage import filling
    from hyperpod_kit.storage.usage import growth as growths

    rate = report.growth
    if rate is None:
        days = counted(report.history_days, "day")
        return [f"growth is unknown yet: {days} of history, and {growths.MIN_ROWS} are required"]
    low, likely, high = map(_format_signed_size, (rate.low, rate.likely, rate.high))
    days = counted(rate.days, "day", spec=".0f")
    lines = [f"growth: {likely} a day ({low} to {high}, four times out of five), over {days}"]
    if report.forecast is not None:
        lines.append(f"at that rate {filling.describe_forecast(report.forecast)}")
    return lines


def _format_signed_size(count: float) -> str:
    sign = ""
    if count < 0:
        sign = "-"
    return sign + format_size(abs(count))


AGE_COLUMNS = ("age", "last written", "files", "last read")


def age_rows_written_and_read(report: UsageReport) -> list[tuple[str, str, str, str]]:
    """Under AGE_COLUMNS, the oldest first."""
    written = {row.name: row for row in report.ages if row.what == "written"}
    read = {row.name: row for row in report.ages if row.what == "read"}
    rows = []
    for name in dict.fromkeys([*written, *read]):
        size_written, files, size_read = "", "", ""
        if name in written:
            size_written, files = format_size(written[name].allocated), f"{written[name].entries:,}"
        if name in read:
            size_read = format_size(read[name].allocated)
        if not report.reads_kept:
            size_read = "not recorded"
        rows.append((name, size_written, files, size_read))
    return rows


def _print_ages(report: UsageReport) -> None:
    if not report.ages:
        return
    _print_heading(f"{report.root} by age")
    grid = TextTable([Column(head.upper(), is_number=head != "age") for head in AGE_COLUMNS])
    for row in age_rows_written_and_read(report):
        grid.add_row(*map(table_cell, row))
    print_table(grid)


def _print_heading(text: str) -> None:
    """Print a heading above a table; a title of the table itself would be broken to the table's width."""
    print_text(text)


def _print_usage_table(report: UsageReport, name: str, rows: dict[str, Total], top: int) -> None:
    if not rows:
        return
    _print_heading(f"{report.root} by {name}")
    heads = ["ON DISK", "SIZE", "COUNT", "SHARE"]
    if report.price is not None:
        heads.append("USD/MONTH")
    numbers = [Column(head, is_number=True, may_miss=head == "SIZE") for head in heads]
    grid = TextTable([name.upper(), *numbers, Column("", may_miss=True)])
    for key, part in list(rows.items())[:top]:
        share = 0.0
        if report.total.allocated:
            share = part.allocated / report.total.allocated
        cost = report.monthly_cost_usd(part)
        costs = () if cost is None else (f"{cost:,.2f}",)
        sums = (
            _path_below(report.root, key),
            format_size(part.allocated),
            format_size(part.size),
            f"{part.entries:,}",
            f"{share:.1%}",
            *costs,
        )
        grid.add_row(*map(table_cell, (*sums, "█" * round(BAR * share))))
    print_table(grid)
    if len(rows) > top:
        print_text(f"and {len(rows) - top:,} more: --top {len(rows)}")


def _path_below(root: str, path: str) -> str:
    """Return a path below the root relative to it, `.` for the root itself; any other name as it is."""
    if path == root:
        return "."
    prefix = root.rstrip("/") + "/"
    if path.startswith(prefix):
        return path[len(prefix) :]
    return path


def _print_deletable_checkpoints(report: UsageReport, top: int) -> None:
    judged = [row for row in report.deletable if not row.error]
    if judged:
        _print_heading(f"{report.root}: checkpoints that may be deleted")
        grid = TextTable(
            ("CHECKPOINT", Column("RUN", folds=True), Column("ON DISK", is_number=True), Column("WHY", folds=True))
        )
        for row in sorted(judged, key=lambda row: -row.allocated)[:top]:
            grid.add_row(
                *map(table_cell, (row.attempt, _path_below(report.root, row.run), format_size(row.allocated), row.why))
            )
        print_table(grid)
        print_text(
            f"{counted(len(judged), 'checkpoint', spec=',')}, {format_size(sum(row.allocated for row in judged))}; "
            f"next: hyperpod-kit checkpoint prune {judged[0].run} --latest N --dry-run"
        )
    for row in report.deletable:
        if row.error:
            print_to_stderr(f"{row.run}: cannot determine which checkpoints may be deleted: {row.error}")


def _print_unread_and_foreign_paths(report: UsageReport) -> None:
    for path in report.elsewhere:
        print_to_stderr(f"{path}: another file system, not counted")
    for path, reason in report.unread[:20]:
        print_to_stderr(f"{path}: not counted: {reason}")
    if report.unread_count > 20:
        print_to_stderr(
            f"and {counted(report.unread_count - 20, 'more directory', 'more directories', spec=',')} that could not "
            "be read"
        )
