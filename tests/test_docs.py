"""Links of the documents lead somewhere, and the commands that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from hyperpod_kit.cli.main import cli

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(document: Path) -> None:
    context = click.Context(cli)
    known = set(cli.list_commands(context))
    for verb in re.findall(r"(?:^|`)hyperpod-kit ([a-z][a-z-]+)", document.read_text(), re.MULTILINE):
        assert verb in known | {"node"}, f"{document.name} names `hyperpod-kit {verb}`"
    for group, verb in re.findall(r"hyperpod-kit (rehearse) ([a-z][a-z-]+)", document.read_text()):
        command = cli.get_command(context, group)
        assert isinstance(command, click.Group) and verb in command.list_commands(context)
