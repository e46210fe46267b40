"""Observing a mount is below making and watching it: what both need lies in neither."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator

import pytest

NODE = Path(__file__).parents[3] / "hyperpod_kit/node"
LEVELS = ("mounts.mount_record", "mounts.kinds", "observe", "mounts", "health")
"""Lowest first: each imports those before it and its own, the longest name counts."""


def level(module: str) -> int:
    """Of `hyperpod_kit.node.mounts.kinds.efs`: 2; -1 for what is none of these."""
    name = module.removeprefix("hyperpod_kit.node.")
    fitting = [known for known in LEVELS if name == known or name.startswith(f"{known}.")]
    return LEVELS.index(max(fitting, key=len)) if module != name and fitting else -1


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted(NODE.rglob("*.py")), ids=lambda path: str(path.relative_to(NODE)))
def test_arrows_between_them_point_down(path: Path) -> None:
    name = ".".join(["hyperpod_kit.node", *path.relative_to(NODE).with_suffix("").parts])
    if level(name) >= 0:
        above = [one for one in imported(path) if level(one) > level(name)]
        assert above == []


def test_the_levels_are_told_apart() -> None:
    words = ["mounts.mount_record", "mounts.kinds.efs", "observe.check", "mounts.ensure", "health.repair"]
    assert [level(f"hyperpod_kit.node.{word}") for word in [*words, "remove_stale"]] == [0, 1, 2, 3, 4, -1]
