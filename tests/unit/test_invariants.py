"""The invariants of docs/testing.md: each is held by a test that exists and is part of `make test`."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/testing.md"
NAME = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
MARK = "pytest.mark.full"


def _rows() -> List[Tuple[str, str]]:
    """(invariant, its tests) of each row of the page."""
    section = PAGE.read_text().partition("\n## Invariants\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(invariant, tests) for invariant, tests in cells if invariant not in ("invariant", "---")]


ROWS = _rows()


@lru_cache(maxsize=None)
def _module(path: str) -> ast.Module:
    return ast.parse((TESTS / path).read_text())


def _marks_of_module(module: ast.Module) -> Iterator[str]:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            yield ast.unparse(statement.value)


def _reason_against(path: str, name: str) -> str:
    """Why a test is not in the gate, or nothing."""
    if not (TESTS / path).is_file():
        return "there is no such file"
    module = _module(path)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not functions:
        return "there is no such test"
    if any(MARK in mark for mark in _marks_of_module(module)):
        return "its file is marked full"
    # A row of a parametrised test may be full: the others are not.
    if any(ast.unparse(decorator) == MARK for decorator in functions[0].decorator_list):
        return "it is marked full"
    return ""


def test_there_are_invariants_of_each_kind() -> None:
    assert len(ROWS) > 80
    assert len({invariant for invariant, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("invariant", "tests"), ROWS, ids=[invariant for invariant, _ in ROWS])
def test_an_invariant_is_held_by_a_test_of_the_gate(invariant: str, tests: str) -> None:
    names = NAME.findall(tests)
    assert names, f"no test is named beside {invariant!r}"
    reasons = {f"{path}::{name}": _reason_against(path, name) for path, name in names}
    assert {test: reason for test, reason in reasons.items() if reason} == {}


def test_a_test_outside_of_the_gate_is_noticed() -> None:
    assert _reason_against("unit/gone.py", "test_it") == "there is no such file"
    assert _reason_against("unit/test_skips.py", "test_it") == "there is no such test"
    assert (
        _reason_against("rehearsal/test_software.py", _first_test("rehearsal/test_software.py")) == "it is marked full"
    )
    assert (
        _reason_against("rehearsal/test_shares.py", _first_test("rehearsal/test_shares.py"))
        == "its file is marked full"
    )


def _first_test(path: str) -> str:
    functions = [node.name for node in _module(path).body if isinstance(node, ast.FunctionDef)]
    return next(name for name in functions if name.startswith("test_"))
