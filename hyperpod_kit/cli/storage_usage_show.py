"""What `storage usage` prints, and says while it counts."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Callable, Iterator, Sequence

from hyperpod_kit.cli.output import cell, console, data, out, say, watch

if TYPE_CHECKING:
    from hyperpod_kit.storage.usage.ledger import UsageLedger
    from hyperpod_kit.storage.usage.report import Total, UsageReport

BAR = 20
_TABLES = {"user": "users", "group": "groups", "directory": "directories", "run": "runs"}


@contextmanager
def progress(root: str, ledger: UsageLedger) -> Iterator[Callable[[int], None]]:
    """Yields show(counted so far)."""
    if ledger.resumed:
        started_at = time.strftime("%H:%M", time.localtime(ledger.started_at))
        say(f"{root}: goes on after {ledger.counted():,} counted since {started_at}; --fresh begins anew")
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    with watch() as line:
        yield lambda count: line(f"{root}: {count:,} counted")


def size(count: float) -> str:
    """Bytes as a person reads them, in units of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            if unit == "B":
                return f"{count:,.0f} B"
            return f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def reports(places: list[UsageReport], by: Sequence[str], top: int, as_json: bool) -> None:
    """Every table of every root."""
    if as_json:
        data([report.to_json() for report in places])
        return
    for report in places:
        _print_total(report)
        for line in growth_lines(report):
            out(f"  {line}")
        _ages(report)
        for name in by:
            _table(report, name, getattr(report, _TABLES[name]), top)
        _deletable(report, top)
        _unseen(report)


def _print_total(report: UsageReport) -> None:
    out(f"{report.root}: {size(report.total.allocated)} in {report.total.entries:,} {noun(report)}{_room(report)}")
    for kind, part in report.kinds.items():
        if kind:
            out(f"  of these {size(part.allocated)} in {part.entries:,} {kind}")


def _room(report: UsageReport) -> str:
    if report.room is None:
        return ""
    total, free = report.room
    if not total:
        return ""
    return f"; the file system has {size(free)} of {size(total)} free ({1 - free / total:.0%} full)"


def noun(report: UsageReport) -> str:
    """Name what is counted."""
    if report.root.startswith("s3://"):
        return "objects, versions and uploads"
    return "files and directories"


def growth_lines(report: UsageReport) -> list[str]:
    """Describe how fast a place grows and when it is full, or that this is not known yet."""
    from hyperpod_kit.storage.usage import filling
    from hyperpod_kit.storage.usage import growth as growths

    rate = report.growth
    if rate is None:
        unit = "days"
        if report.history_days == 1:
            unit = "day"
        days = f"{report.history_days} {unit}"
        return [f"growth is not known yet: {days} of history, and it takes {growths.MIN_ROWS}"]
    low, likely, high = map(_signed, (rate.low, rate.likely, rate.high))
    lines = [f"growth: {likely} a day ({low} to {high}, four times out of five), over {rate.days:.0f} days"]
    if report.forecast is not None:
        lines.append(f"at that rate {filling.describe_forecast(report.forecast)}")
    return lines


def _signed(count: float) -> str:
    sign = ""
    if count < 0:
        sign = "-"
    return sign + size(abs(count))


AGE_COLUMNS = ("age", "last written", "files", "last read")


def age_rows(report: UsageReport) -> list[tuple[str, str, str, str]]:
    """Under AGE_COLUMNS, the oldest first."""
    written = {row.name: row for row in report.ages if row.what == "written"}
    read = {row.name: row for row in report.ages if row.what == "read"}
    rows = []
    for name in dict.fromkeys([*written, *read]):
        size_written, files, size_read = "", "", ""
        if name in written:
            size_written, files = size(written[name].allocated), f"{written[name].entries:,}"
        if name in read:
            size_read = size(read[name].allocated)
        if not report.reads_kept:
            size_read = "not kept here"
        rows.append((name, size_written, files, size_read))
    return rows


def _ages(report: UsageReport) -> None:
    from rich.table import Table

    if not report.ages:
        return
    _heading(f"{report.root} by age")
    grid = Table()
    for column in AGE_COLUMNS:
        grid.add_column(column, justify="left" if column == "age" else "right")
    for row in age_rows(report):
        grid.add_row(*map(cell, row))
    console().print(grid)


def _heading(text: str) -> None:
    """Above a table and not its title, which would be broken to the width of the table."""
    out(text)


def _table(report: UsageReport, name: str, rows: dict[str, Total], top: int) -> None:
    from rich.table import Table

    if not rows:
        return
    _heading(f"{report.root} by {name}")
    grid = Table()
    grid.add_column(name)
    if report.price is not None:
        priced = ["US dollars a month"]
    else:
        priced = []
    for column in ("on disk", "as ls says", "count", "share", *priced):
        grid.add_column(column, justify="right")
    grid.add_column("")
    for key, part in list(rows.items())[:top]:
        share = 0.0
        if report.total.allocated:
            share = part.allocated / report.total.allocated
        cost = report.cost(part)
        costs = () if cost is None else (f"{cost:,.2f}",)
        sums = (key, size(part.allocated), size(part.size), f"{part.entries:,}", f"{share:.1%}", *costs)
        grid.add_row(*map(cell, (*sums, "█" * round(BAR * share))))
    console().print(grid)
    if len(rows) > top:
        out(f"and {len(rows) - top:,} more: --top {len(rows)}")


def _deletable(report: UsageReport, top: int) -> None:
    from rich.table import Table

    judged = [row for row in report.deletable if not row.error]
    if judged:
        _heading(f"{report.root}: checkpoints that may be deleted")
        grid = Table()
        for column in ("run", "checkpoint", "on disk", "why"):
            grid.add_column(column)
        for row in sorted(judged, key=lambda row: -row.allocated)[:top]:
            grid.add_row(*map(cell, (row.run, row.attempt, size(row.allocated), row.why)))
        console().print(grid)
        out(
            f"{len(judged):,} checkpoints, {size(sum(row.allocated for row in judged))}; next: "
            f"hyperpod-kit checkpoint prune {judged[0].run} --latest N --dry-run"
        )
    for row in report.deletable:
        if row.error:
            say(f"{row.run}: its checkpoints cannot be judged: {row.error}")


def _unseen(report: UsageReport) -> None:
    for path in report.elsewhere:
        say(f"{path}: another file system, not counted")
    for path, reason in report.unread[:20]:
        say(f"{path}: not counted: {reason}")
    if report.unread_count > 20:
        say(f"and {report.unread_count - 20:,} more directories that could not be read")
