"""docs/design/life-of-a-save.md names functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/design/life-of-a-save.md"
PACKAGE = ROOT / "hyperpod_kit/checkpoint"


def found(name: str) -> bool:
    """Whether `module.Class.method`, `module.Class` or `module.function` is there; modules have dots too."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        path = PACKAGE.joinpath(*parts[:cut]).with_suffix(".py")
        if path.is_file():
            body: list[ast.stmt] = ast.parse(path.read_text()).body
            for part in parts[cut:]:
                inner = [
                    node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == part
                ]
                if not inner:
                    return False
                body = inner[0].body
            return True
    return False


def test_every_function_of_the_page_is_there() -> None:
    names = re.findall(r"`([a-z_]+(?:\.[a-z_]+)*\.[A-Za-z_.]+)`", PAGE.read_text())
    assert (
        len(names) > 20 and [name for name in names if not found(name) and not name.endswith((".json", ".bin"))] == []
    )
    assert not found("manager.Manager.take") and not found("nowhere.Manager")
