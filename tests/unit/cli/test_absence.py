"""What a command names and is not there, or what it needs and cannot reach, is exit code 3: never 0, 1, or 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from docs_build.commands import all_commands
from docs_build.pages import all_pages
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.exit_codes import ExitCode
from tests.unit.cli.absence_table import ENTRIES, NEVER_BARE
from tests.unit.cli.absent_calls import ROOT, lines_of


def test_every_command_has_an_entry() -> None:
    names = {command.name for command in all_commands()}
    assert names == set(ENTRIES), sorted(names ^ set(ENTRIES))


def test_every_entry_has_a_line_or_says_why_not() -> None:
    bare = [
        name
        for name, entry in ENTRIES.items()
        if bool(entry.paths or entry.asks or entry.extras) == bool(entry.without)
    ]
    assert bare == []


def _ends(act: str, place: Path) -> List[Dict[str, Any]]:
    argv = [sys.executable, "-m", "tests.unit.cli.absent_calls", act, str(place)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env=environment)
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ends) == len(list(lines_of(act))), done.stderr[-3000:]
    return ends


def _shown(end: Dict[str, Any]) -> str:
    return f"{end['code']}: {end['command']} {end['line']}\n{end['printed']}"


@pytest.mark.full
@pytest.mark.parametrize("act", ["path", "credentials", "endpoint"])
def test_what_is_not_there_or_cannot_be_reached_is_3(act: str, tmp_path: Path) -> None:
    wrong = [
        end
        for end in _ends(act, tmp_path)
        if end["code"] != ExitCode.ABSENT or "defect" in end["printed"] or "Traceback" in end["printed"]
    ]
    assert not wrong, "\n\n".join(map(_shown, wrong))


@pytest.mark.full
def test_no_argument_at_all_is_a_sentence_and_an_exit_code(tmp_path: Path) -> None:
    """Of every command, of what only `job run` calls, and where there is no shared memory."""
    wrong = [
        end
        for end in _ends("bare", tmp_path)
        if end["code"] not in set(ExitCode) or "defect" in end["printed"] or "Traceback" in end["printed"]
    ]
    assert not wrong, "\n\n".join(map(_shown, wrong))


def test_nothing_is_left_out_that_is_no_command() -> None:
    assert set(NEVER_BARE) <= set(ENTRIES)


@pytest.mark.full
def test_an_extra_that_is_not_installed_is_3_and_says_how_to_install_it(tmp_path: Path) -> None:
    wrong = [
        end
        for end in _ends("extra", tmp_path)
        if end["code"] != ExitCode.ABSENT
        or "not installed" not in end["printed"]
        or "pip install" not in end["printed"]
    ]
    assert not wrong, "\n\n".join(map(_shown, wrong))


def test_every_code_of_an_error_is_of_the_enumeration() -> None:
    kinds: List[type[HyperpodKitError]] = [HyperpodKitError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert [kind.__name__ for kind in kinds if not isinstance(kind.exit_code, ExitCode)] == []


def test_the_page_has_every_code_with_its_meaning() -> None:
    page = all_pages()["reference/exit-codes.md"]
    assert [code for code in ExitCode if f"| {code} | {code.meaning} |" not in page] == []
