"""Every command of hyperpod-kit as data, read from click itself: nothing here names a command.

`hyperpod-kit` has most of them; `hyperpod-kit node`, which only nodes have, is made a command of click by its table.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Iterator

import click

from hyperpod_kit.cli.table import SECTIONS, cli
from hyperpod_kit.cli.terminal.program_commands import ProgramCommand, as_click_command
from hyperpod_kit.node.commands.command_table import NODE

PROGRAM = "hyperpod-kit"
NODE_SECTION = "On a node"


@dataclass(frozen=True)
class Command:
    """`words`: the command's path without the program's name; `text`: its help without the examples.

    `options`: (as written, help) each, arguments too; `children`: names of subcommands; `native`: the command itself.
    """

    words: tuple[str, ...]
    section: str
    usage: str
    text: str
    examples: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    children: tuple[str, ...]
    native: click.Command

    @property
    def name(self) -> str:
        return " ".join(self.words)


def all_commands() -> list[Command]:
    """In the order of --help, a group before its subcommands. Imports every command's module, torch with some."""
    found: list[Command] = []
    context = click.Context(cli, info_name=PROGRAM)
    for section, entries in SECTIONS.items():
        for name in entries:
            command = cli.get_command(context, name)
            assert command is not None
            found += _walk(command, (name,), section, context)
    node = as_click_command(NODE, f"{PROGRAM} node", "hyperpod_kit.node.cli:main")
    return [*found, *_walk(node, ("node",), NODE_SECTION, context)]


def _walk(command: click.Command, words: tuple[str, ...], section: str, parent: click.Context) -> Iterator[Command]:
    context = click.Context(command, info_name=words[-1], parent=parent)
    text, examples = split_examples(inspect.cleandoc(command.help or "").replace("\b\n", ""))
    children = {}
    if isinstance(command, click.Group):
        names = command.commands or command.list_commands(context)  # the first as they were added, not sorted
        children = {name: command.get_command(context, name) for name in names}
    usage = " ".join([PROGRAM, *words, *command.collect_usage_pieces(context)])
    yield Command(
        words, section, usage, text, examples, tuple(_option_rows(command, context)), tuple(children), command
    )
    for name, child in children.items():
        assert child is not None
        yield from _walk(child, (*words, name), section, context)


def _option_rows(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    if isinstance(command, ProgramCommand):
        for argument in command.spec.arguments:
            yield argument.metavar, argument.help
    for param in command.params:
        record = param.get_help_record(context)
        if isinstance(param, click.Option) and record:
            yield record
        elif isinstance(param, click.Argument) and record and not isinstance(command, ProgramCommand):
            yield re.sub(r"[\[\]]", "", record[0]), _default(param)


def _default(param: click.Argument) -> str:
    if isinstance(param.default, str):
        return f"[default: {param.default}]"
    return ""


def split_examples(text: str) -> tuple[str, tuple[str, ...]]:
    """A help text without its last section `Examples:`, and the lines of that section."""
    before, marker, after = (
        re.split(r"^(Examples?:)[ ]*$", text, maxsplit=1, flags=re.MULTILINE)
        if re.search(r"^Examples?:[ ]*$", text, re.MULTILINE)
        else (text, "", "")
    )
    lines = [line.strip() for line in after.replace("\\\n", "").splitlines() if line.strip()] if marker else []
    return before.strip(), tuple(re.sub(r"\s{3,}(?!#)", " ", line) for line in lines)
