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
            name = _failpoint_name(node)
            if name is not None:
                failpoints[name] = where
    return failpoints


def _failpoint_name(node: ast.AST) -> str | None:
    """Return the name in a call `failpoint("...")`; None for any other node."""
    if not isinstance(node, ast.Call):
        return None
    function = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if function != "failpoint" or not node.args:
        return None
    if not isinstance(node.args[0], ast.Constant):
        return None
    return str(node.args[0].value)
