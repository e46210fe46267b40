"""A node's commands where a directory is missing that every machine is supposed to have: a sentence, no stack trace."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from docs_build.commands import NODE_SECTION, all_commands
from hyperpod_kit.exit_codes import ExitCode
from tests.unit.node.conftest import Sandbox

DIRECTORIES = ("dev/shm", "run", "proc", "etc", "var", "opt/ml")
REMOVES_THE_KIT = "uninstall"
COMMANDS = [command.words[1] for command in all_commands() if command.section == NODE_SECTION and not command.children]
COMMANDS.sort(key=lambda command: command == REMOVES_THE_KIT)


def _without(sandbox: Sandbox, directory: str) -> None:
    sandbox.install()
    for present in ("dev/shm", "run", "var/lib/hyperpod-kit"):
        (sandbox.root / present).mkdir(parents=True)
    shutil.rmtree(sandbox.root / directory)


def test_memory_without_shared_memory_is_a_sentence(make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    _without(sandbox, "dev/shm")
    done = sandbox.node("memory")
    assert done.returncode == ExitCode.ABSENT and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"error: {sandbox.root}/dev/shm: No such file or directory"


@pytest.mark.full
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_no_command_ends_in_a_stack_trace(directory: str, make_sandbox: Any) -> None:
    sandbox = make_sandbox()
    _without(sandbox, directory)
    ends = {command: sandbox.node(command) for command in COMMANDS}
    wrong = {command: done.stderr for command, done in ends.items() if "Traceback" in done.stderr}
    assert not wrong and {done.returncode for done in ends.values()} <= set(ExitCode)
