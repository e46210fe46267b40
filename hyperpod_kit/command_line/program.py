"""A program whose command line is a table: parsed by argparse, its help and its errors as click shows them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import re
from typing import Any, List, NoReturn, Sequence, Tuple, Union

from hyperpod_kit.command_line.specs import HELP_FLAGS, CommandSpec, GroupSpec, OptionSpec
from hyperpod_kit.errors import UsageError
from hyperpod_kit.untrusted import terminal

_WIDEST_TERM = 30
_NEGATIVE_NUMBER = re.compile(r"-\d*\.?\d+$")


def parse_group(group: GroupSpec, words: Sequence[str], path: str) -> Tuple[CommandSpec, argparse.Namespace]:
    """Return the command that the first of `words` names and what the others say.

    `path`: what was typed before them. Raises SystemExit: 0 after the help that was asked for, 2 after an error.
    """
    if not words:
        terminal.print_stderr(format_help(group, path).rstrip("\n"))
        raise SystemExit(2)
    first = words[0]
    if first in HELP_FLAGS:
        terminal.print_stdout(format_help(group, path), end="")
        raise SystemExit(0)
    command = group.find_command(first)
    if isinstance(command, CommandSpec):
        return command, parse_command(command, words[1:], f"{path} {first}")
    if first.startswith("-"):
        fail(group, path, no_such_option(first, ["--help"]))
    fail(group, path, no_such_command(first, [command.name for command in group.commands]))


def parse_command(command: CommandSpec, words: Sequence[str], path: str) -> argparse.Namespace:
    """Return what `words` say, as of `parse_group`; foreign words as its `words`."""
    asks_for_help = bool(words) and words[0] in HELP_FLAGS
    if command.takes_foreign_words and not asks_for_help:
        return argparse.Namespace(words=words)
    try:
        return make_parser(command, path).parse_args(list(words))
    except UsageError as error:
        fail(command, path, error.message)


def no_such_command(word: str, names: Sequence[str]) -> str:
    """Return the message for a command that there is not."""
    return _with_suggestions(f"No such command {word!r}.", word, names)


def no_such_option(word: str, flags: Sequence[str]) -> str:
    """Return the message for an option that there is not."""
    flag = word.partition("=")[0]
    return _with_suggestions(f"No such option {flag!r}.", flag, flags)


def _with_suggestions(message: str, word: str, names: Sequence[str]) -> str:
    """Return the message with the names that `word` may be a slip of, in click's words."""
    from difflib import get_close_matches

    near = sorted(get_close_matches(word, names))
    if not near:
        return message
    listed = ", ".join(map(repr, near))
    if len(near) == 1:
        return f"{message} Did you mean {listed}?"
    return f"{message} (Did you mean one of: {listed}?)"


def fail(spec: Union[CommandSpec, GroupSpec], path: str, message: str) -> NoReturn:
    """Print a usage error and raise SystemExit(2)."""
    usage = _format_usage(path, spec.usage_words, _help_width())
    terminal.print_stderr(f"{usage}Try '{path} --help' for help.\n\nError: {message}")
    raise SystemExit(2)


def make_parser(command: CommandSpec, path: str) -> argparse.ArgumentParser:
    """Return the parser of argparse for a command."""
    parser = _TableParser(command, path)
    exclusive: Any = None
    if command.exactly_one_of:
        exclusive = parser.add_mutually_exclusive_group(required=True)
    for argument in command.arguments:
        parser.add_argument(
            argument.dest, metavar=argument.metavar, nargs=argument.count or None, default=argument.default
        )
    for option in command.options:
        container = parser
        if option.flag in command.exactly_one_of:
            container = exclusive
        container.add_argument(option.flag, **_argparse_keywords(option))
    return parser


def _argparse_keywords(option: OptionSpec) -> Any:
    keywords: Any = {}
    if option.dest:
        keywords["dest"] = option.dest
    if not option.takes_value:
        return {**keywords, "action": "store_true"}
    keywords.update(type=option.kind, default=option.default, required=option.is_required)
    if option.metavar:
        keywords["metavar"] = option.metavar
    if option.choices:
        keywords["choices"] = option.choices
    if option.is_repeated:
        keywords.update(action="append", default=[])
    if option.is_given_once:
        keywords["action"] = _StoreOnce
    return keywords


class _StoreOnce(argparse.Action):
    """Stores the value of an option that may be given once."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{self.option_strings[0]} is given twice")
        setattr(namespace, self.dest, values)


class _TableParser(argparse.ArgumentParser):
    """A parser with the help and the errors of all commands."""

    def __init__(self, command: CommandSpec, path: str) -> None:
        super().__init__(prog=path)
        self._command = command
        self._words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does. The words are kept for the message of an error."""
        self._words = args
        return super().parse_known_args(args, namespace)

    def print_help(self, file: Any = None) -> None:
        """Print the help of the command."""
        terminal.print_stdout(format_help(self._command, self.prog), end="")

    def error(self, message: str) -> NoReturn:
        """End the program. A misspelt option comes before what is missing without it."""
        flags = [option.flag for option in self._command.options] + ["--help"]
        for word in _option_words(self._words):
            flag = word.partition("=")[0]
            if not any(known.startswith(flag) for known in [*flags, "-h"]):
                message = no_such_option(word, flags)
                break
        fail(self._command, self.prog, message)


def _option_words(words: Sequence[str]) -> List[str]:
    """Return the words that argparse takes for options."""
    words = list(words)
    if "--" in words:
        words = words[: words.index("--")]
    return [
        word
        for word in words
        if word.startswith("-") and len(word) > 1 and " " not in word and not _NEGATIVE_NUMBER.match(word)
    ]


# The help, laid out as click's HelpFormatter does it; tests/unit/cli/test_cli_screens.py compares the two.


def format_help(spec: Union[CommandSpec, GroupSpec], path: str) -> str:
    """Return the help of a command or a group, as wide as the terminal up to 78 columns. `path`: its whole name."""
    width = _help_width()
    parts = [_format_usage(path, spec.usage_words, width)]
    options = [(", ".join(HELP_FLAGS), "Show this message and exit.")]
    if isinstance(spec, GroupSpec):
        parts.append(_wrap(spec.summary, width, "  "))
        parts.append(_format_rows("Options", options, width))
        parts.append(_format_rows("Commands", [(command.name, command.summary) for command in spec.commands], width))
        return "\n".join(parts)
    for paragraph, is_kept in spec.help_paragraphs(path):
        if is_kept:
            parts.append("".join(f"  {line}\n" for line in paragraph.splitlines()))
        else:
            parts.append(_wrap(" ".join(paragraph.splitlines()), width, "  "))
    if spec.arguments:
        parts.append(_format_rows("Arguments", [(row.metavar, row.help) for row in spec.arguments], width))
    shown = [_option_row(option) for option in spec.options if not option.is_hidden]
    parts.append(_format_rows("Options", [*shown, *options], width))
    return "\n".join(parts)


def _option_row(option: OptionSpec) -> Tuple[str, str]:
    term, text = option.flag, option.help_text
    if option.takes_value:
        term += f" {option.value_name}"
    if option.is_required:
        text += "  [required]"
    return term, text


def _help_width() -> int:
    import shutil  # dear, and nothing else needs it

    return max(min(shutil.get_terminal_size().columns, 80) - 2, 50)


def _format_usage(path: str, words: str, width: int) -> str:
    prefix = f"Usage: {path} "
    if width >= len(prefix) + 20:
        return _wrap(words, width, prefix, " " * len(prefix))
    return f"{prefix}\n" + _wrap(words, width, " " * 11)


def _format_rows(title: str, rows: Sequence[Tuple[str, str]], width: int) -> str:
    column = min(max(len(term) for term, _ in rows), _WIDEST_TERM) + 2
    lines = [f"{title}:\n"]
    for term, text in rows:
        indent = " " * (column + 2)
        if not text:
            lines.append(f"  {term}\n")
            continue
        if len(term) > column - 2:
            lines.append(f"  {term}\n")
            term = ""
        wrapped = _wrap(text, max(width - column - 2, 10) + len(indent), indent)
        lines.append(f"  {term:{column}}{wrapped[len(indent) :]}")
    return "".join(lines)


def _wrap(text: str, width: int, first_indent: str, next_indent: str = "") -> str:
    import textwrap

    wrapped = textwrap.fill(
        text,
        width,
        initial_indent=first_indent,
        subsequent_indent=next_indent or first_indent,
        replace_whitespace=False,
    )
    return f"{wrapped}\n"
