"""Words go to stderr, data to stdout; colours and bars only where a person looks."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator

import click

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 180
"""Columns of a table that goes to a file or a pipe: enough that nothing is cut off."""


def say(text: str) -> None:
    """A sentence for the person in front of the terminal."""
    click.echo(text, err=True)


def data(value: Any) -> None:
    """`--json`: one object on stdout."""
    click.echo(json.dumps(value, indent=2, default=str))


def console(stderr: bool = False) -> Console:
    """A rich console on stdout (tables) or stderr (progress)."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, nothing at all when that is no terminal. Yields advance(count)."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def watch() -> Iterator[Callable[[str], None]]:
    """Yields show(line): what something is doing now, with the seconds since the beginning, one line a change.

    On a terminal the last line stays at the bottom with a spinner, so that a long silence does not look like a hang.
    """
    began = time.monotonic()
    last = ""
    screen = console(stderr=True) if sys.stderr.isatty() else None
    spinner = screen.status("asking AWS") if screen is not None else None

    def show(line: str) -> None:
        nonlocal last
        if line == last:
            return
        last = line
        text = f"{time.monotonic() - began:5.0f} s  {line}"
        if screen is None or spinner is None:
            say(text)
            return
        # Through the same console, which moves the spinner out of the way.
        screen.print(text, markup=False)
        spinner.update(line.split(" · ")[0])

    if spinner is None:
        yield show
    else:
        with spinner:
            yield show
