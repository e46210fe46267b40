"""Each command with --json prints an object that begins with the name and the number of its format."""

from __future__ import annotations

import ast
from typing import Iterator

import click
import pytest

from hyperpod_kit.cli.table import PROGRAM, cli
from hyperpod_kit.cli.terminal.program_commands import as_click_command
from hyperpod_kit.command_line.documents import FORMAT_NUMBERS, document, format_name
from hyperpod_kit.node.commands.command_table import NODE
from tests.formats.table import FORMATS, ROOT
from tests.support.packages import modules, relative

BY_NAME_OF_A_VARIABLE = {
    "data merge",
    "data split",
    "delete-node",
    "health-check",
    "reboot-node",
    "replace-node",
    "rollout resume",
    "rollout start",
    "rollout undo",
    "storage quota resume",
    "storage quota stop",
}
"""Commands that share the call that prints their document, which gets the name as an argument."""


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command below the program, and those of a node, each by its name without the program's."""
    root = click.Context(cli, info_name=PROGRAM)
    node = as_click_command(NODE, f"{PROGRAM} node", "hyperpod_kit.node.cli:main")
    yield from _walk(cli, root, "")
    yield from _walk(node, click.Context(node, info_name="node", parent=root), "node ")


def _walk(
    group: click.Command, context: click.Context, prefix: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _walk(command, inner, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command, inner


def has_json(command: click.Command, context: click.Context) -> bool:
    return any("--json" in parameter.opts for parameter in command.get_params(context))


def test_every_command_with_json_has_a_format_and_no_other() -> None:
    pytest.importorskip("torch", reason="the tables of checkpoint bench, export and torture need it")
    with_json = {name for name, command, context in commands() if has_json(command, context)}
    assert with_json - FORMAT_NUMBERS.keys() == set(), "commands whose documents have no format number"
    assert FORMAT_NUMBERS.keys() - with_json == set()


def test_every_document_is_printed_with_the_name_of_its_command() -> None:
    """`--json` has one way out: a document of a command, by its name."""
    named, without = set(), []
    for path in modules():
        source = path.read_text()
        if "print_json" not in source and "documents import document" not in source:
            continue
        for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            called = ast.unparse(call.func)
            if called == "document" or ("print_json" in called and not called.startswith("terminal.")):
                named |= {leaf.value for leaf in ast.walk(call.args[0]) if isinstance(leaf, ast.Constant)}
            if called == "terminal.print_json" and not ast.unparse(call.args[0]).startswith("document("):
                without.append(f"{relative(path)}:{call.lineno}")
    assert without == []
    assert FORMAT_NUMBERS.keys() - named - BY_NAME_OF_A_VARIABLE == set()


def test_the_format_stands_first_and_is_ours() -> None:
    shown = document("job status", {"format": "theirs", "root": "/r"})
    assert list(shown.items()) == [("format", "hpk-job-status/1"), ("root", "/r")]
    with pytest.raises(KeyError):
        document("job nothing", {})


def test_every_format_stands_on_its_page_and_is_no_files() -> None:
    page = (ROOT / "docs/design/formats.md").read_text()
    names = [format_name(command) for command in FORMAT_NUMBERS]
    assert [name for name in names if f"`{name}`" not in page] == []
    assert {form.name for form in FORMATS} & set(names) == set()
