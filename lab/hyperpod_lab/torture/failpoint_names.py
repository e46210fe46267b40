"""The named places where a process can be killed, taken from the sources: none can be forgotten here."""

from __future__ import annotations

import ast
from pathlib import Path

import hyperpod_kit.checkpoint


def find_failpoints() -> dict[str, str]:
    """Name of each `failpoint("...")` in the engine -> the file that has it, relative to the package."""
    package = Path(str(hyperpod_kit.checkpoint.__file__)).parent
    failpoints = {}
    for path in sorted(package.rglob("*.py")):
        where = str(path.relative_to(package))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and getattr(node.func, "id", getattr(node.func, "attr", "")) == "failpoint"
            ):
                failpoints[str(node.args[0].value)] = where
    return failpoints
