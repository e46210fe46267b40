"""What may come next on a command line of argparse, for the shell completion that click serves."""

from __future__ import annotations

import argparse
from typing import Mapping, Optional, Sequence

from click.shell_completion import CompletionItem


def complete(
    parser: argparse.ArgumentParser, words: Sequence[str], incomplete: str, others: Mapping[str, str]
) -> list[CompletionItem]:
    """Commands, options, choices, or files. `words`: those before the one at the cursor; `others`: more commands."""
    for place, word in enumerate(words):
        if word == "--":
            return [CompletionItem(incomplete, type="file")]
        commands = _commands(parser)
        if commands is not None and word in commands.choices:
            return complete(commands.choices[word], words[place + 1 :], incomplete, {})
    waiting = _option(parser, words[-1]) if words else None
    if waiting is not None and waiting.nargs != 0:
        return _values(waiting, incomplete)
    if incomplete.startswith("-"):
        return [
            CompletionItem(name, help=argparse.HelpFormatter("")._expand_help(action))
            for action in parser._actions
            if action.help and action.help != argparse.SUPPRESS
            for name in action.option_strings
            if name.startswith(incomplete)
        ]
    commands = _commands(parser)
    if commands is not None:
        named = {action.dest: action.help or "" for action in commands._choices_actions}
        return [
            CompletionItem(name, help=text) for name, text in {**named, **others}.items() if name.startswith(incomplete)
        ]
    positional = [action for action in parser._actions if not action.option_strings]
    return _values(positional[-1], incomplete) if positional else []


def _values(action: argparse.Action, incomplete: str) -> list[CompletionItem]:
    if action.choices is None:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(str(one)) for one in action.choices if str(one).startswith(incomplete)]


def _option(parser: argparse.ArgumentParser, word: str) -> Optional[argparse.Action]:
    return next((action for action in parser._actions if word in action.option_strings), None)


def _commands(parser: argparse.ArgumentParser) -> Optional[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
