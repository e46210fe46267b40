"""Whether a command line can be typed as it stands: the command, its options and their values, by the real parsers.

Nothing is run. A value that stands for something (`$USER`, NODE) is text like any other.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from typing import Optional, Sequence, Union

import click

from docs_build.commands import PROGRAM, Command, all_commands
from hyperpod_kit.cli.table import cli
from hyperpod_kit.cli.terminal.program_commands import ProgramCommand, ProgramGroup
from hyperpod_kit.command_line.program import parse_command, parse_group
from hyperpod_kit.command_line.specs import CommandSpec, GroupSpec
from hyperpod_kit.job.cli import _join_srun_args

GLOBAL = ("--help", "-h", "--version", "--debug")
OPEN = (("job", "submit"), ("job", "exec"))
"""What is behind these is sbatch's, or the user's own."""


class Checker:
    """Knows every command; reading them all takes a second or two, so make one and keep it."""

    def __init__(self, commands: Optional[Sequence[Command]] = None) -> None:
        found = all_commands() if commands is None else commands
        self._by_words = {command.words: command for command in found}

    def problem(self, line: str) -> Optional[str]:
        """What is wrong with `hyperpod-kit …`, or None. Comments, redirections and pipes behind it are cut off."""
        words = simple_command(line)
        if words[:1] != [PROGRAM]:
            return f"not a command line of {PROGRAM}"
        return self.problem_of(words[1:])

    def problem_of(self, words: list[str]) -> Optional[str]:
        """The same for words after the program's name."""
        command = self._longest(words)
        if command is not None and isinstance(command.native, (ProgramCommand, ProgramGroup)):
            return _parse(command.native.spec, command.words, words)
        return _click(words)

    def path_problem(self, text: str) -> Optional[str]:
        """For a command that is only named, in a sentence: it must exist, and its options. Nothing may be missing.

        `…` stands for anything, a word in capitals for one word.
        """
        words = text.partition("…")[0].split()[1:]
        if not words or words[0].startswith("-") or words[0].isupper():
            return None if set(words) <= {*GLOBAL, "COMMAND"} else f"no option of {PROGRAM} itself: {' '.join(words)}"
        command = self._longest(words)
        behind = words[len(command.words) :] if command is not None else words
        if command is None or (command.children and behind and behind[0].islower() and behind[0][0] != "-"):
            return f"there is no command `{' '.join(words)}`"
        if command.words in OPEN:
            return None
        known = {word for written, _ in command.options for word in written.replace(",", " ").split()} | set(GLOBAL)
        for word in behind[: behind.index("--")] if "--" in behind else behind:
            if word.startswith("--") and word.partition("=")[0] not in known:
                return f"`{command.name}` has no option {word}"
        return None

    def _longest(self, words: Sequence[str]) -> Optional[Command]:
        for length in range(len(words), 0, -1):
            found = self._by_words.get(tuple(words[:length]))
            if found is not None:
                return found
        return None


def _parse(spec: Union[CommandSpec, GroupSpec], path: tuple[str, ...], words: list[str]) -> Optional[str]:
    """What the program of a table says of the words."""
    if tuple(words[:2]) in OPEN:
        return None
    if words[0] == "job":
        words = _join_srun_args(words[: words.index("--")] if "--" in words else words)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            if isinstance(spec, GroupSpec):
                parse_group(spec, words[len(path) :], " ".join([PROGRAM, *path]))
            else:
                parse_command(spec, words[len(path) :], " ".join([PROGRAM, *path]))
    except SystemExit as end:
        if end.code and len(words) == len(path) and isinstance(spec, GroupSpec):
            return f"`{' '.join(words)}` is a group: name one of its commands"
        return said.getvalue().strip().splitlines()[-1] if end.code else None
    return None


def _click(words: list[str]) -> Optional[str]:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            command: click.Command = cli
            context = cli.make_context(PROGRAM, list(words))
            while isinstance(command, click.Group):
                rest = [*context._protected_args, *context.args]
                name, child, rest = command.resolve_command(context, rest)
                assert child is not None
                command, context = child, child.make_context(name, rest, parent=context)
    except click.exceptions.Exit:
        return None  # --help, --version
    except click.exceptions.NoArgsIsHelpError:
        return f"`{' '.join(words) or PROGRAM}` is a group: name one of its commands"
    except click.UsageError as err:
        return err.format_message()
    return None


def simple_command(line: str) -> list[str]:
    """The words of the first simple command of a shell line. Raises ValueError for open quotes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word and not set(word) - set("|&;<>"):
            break
        words.append(word)
    return words
