"""How far a long command is, on one line of a terminal; nothing where nobody looks."""

from __future__ import annotations

import sys
import time

from hyperpod_kit.untrusted import terminal


def format_size(count: float) -> str:
    """Format a number of bytes for a person."""
    if count < 1024:
        return f"{count:.0f} B"
    count /= 1024
    for unit in ("KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


class ByteLine:
    """`advance(done, total)` in bytes; `end()` leaves an empty line."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started_at = time.monotonic()
        self._first: int | None = None
        self._shown = False

    def show_progress(self, done: int, total: int) -> None:
        """Show how many bytes of how many are done."""
        if self._first is None:
            self._first = done
        if not sys.stderr.isatty():
            return
        rate = (done - self._first) / max(1e-3, time.monotonic() - self._started_at)
        seconds_left = 0.0
        if rate:
            seconds_left = (total - done) / rate
        share = 100.0
        if total:
            share = 100 * done / total
        line = (
            f"{self._title} {share:5.1f} %  {format_size(done)} of {format_size(total)}  {format_size(rate)}/s  "
            f"{seconds_left:.0f} s left"
        )
        terminal.write_escaping_unencodable(sys.stderr, f"\r{line:<78.78}")
        sys.stderr.flush()
        self._shown = True

    def clear_line(self) -> None:
        """Clear the line."""
        if self._shown:
            terminal.write_escaping_unencodable(sys.stderr, "\r" + " " * 78 + "\r")
            sys.stderr.flush()
