"""The question before something that cannot be taken back."""

from __future__ import annotations

import sys

import click

from hyperpod_kit.cli.output import confirmed, say
from hyperpod_kit.errors import UsageError


def confirm(question: str, *, yes: bool) -> None:
    """Return when the answer is yes. Raises click.Abort on no, UsageError where nobody is there to answer."""
    if yes:
        return
    try:
        agreed, unanswered = confirmed(question), False
    except click.Abort:
        agreed, unanswered = False, not sys.stdin.isatty()
        say("")
    if unanswered:
        raise UsageError("nobody is here to answer that", hint="--yes says it beforehand")
    if not agreed:
        raise click.Abort()
