"""Groups whose commands are imported when they are called, and commands that pass every word on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Optional

import click

from hyperpod_kit.ending import is_stdout_reader_gone
from hyperpod_kit.errors import Absent, MissingExtra, Unreachable
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.extras import require_sibling_distribution_installed

if TYPE_CHECKING:
    import argparse

    from click.shell_completion import CompletionItem


class CommandEntry(NamedTuple):
    """Where a command lies, `module:attribute`, and its line in --help, so that --help imports nothing."""

    import_path: str
    help: str


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
        try:
            command = _import_attribute(entry.import_path, f"{ctx.command_path} {cmd_name}")
        except MissingExtra:
            if ctx.resilient_parsing:
                return click.Command(cmd_name)  # a key press completes nothing there, and prints no error
            raise
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[Optional[str], Optional[click.Command], list[str]]:
        if args and args[0] not in self._entries and not args[0].startswith("-"):
            if args[0] in self._elsewhere:
                message, hint = self._elsewhere[args[0]]
                raise Absent(message, hint=hint)
            from difflib import get_close_matches

            near = get_close_matches(args[0], self._entries, 1, 0.6)
            suggestion = ""
            if near:
                suggestion = f" Did you mean `{near[0]}`?"
            ctx.fail(f"no such command `{args[0]}`." + suggestion)
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


class Passthrough(click.Command):
    """Hands every word after its name, `--` and `--help` included, to `main(argv) -> exit code` at `import_path`.

    `parsers`: first word after the name -> place of the function that makes its parser; "" for all other words.
    """

    def __init__(self, name: str, import_path: str, parsers: Mapping[str, str]) -> None:
        super().__init__(name, add_help_option=False)
        self._import_path = import_path
        self._parsers = parsers

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = list(args)
        return []

    def invoke(self, ctx: click.Context) -> Any:
        shown = self._format_requested_help(ctx.command_path, ctx.obj)
        if shown is None:
            return _import_attribute(self._import_path, ctx.command_path)(ctx.obj)
        from hyperpod_kit.cli.terminal.output import print_text

        print_text(shown, nl=False)
        return 0

    def _format_requested_help(self, command: str, arguments: list[str]) -> Optional[str]:
        """Return the help that the arguments ask for; None when they ask for none, or for a command that
        is unknown here."""
        from hyperpod_kit.cli.terminal import argparse_help

        named = argparse_help.command_words_directly_before_help(arguments)
        if named is None:
            return None
        first_name = ""
        if named:
            first_name = named[0]
        parser_path = self._parsers.get(first_name)
        root = _import_attribute(parser_path or self._parsers[""], " ".join([command, *named[:1]]))()
        remaining = named
        if parser_path and named:
            remaining = named[1:]
        parser = argparse_help.find_parser(root, remaining)
        other_commands = [word for word in self._parsers if word and not named]
        if parser is None:
            return None
        return argparse_help.format_help(parser, other_commands)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Words that argparse would take next."""
        from hyperpod_kit.cli.terminal.argparse_help import completion_items

        arguments: list[str] = ctx.obj
        if arguments[:1] and arguments[0] in self._parsers:
            return []  # its parser needs torch, which takes seconds to import
        other_commands = {word: "" for word in self._parsers if word and not arguments}
        return completion_items(
            _import_attribute(self._parsers[""], ctx.command_path)(), arguments, incomplete, other_commands
        )

    def load_parsers(self) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
        """Import every parser, torch with some, and yield (command words before it, parser) for documents
        and tests."""
        for word, import_path in self._parsers.items():
            names = tuple(part for part in (self.name, word) if part)
            yield names, _import_attribute(import_path, " ".join(names))()


def _import_attribute(import_path: str, command: str) -> Any:
    """Import the object at `module:attribute`.

    Raises MissingExtra where `command` is of a distribution that is not installed.
    """
    module, _, attribute = import_path.partition(":")
    require_sibling_distribution_installed(module, command)
    return getattr(import_module(module), attribute)
