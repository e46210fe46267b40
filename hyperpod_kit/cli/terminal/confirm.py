"""The question before something that cannot be taken back."""

from __future__ import annotations

import sys

import click

from hyperpod_kit.cli.terminal.output import ask_yes_no, print_to_stderr
from hyperpod_kit.errors import UsageError


def require_confirmation(question: str, *, yes: bool) -> None:
    """Ask the question and return when the answer is yes, or at once when `yes` is given.

    Raises click.Abort on no, UsageError when there is no terminal to answer on.
    """
    if yes:
        return
    try:
        agreed, unanswered = ask_yes_no(question), False
    except click.Abort:
        agreed, unanswered = False, not sys.stdin.isatty()
        print_to_stderr("")
    if unanswered:
        raise UsageError(
            "cannot ask for confirmation: standard input is not a terminal", hint="--yes confirms in advance"
        )
    if not agreed:
        raise click.Abort()
