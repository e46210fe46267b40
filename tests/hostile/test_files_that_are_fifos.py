"""Every file of another user that a command names is a fifo to which nobody writes: every command ends."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Iterator, Tuple

import pytest

from tests.hostile.acts import program
from tests.hostile.acts.commands import ATTACKED
from tests.hostile.acts.ground import Ground, ground
from tests.hostile.users import ATTACKER, ROOT, VICTIM

LINES = [(name, line) for name in sorted(ATTACKED) for line in (ATTACKED[name].words, *ATTACKED[name].alternatives)]
NUMBERS = itertools.count()
READERS = [(name, line) for name, line in LINES if name in ("storage quota check", "describe-package")]


@pytest.fixture(scope="module")
def here() -> Iterator[Ground]:
    with ground() as made:
        yield made


def ended(here: Ground, name: str, line: str) -> Tuple[object, str]:
    """The exit code of a command, None where it has none, and what it printed."""
    entry, number = ATTACKED[name], next(NUMBERS)
    runner = VICTIM if entry.by == "user" else 0
    mine, place = here.fresh(ATTACKER, number), here.runner_place(runner, number)
    for path in [path for path in mine.rglob("*") if path.is_file()]:
        _as_fifo(path)
    words = program._words(here, replace(entry, words=line, alternatives=()), Random(number), mine, place, ATTACKER)
    return program._run(words, runner, place)


def _as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
    os.chown(path, ATTACKER, ATTACKER)


@ROOT
@pytest.mark.parametrize(("name", "line"), READERS)
def test_a_command_that_reads_one_file_ends(here: Ground, name: str, line: str) -> None:
    code, printed = ended(here, name, line)
    assert code not in (None, 0), printed


@pytest.mark.full
@ROOT
@pytest.mark.parametrize(("name", "line"), LINES)
def test_every_command_ends(here: Ground, name: str, line: str) -> None:
    code, printed = ended(here, name, line)
    assert code is not None, printed
    assert "Traceback" not in printed and "a defect of hyperpod-kit" not in printed
