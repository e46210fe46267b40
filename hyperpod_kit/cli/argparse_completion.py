"""What may come next on a command line of argparse, for the shell completion that click serves."""

from __future__ import annotations

import argparse
from typing import Iterator, Mapping, Optional, Sequence

from click.shell_completion import CompletionItem


def completion_items(
    parser: argparse.ArgumentParser, arguments: Sequence[str], incomplete: str, more_commands: Mapping[str, str]
) -> list[CompletionItem]:
    """Complete commands, options or files. `arguments`: words before the cursor; `more_commands`: their help."""
    for index, word in enumerate(arguments):
        if word == "--":
            return [CompletionItem(incomplete, type="file")]
        commands = _find_subparsers(parser)
        if commands is not None and word in commands.choices:
            return completion_items(commands.choices[word], arguments[index + 1 :], incomplete, {})
    waiting = None
    if arguments:
        waiting = _find_option(parser, arguments[-1])
    if waiting is not None and waiting.nargs != 0:
        return _value_items(waiting, incomplete)
    if incomplete.startswith("-"):
        return list(_option_items(parser, incomplete))
    commands = _find_subparsers(parser)
    if commands is not None:
        named = {action.dest: action.help or "" for action in commands._choices_actions}
        return [
            CompletionItem(name, help=text)
            for name, text in {**named, **more_commands}.items()
            if name.startswith(incomplete)
        ]
    positional = [action for action in parser._actions if not action.option_strings]
    if positional:
        return _value_items(positional[-1], incomplete)
    return []


def _value_items(action: argparse.Action, incomplete: str) -> list[CompletionItem]:
    if action.choices is None:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(str(choice)) for choice in action.choices if str(choice).startswith(incomplete)]


def _option_items(parser: argparse.ArgumentParser, incomplete: str) -> Iterator[CompletionItem]:
    """The options that are shown in the help and begin like `incomplete`."""
    for action in parser._actions:
        if not action.help or action.help == argparse.SUPPRESS:
            continue
        for name in action.option_strings:
            if name.startswith(incomplete):
                yield CompletionItem(name, help=argparse.HelpFormatter("")._expand_help(action))


def _find_option(parser: argparse.ArgumentParser, word: str) -> Optional[argparse.Action]:
    return next((action for action in parser._actions if word in action.option_strings), None)


def _find_subparsers(parser: argparse.ArgumentParser) -> Optional[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
