"""The exit: words go to stderr, data to stdout; colours and bars only where a person looks.

Nothing else of the admin's program writes to a terminal (tests/hostile/test_every_writer.py), so whatever a node, a
bucket or a ledger said is cleaned here; the styles are added to what is clean.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Optional, Sequence

import click

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.tables import CELL, Cell, TextTable, screen_width
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import clean_one_line, replace_unprintable_in_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def print_to_stderr(text: str) -> None:
    """Print a sentence for a person on stderr, cleaned; do nothing where it cannot be written, see
    `terminal.print_stderr`."""
    try:
        click.echo(terminal.sanitize_lines(text), err=True)
    except OSError:
        terminal.redirect_to_devnull(sys.stderr)


def print_text(
    text: str = "", *, fg: Optional[str] = None, dim: bool = False, nl: bool = True, err: bool = False
) -> None:
    """Words on stdout (`err`: stderr), in a style of ours: what is in them is cleaned first."""
    shown = terminal.sanitize_lines(text)
    styled = shown
    if (fg or dim) and _is_colour_enabled():
        styled = click.style(shown, fg=fg, dim=dim or None)
    click.echo(styled, nl=nl, err=err)


def _is_colour_enabled() -> bool:
    """Whether to colour, as rich decides it and click does not: https://no-color.org, and a terminal that has none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def print_unchanged_unless_terminal(text: str) -> None:
    """Print on stdout what this program has made for programs: a script, a configuration.

    It is printed unchanged, except on a terminal, where control characters are cleaned.
    """
    if not sys.stdout.isatty():
        shown = text
    else:
        shown = replace_unprintable_in_lines(text)
    click.echo(shown, nl=not text.endswith("\n"))


def print_error(message: str, hint: Optional[str] = None) -> None:
    """Print what failed, and what to type next."""
    print_to_stderr("error: " + terminal.indent_continuation_lines(message))
    if hint:
        print_to_stderr("hint: " + terminal.indent_continuation_lines(hint))


def print_json(command: str, fields: Mapping[str, Any]) -> None:
    """Print the document of a command on stdout, indented, for `--json`."""
    print_document(document(command, fields))


def print_json_line(command: str, fields: Mapping[str, Any]) -> None:
    """Print the document of a command on one line of many."""
    click.echo(terminal.json_text_without_nan(document(command, fields)))


def print_document(value: Any) -> None:
    """Print JSON of another format on stdout: a policy, a schema, a request of AWS's."""
    click.echo(terminal.json_text_without_nan(value, indent=2))


def ask_yes_no(question: str) -> bool:
    """Ask yes or no on stderr. Raises click.Abort at the end of the input."""
    return click.confirm(terminal.sanitize_lines(question), err=True)


def ask_line(question: str, default: Any, show_default: bool) -> str:
    """Ask for a line on stderr. Raises click.Abort at the end of the input."""
    line: str = click.prompt(terminal.sanitize_lines(question), default=default, show_default=show_default, err=True)
    return line


def table_cell(value: object, style: str = "") -> Cell:
    """Return a value as a line of a cell; the table cleans it."""
    return Cell(str(value), style)


def print_table(table: TextTable) -> None:
    """Print a table on stdout: as wide as the terminal, or in a pipe as wide as its texts."""
    click.echo(table.format(screen_width(), _paint))


def _paint(text: str, style: str) -> str:
    """Return text in a style of words such as `bold red`, where a terminal shows colours."""
    if not _is_colour_enabled():
        return text
    words = style.split()
    colours = [word for word in words if word not in ("bold", "dim")]
    return click.style(text, fg=next(iter(colours), None), bold="bold" in words or None, dim="dim" in words or None)


def print_styled(parts: Sequence[tuple[str, str]]) -> None:
    """Print a line of texts with two blanks between them, each in its style."""
    click.echo("  ".join(_paint(clean_one_line(text, CELL), style) for text, style in parts))


def clear_screen() -> None:
    """Clear the terminal that stdout is, before a look is printed again."""
    if sys.stdout.isatty():
        click.clear()


def make_console() -> Console:
    """A rich console on stderr, for progress. Square brackets and colons are only themselves on it."""
    from hyperpod_kit.cli.terminal.clean_console import CleanConsole

    return CleanConsole(file=sys.stderr, highlight=False, markup=False, emoji=False)


def _as_rich_text(line: str) -> Text:
    from rich.text import Text

    return Text(clean_one_line(line, CELL))


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; where that is no terminal, a line for each QUIET seconds. Yields advance(count)."""
    if not sys.stderr.isatty():
        with _print_progress_periodically(title, total) as advance:
            yield advance
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=make_console(),
        transient=True,
    ) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


QUIET = 10.0
"""Seconds after which work that goes on without a terminal says how far it is, so that nobody takes it for stuck."""


@contextmanager
def _print_progress_periodically(title: str, total: int) -> Iterator[Callable[[int], None]]:
    done, over = 0, threading.Event()

    def report() -> None:
        while not over.wait(QUIET):
            print_to_stderr(f"{title}: {done} of {total}")

    def advance(count: int) -> None:
        nonlocal done
        done += count

    reporter = threading.Thread(target=report, daemon=True, name="progress")
    reporter.start()
    try:
        yield advance
    finally:
        over.set()
        reporter.join()


SILENCE = 30.0
"""Seconds after which a line of `watch` is said again."""


@contextmanager
def live_status() -> Iterator[Callable[[str], None]]:
    """Yields show(line): what something is doing now, with the seconds since the beginning, one line a change.

    A long silence must not look like a hang: a line that has not changed for SILENCE seconds is said again, and on a
    terminal the last one stays at the bottom with a spinner and the seconds.
    """
    started_at = time.monotonic()
    last, reported_at = "", started_at
    screen = None
    if sys.stderr.isatty():
        screen = make_console()
    spinner = None
    if screen is not None:
        spinner = screen.status("querying AWS")

    def show(line: str) -> None:
        nonlocal last, reported_at
        now = time.monotonic()
        shown = f"{now - started_at:5.0f} s  {line}"
        if screen is None or spinner is None:
            if line != last or now - reported_at >= SILENCE:
                last, reported_at = line, now
                print_to_stderr(shown)
            return
        if line != last:
            last = line
            # Through the same console, which moves the spinner out of the way.
            screen.print(_as_rich_text(shown))
        spinner.update(_as_rich_text(f"{line.split(' · ')[0]}, {now - started_at:.0f} s"))

    if spinner is None:
        yield show
    else:
        with spinner:
            yield show
