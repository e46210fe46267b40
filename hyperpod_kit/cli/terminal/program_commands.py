"""The commands of other programs as click's: shown and completed by their tables, parsed and run by the programs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Optional, Union

import click

from hyperpod_kit.command_line.specs import (
    ArgumentSpec,
    CommandSpec,
    DeferredSpec,
    GroupSpec,
    OptionSpec,
    import_object,
)
from hyperpod_kit.extras import require_sibling_distribution_installed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def as_click_command(spec: Union[CommandSpec, GroupSpec], path: str, main: str) -> click.Command:
    """Return the command of a table.

    path: its name with the words before it; main: `module:function` of the program, which is given all words after the
    program's name and returns the exit code.
    """
    if isinstance(spec, GroupSpec):
        return ProgramGroup(spec, path, main)
    return ProgramCommand(spec, path, main)


class _OfProgram(click.Command):
    """A command of which click parses nothing, but to complete what is being typed."""

    program_main: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = list(args)
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        return []

    def invoke(self, ctx: click.Context) -> Any:
        return import_object(self.program_main)(ctx.obj)


class ProgramCommand(_OfProgram):
    """A command of a program, or a program that is a single command."""

    def __init__(self, spec: CommandSpec, path: str, main: str) -> None:
        paragraphs = []
        for paragraph, is_kept in spec.help_paragraphs(path):
            marker = ""
            if is_kept:
                marker = "\b\n"  # click keeps its lines
            paragraphs.append(marker + paragraph)
        super().__init__(
            spec.name,
            params=[*map(_argument, spec.arguments), *map(_option, spec.options)],
            help="\n\n".join(paragraphs),
            short_help=spec.summary,
        )
        self.spec = spec
        self.program_main = main

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return self.spec.usage_words.split(" ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.spec.arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(argument.metavar, argument.help) for argument in self.spec.arguments])
        super().format_options(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if "--" in ctx.obj:  # a command line of another program
            return click.Path().shell_complete(ctx, self.params[0], incomplete)
        return super().shell_complete(ctx, incomplete)


class ProgramGroup(_OfProgram, click.Group):
    """A program with several commands."""

    def __init__(self, spec: GroupSpec, path: str, main: str) -> None:
        super().__init__(spec.name, help=spec.summary)
        self.spec = spec
        self.program_main = main
        self._path = path

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name for command in self.spec.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        spec = self.spec.find_command(cmd_name)
        if spec is None:
            return None
        path = f"{self._path} {cmd_name}"
        if isinstance(spec, CommandSpec):
            return ProgramCommand(spec, path, self.program_main)
        if ctx.resilient_parsing:
            return click.Command(cmd_name, short_help=spec.summary)  # a key press imports no torch
        return ProgramCommand(load_deferred(spec, path), path, self.program_main)


def load_deferred(spec: DeferredSpec, path: str) -> CommandSpec:
    """Import the table of a command with dear imports. Raises MissingExtra."""
    require_sibling_distribution_installed(spec.module, path)
    command: CommandSpec = import_module(spec.module).COMMAND
    return command


def _argument(spec: ArgumentSpec) -> click.Argument:
    is_required = spec.count in ("", "+")
    number_of_words = 1
    if spec.count in ("*", "+"):
        number_of_words = -1
    return click.Argument(
        [spec.dest], metavar=spec.metavar, nargs=number_of_words, required=is_required, type=click.Path()
    )


def _option(spec: OptionSpec) -> click.Option:
    names = [spec.flag, spec.dest or spec.flag[2:].replace("-", "_")]
    if not spec.takes_value:
        return click.Option(names, is_flag=True, help=spec.help_text, hidden=spec.is_hidden)
    kind: click.ParamType[Any] = click.Path()
    if spec.choices:
        kind = click.Choice(spec.choices)
    return click.Option(
        names,
        metavar=spec.metavar or None,
        type=kind,
        multiple=spec.is_repeated,
        required=spec.is_required,
        help=spec.help_text,
        hidden=spec.is_hidden,
    )
