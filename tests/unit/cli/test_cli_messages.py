"""Messages lead to what the reader has: `explain` for a code, and no file that only the sources have."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator

import pytest

from hyperpod_kit.command_line.explaining import print_explain_line
from tests.support.packages import PACKAGES, PRODUCT

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Outcome

    Hk = Callable[..., Outcome]

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
OF_THE_SOURCES = re.compile(r"\b(docs|lab|tests)/\S|\.md\b")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module but for its docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_message_points_to_a_file_that_the_wheel_has_not() -> None:
    wrong = []
    for path in sorted(PACKAGES[PRODUCT].rglob("*.py")):
        if OF_THE_SOURCES.search(path.read_text()):
            wrong += [f"{path}:{line}: {text}" for line, text in texts(path) if OF_THE_SOURCES.search(text)]
    assert wrong == []


def test_findings_are_followed_by_one_line_about_their_codes(tmp_path: Path, hk: Hk) -> None:
    values: dict[str, Any] = json.loads(EXAMPLE.read_text())
    file = tmp_path / "c.json"
    file.write_text(json.dumps({**values, "one": 1, "two": 2}))
    shown = hk("validate", str(file))
    assert shown.out.count("HPK-") == 2 and shown.err.count("more about a code: hyperpod-kit explain HPK-") == 1
    file.write_text(json.dumps(values))
    assert "explain" not in hk("validate", str(file)).err
    assert "explain" not in hk("validate", str(file), "--json").err


def test_without_findings_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_explain_line([])
    print_explain_line(iter(["J003", "J006"]))
    assert capsys.readouterr().err == "more about a code: hyperpod-kit explain J003\n"
