"""Words go to stderr, data to stdout; colours and bars only where a person looks."""

from __future__ import annotations

import json
import sys
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
