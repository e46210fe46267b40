"""Every screen of every table: what a program prints is what click prints for the same command, byte for byte."""

from __future__ import annotations

import io
from typing import Iterator, Union

import click
import pytest

from hyperpod_kit.checkpoint.cli import WITH_TORCH
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.cli.table import PROGRAM, SECTIONS, cli
from hyperpod_kit.cli.terminal.program_commands import (
    ProgramCommand,
    ProgramGroup,
    as_click_command,
    load_deferred,
)
from hyperpod_kit.command_line.program import format_help, parse_command, parse_group
from hyperpod_kit.command_line.specs import CommandSpec, GroupSpec, import_object
from hyperpod_kit.node.commands.command_table import NODE

Screen = Union[ProgramCommand, ProgramGroup]


def screens() -> Iterator[click.Context]:
    """A context for each command of a table, and for each group."""
    pytest.importorskip("torch", reason="the tables of checkpoint bench, export and torture need it")
    root = click.Context(cli, info_name=PROGRAM, help_option_names=["-h", "--help"])
    programs = [as_click_command(NODE, f"{PROGRAM} node", "hyperpod_kit.node.cli:main")]
    for section in SECTIONS.values():
        for name, entry in section.items():
            command = cli.get_command(root, name)
            if entry.main:
                assert command is not None
                programs.append(command)
    for program in programs:
        context = click.Context(program, info_name=program.name, parent=root)
        yield context
        if isinstance(program, ProgramGroup):
            for name in program.list_commands(context):
                child = program.get_command(context, name)
                assert child is not None
                yield click.Context(child, info_name=name, parent=context)


def screen_of(context: click.Context) -> Screen:
    assert isinstance(context.command, (ProgramCommand, ProgramGroup))
    return context.command


def usage_error_of_click(context: click.Context, words: list[str]) -> str:
    """What click prints when it parses the words itself."""
    printed = io.StringIO()
    try:
        if isinstance(context.command, click.Group):
            context.command.resolve_command(context, words)
        else:
            context.command.make_parser(context).parse_args(words)
    except click.UsageError as error:
        error.ctx = error.ctx or context
        error.show(printed)
    return printed.getvalue()


def usage_error_of_program(context: click.Context, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    spec = screen_of(context).spec
    with pytest.raises(SystemExit) as ended:
        if isinstance(spec, GroupSpec):
            parse_group(spec, words, context.command_path)
        else:
            parse_command(spec, words, context.command_path)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("columns", ["80", "60", "200"])
def test_help_is_the_same_by_both_renderers(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    paths = []
    for context in screens():
        assert format_help(screen_of(context).spec, context.command_path) == context.get_help() + "\n"
        paths.append(context.command_path)
    assert len(paths) > 50 and len(set(paths)) == len(paths)


def test_a_misspelt_option_gets_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for context in screens():
        spec = screen_of(context).spec
        if isinstance(spec, GroupSpec) or spec.takes_foreign_words:
            continue
        for word in ["--nothing-like-it", "--hepl", *(f"{option.flag}x" for option in spec.options)]:
            assert usage_error_of_program(context, [word], capsys) == usage_error_of_click(context, [word])


def test_a_misspelt_command_gets_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for context in screens():
        spec = screen_of(context).spec
        if isinstance(spec, GroupSpec):
            possible = [command.name for command in spec.commands]
            for word in ["frobnicate", *(f"{name}x" for name in possible)]:
                shown = usage_error_of_program(context, [word], capsys)
                expected = click.exceptions.NoSuchCommand(word, possibilities=possible, ctx=context)
                printed = io.StringIO()
                expected.show(printed)
                assert shown == printed.getvalue()


def test_a_group_without_a_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("job", "checkpoint", "data", "users", "storage"):
        assert run_command_line([name]) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.startswith(f"Usage: hyperpod-kit {name} [OPTIONS] COMMAND")
        assert run_command_line([name, "--help"]) == 0
        assert capsys.readouterr().out == shown.err


def test_what_runs_a_command_is_there() -> None:
    for context in screens():
        spec = screen_of(context).spec
        assert callable(import_object(screen_of(context).program_main))
        if isinstance(spec, CommandSpec):
            assert callable(import_object(spec.run))


def test_a_deferred_command_has_one_summary() -> None:
    pytest.importorskip("torch")
    for spec in WITH_TORCH:
        command = load_deferred(spec, spec.name)
        assert (command.name, command.summary) == (spec.name, spec.summary)
