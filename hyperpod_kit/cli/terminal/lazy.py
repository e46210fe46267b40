"""Groups of commands: one that imports them when they are called, and one that has them all."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional

import click

from hyperpod_kit.ending import is_stdout_reader_gone
from hyperpod_kit.errors import Absent, MissingExtra, Unreachable
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.extras import require_sibling_distribution_installed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_SENTENCE = re.compile(r".*?(?<!\.)\.(?=\s|$)", re.DOTALL)


class CommandEntry(NamedTuple):
    """Where a command lies, `module:attribute`, and its line in --help, so that --help imports nothing.

    main: `module:function` of the program that parses and runs it; the attribute is its table then, and no click
    command.
    """

    import_path: str
    help: str
    main: str = ""


class LazyGroup(click.Group):
    """A group over a table of entries, in sections: title -> name -> CommandEntry.

    `elsewhere`: names of commands that another machine has -> where they are, and what to type for that.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, CommandEntry]],
        elsewhere: Mapping[str, tuple[str, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._elsewhere = elsewhere or {}
        self._sections = sections
        self._entries = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        path = f"{ctx.command_path} {cmd_name}"
        try:
            command = _import_attribute(entry.import_path, path)
        except MissingExtra:
            if ctx.resilient_parsing:
                return click.Command(cmd_name)  # a key press completes nothing there, and prints no error
            raise
        if entry.main:
            from hyperpod_kit.cli.terminal.program_commands import as_click_command

            return as_click_command(command, path, entry.main)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[Optional[str], Optional[click.Command], list[str]]:
        if args and args[0] not in self._entries and not args[0].startswith("-"):
            if args[0] in self._elsewhere:
                message, hint = self._elsewhere[args[0]]
                raise Absent(message, hint=hint)
            from hyperpod_kit.command_line.program import no_such_command

            ctx.fail(no_such_command(args[0], list(self._entries)))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names from the table: a key press must not import every command."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=entry.help)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as err:
            # click takes each of these for a reader that has gone; it may as well be a server.
            if is_stdout_reader_gone():
                raise click.exceptions.Exit(ExitCode.READER_GONE) from err
            raise Unreachable("the other side closed the connection") from err

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in section.items()])


class SummaryGroup(click.Group):
    """A group whose help shows the first sentence of each command whole, where click would cut it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _first_sentence(command)) for name, command in commands if command and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _first_sentence(command: click.Command) -> str:
    text = command.help or ""
    sentence = _SENTENCE.match(text)
    return " ".join((sentence[0] if sentence else text).split())


def _import_attribute(import_path: str, command: str) -> Any:
    """Import the object at `module:attribute`.

    Raises MissingExtra where `command` is of a distribution that is not installed.
    """
    module, _, attribute = import_path.partition(":")
    require_sibling_distribution_installed(module, command)
    return getattr(import_module(module), attribute)
