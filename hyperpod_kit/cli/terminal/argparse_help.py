"""A parser of argparse as click shows all other commands: its help, and what may come next on its command line."""

from __future__ import annotations

import argparse
import shutil
from typing import Iterator, Mapping, Optional, Sequence

import click
from click.shell_completion import CompletionItem

HELP = ("-h", "--help")


def command_words_directly_before_help(arguments: Sequence[str]) -> Optional[Sequence[str]]:
    """Return the command words before -h or --help; None when help is not asked for or other options come
    first."""
    for index, word in enumerate(arguments):
        if word in HELP:
            return arguments[:index]
        if word.startswith("-"):
            return None
    return None


def find_parser(parser: argparse.ArgumentParser, names: Sequence[str]) -> Optional[argparse.ArgumentParser]:
    """The parser of the command that `names` lead to below `parser`; None where they name none."""
    for word in names:
        commands = _find_subparsers(parser)
        if commands is None or word not in commands.choices:
            return None
        parser = commands.choices[word]
    return parser


def format_help(parser: argparse.ArgumentParser, extra_commands: Sequence[str] = ()) -> str:
    """The help of `parser`, up to 80 columns wide. `extra_commands`: those that have parsers of their own."""
    formatter = click.HelpFormatter(width=min(80, shutil.get_terminal_size().columns))
    commands = _find_subparsers(parser)
    usage = " ".join(parser.format_usage().split()[1:])[len(parser.prog) :].strip()
    shown_usage = usage
    if commands:
        shown_usage = "[OPTIONS] COMMAND [ARGS]..."
    formatter.write_usage(parser.prog, shown_usage)
    if parser.description:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_as_sentence(parser.description))
    if parser.epilog:
        formatter.write_paragraph()
        for line in parser.epilog.splitlines():
            shown_line = "\n"
            if line.strip():
                shown_line = f"  {line}\n"
            formatter.write(shown_line)
    _write_section(formatter, "Arguments", _positional_rows(parser))
    _write_section(formatter, "Options", _option_rows(parser))
    if commands is not None:
        named = {action.dest: _as_sentence(action.help or "") for action in commands._choices_actions}
        _write_section(
            formatter, "Commands", iter({**named, **{name: "With torch." for name in extra_commands}}.items())
        )
    return formatter.getvalue()


def _write_section(formatter: click.HelpFormatter, title: str, rows: Iterator[tuple[str, str]]) -> None:
    entries = list(rows)
    if entries:
        with formatter.section(title):
            formatter.write_dl(entries)


def _positional_rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            yield str(action.metavar or action.dest).upper(), _expand_help_to_sentence(parser, action)


def _option_rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield the options, --help last, as click has them."""
    shown = [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]
    for action in sorted(shown, key=lambda candidate: "--help" in candidate.option_strings):
        named = ", ".join(action.option_strings)
        if action.nargs != 0:
            if action.choices:
                choices = f"[{'|'.join(map(str, action.choices))}]"
            else:
                choices = action.dest.upper()
            named += f" {action.metavar or choices}"
        if "--help" in action.option_strings:
            help_text = "Show this message and exit."
        else:
            help_text = _expand_help_to_sentence(parser, action)
        yield named, help_text


def _expand_help_to_sentence(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    expanded = ""
    if action.help:
        expanded = parser._get_formatter()._expand_help(action)
    return _as_sentence(expanded)


def _as_sentence(shown: str) -> str:
    end = ""
    if shown and not shown.endswith((".", ")")):
        end = "."
    return shown[:1].upper() + shown[1:] + end


def _find_subparsers(parser: argparse.ArgumentParser) -> Optional[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)


# What may come next on a command line of argparse, for the shell completion that click serves.


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
