"""Every command of hyperpod-kit as data, read from click and argparse themselves: nothing here names a command.

Three programs are one command line: `hyperpod-kit` (click), its `job` and `checkpoint` (argparse, the same that run on
a node), and `hyperpod-kit node`, which only nodes have.
"""

from __future__ import annotations

import argparse
import inspect
import re
from dataclasses import dataclass, replace
from typing import Iterator, Union

import click

from hyperpod_kit.cli.main import SECTIONS, cli
from hyperpod_kit.cli.terminal.lazy import Passthrough

PROGRAM = "hyperpod-kit"
NODE_SECTION = "On a node"
Native = Union[click.Command, argparse.ArgumentParser]


@dataclass(frozen=True)
class Command:
    """`words`: the command's path without the program's name; `text`: its help without the examples.

    `options`: (as written, help) each, arguments too; `children`: names of subcommands; `native`: what parses it.
    """

    words: tuple[str, ...]
    section: str
    usage: str
    text: str
    examples: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    children: tuple[str, ...]
    native: Native

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
            found += (
                _passed_on(command, section)
                if isinstance(command, Passthrough)
                else _clicked(command, (name,), section, context)
            )
    from hyperpod_kit.node.cli import build_parser

    return [*found, *_parsed(build_parser(), ("node",), NODE_SECTION)]


def _clicked(command: click.Command, words: tuple[str, ...], section: str, parent: click.Context) -> Iterator[Command]:
    context = click.Context(command, info_name=words[-1], parent=parent)
    text, examples = split_examples(inspect.cleandoc(command.help or "").replace("\b\n", ""))
    records = [(param, param.get_help_record(context)) for param in command.params]
    shown = tuple((_label(param, record[0]), record[1] or _default(param)) for param, record in records if record)
    children = command.commands if isinstance(command, click.Group) else {}
    usage = " ".join([PROGRAM, *words, *command.collect_usage_pieces(context)])
    yield Command(words, section, usage, text, examples, shown, tuple(children), command)
    for name, child in children.items():
        yield from _clicked(child, (*words, name), section, context)


def _label(param: click.Parameter, written: str) -> str:
    return written if isinstance(param, click.Option) else re.sub(r"[\[\]]", "", written)


def _default(param: click.Parameter) -> str:
    return f"[default: {param.default}]" if isinstance(param, click.Argument) and isinstance(param.default, str) else ""


def _passed_on(command: Passthrough, section: str) -> Iterator[Command]:
    parsers = list(command.load_parsers())
    # What has a parser of its own is a subcommand like the others to whoever reads.
    apart = tuple(prefix[1] for prefix, _ in parsers if len(prefix) > 1)
    for prefix, parser in parsers:
        for one in _parsed(parser, prefix, section):
            yield replace(one, children=(*one.children, *apart)) if one.words == (command.name,) else one


def _parsed(parser: argparse.ArgumentParser, words: tuple[str, ...], section: str) -> Iterator[Command]:
    formatter = argparse.HelpFormatter(parser.prog)
    options = []
    children: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            children = dict(action.choices)
        elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            options.append(
                (formatter._format_action_invocation(action), formatter._expand_help(action) if action.help else "")
            )
    _, examples = split_examples(parser.epilog or "")
    summary = (parser.description or "").strip()
    summary = summary[:1].upper() + summary[1:] + ("" if summary.endswith((".", ":")) or not summary else ".")
    rest = "" if examples else (parser.epilog or "").strip()
    usage = re.sub(r"\s+", " ", parser.format_usage().strip()[len("usage: ") :])
    yield Command(
        words,
        section,
        usage,
        "\n\n".join(part for part in (summary, rest) if part),
        examples,
        tuple(options),
        tuple(children),
        parser,
    )
    for name, child in children.items():
        yield from _parsed(child, (*words, name), section)


def split_examples(text: str) -> tuple[str, tuple[str, ...]]:
    """A help text without its last section `Examples:`, and the lines of that section."""
    before, marker, after = (
        re.split(r"^(Examples?:)[ ]*$", text, maxsplit=1, flags=re.MULTILINE)
        if re.search(r"^Examples?:[ ]*$", text, re.MULTILINE)
        else (text, "", "")
    )
    lines = [line.strip() for line in after.replace("\\\n", "").splitlines() if line.strip()] if marker else []
    return before.strip(), tuple(re.sub(r"\s{3,}(?!#)", " ", line) for line in lines)
