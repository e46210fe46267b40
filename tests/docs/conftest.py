"""Every command of the program, read once for each worker: it imports them all."""

from __future__ import annotations

import pytest

from docs_build.command_lines import Checker
from docs_build.commands import Command, all_commands


@pytest.fixture(scope="session")
def commands() -> list[Command]:
    pytest.importorskip("torch", reason="the parsers of checkpoint bench, export and torture need it")
    return all_commands()


@pytest.fixture(scope="session")
def checker(commands: list[Command]) -> Checker:
    return Checker(commands)
