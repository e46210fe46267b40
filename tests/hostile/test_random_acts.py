"""Hostile users act at random on what is theirs, while root and another user run every command on it: victims' files
stay as they are, nobody reads their text, and every command ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from docs_build.commands import Command
from tests.docs.conftest import commands as commands
from tests.hostile.acts import program
from tests.hostile.acts.commands import ATTACKED, ENTRIES, entry_of
from tests.hostile.acts.ground import ground
from tests.hostile.users import ROOT

REPOSITORY = Path(__file__).parents[2]
ACTS = 1000


def test_every_command_has_an_entry(commands: List[Command]) -> None:
    leaves = [one.words for one in commands if not one.children]
    missing = [" ".join(words) for words in leaves if entry_of(words) is None]
    assert not missing, f"tests/hostile/acts/commands.py has no entry for {missing}"
    assert set(ENTRIES) <= {" ".join(words) for words in leaves}, "there are no such commands any more"
    assert ACTS // len(ATTACKED) >= 10


@ROOT
@pytest.mark.needs("fuse", "mounts")
@pytest.mark.parametrize("name", ["storage tier", "storage usage", "checkpoint prune", "storage quota set"])
def test_a_few_acts(name: str) -> None:
    number = sorted(ATTACKED).index(name)
    with ground() as here:
        row = program.act(here, 0, number)
    assert not row["violations"], row


@pytest.mark.full
@ROOT
@pytest.mark.needs("fuse", "mounts")
def test_a_thousand_acts(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    argv = [sys.executable, "-m", "tests.hostile.acts.program", "--acts", str(ACTS), "--seed", "1", "--rows", str(rows)]
    ended = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True)
    made = [json.loads(line) for line in rows.read_text().splitlines()]
    assert ended.returncode == 0 and len(made) == ACTS, ended.stdout[-3000:] + ended.stderr[-2000:]
