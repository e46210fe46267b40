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
        begun = time.strftime("%H:%M", time.localtime(ledger.begun))
        say(f"{root}: goes on after {ledger.counted():,} counted since {begun}; --fresh begins anew")
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    with watch() as line:
        yield lambda count: line(f"{root}: {count:,} counted")


def size(count: float) -> str:
    """Bytes as a person reads them, in units of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def reports(found: list[UsageReport], by: Sequence[str], top: int, as_json: bool) -> None:
    """Every table of every root."""
    if as_json:
        data([one.to_json() for one in found])
        return
    for one in found:
        _whole(one)
        for name in by:
            _table(one.root, name, getattr(one, _TABLES[name]), one.total, top)
        _deletable(one, top)
        _unseen(one)


def _whole(one: UsageReport) -> None:
    room = ""
    if one.room is not None:
        total, free = one.room
        room = (
            f"; the file system has {size(free)} of {size(total)} free ({1 - free / total:.0%} full)" if total else ""
        )
    out(f"{one.root}: {size(one.total.allocated)} in {one.total.entries:,} {_noun(one)}{room}")
    for kind, part in one.kinds.items():
        if kind:
            out(f"  of these {size(part.allocated)} in {part.entries:,} {kind}")


def _noun(one: UsageReport) -> str:
    return "objects, versions and uploads" if one.root.startswith("s3://") else "files and directories"


def _table(root: str, name: str, rows: dict[str, Total], whole: Total, top: int) -> None:
    from rich.table import Table

    if not rows:
        return
    grid = Table(title=f"{root} by {name}", title_justify="left")
    grid.add_column(name)
    for column in ("on disk", "as ls says", "count"):
        grid.add_column(column, justify="right")
    grid.add_column("")
    for key, one in list(rows.items())[:top]:
        share = round(BAR * one.allocated / whole.allocated) if whole.allocated else 0
        grid.add_row(*map(cell, (key, size(one.allocated), size(one.size), f"{one.entries:,}", "█" * share)))
    console().print(grid)
    if len(rows) > top:
        out(f"and {len(rows) - top:,} more: --top {len(rows)}")


def _deletable(one: UsageReport, top: int) -> None:
    from rich.table import Table

    judged = [row for row in one.deletable if not row.error]
    if judged:
        grid = Table(title=f"{one.root}: checkpoints that may be deleted", title_justify="left")
        for column in ("run", "checkpoint", "on disk", "why"):
            grid.add_column(column)
        for row in sorted(judged, key=lambda row: -row.allocated)[:top]:
            grid.add_row(*map(cell, (row.run, row.attempt, size(row.allocated), row.why)))
        console().print(grid)
        out(
            f"{len(judged):,} checkpoints, {size(sum(row.allocated for row in judged))}; next: "
            f"hyperpod-kit checkpoint prune {judged[0].run} --latest N --dry-run"
        )
    for row in one.deletable:
        if row.error:
            say(f"{row.run}: its checkpoints cannot be judged: {row.error}")


def _unseen(one: UsageReport) -> None:
    for path in one.elsewhere:
        say(f"{path}: another file system, not counted")
    for path, why in one.unread[:20]:
        say(f"{path}: not counted: {why}")
    if one.unread_count > 20:
        say(f"and {one.unread_count - 20:,} more directories that could not be read")
