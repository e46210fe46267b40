"""Names of environment variables: written in environment.py, with what they mean, and nowhere else by hand."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Iterator, List, Set

from docs_build.words import variables
from hyperpod_kit import environment
from tests.support.environment import MEANINGS
from tests.support.packages import modules, relative

CHECKOUT = Path(__file__).parents[2]
NAME = re.compile(r"HPK_[A-Z_]*")
OURS = {name for name in vars(environment) if NAME.fullmatch(name)}

STANDALONE = tuple(f"hyperpod_rehearsal/{name}" for name in ("standins/", "agent/", "sandbox/sandbox_shim.py"))
"""Programs that import nothing of ours."""

BY_HAND = (".py", ".sh", ".c", ".j2")


def sources() -> List[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    listed.check_returncode()
    return [CHECKOUT / line for line in listed.stdout.splitlines() if line.endswith(BY_HAND)]


def in_package() -> Iterator[Path]:
    for path in modules():
        place = relative(path)
        if not place.startswith(STANDALONE) and place != "environment.py":
            yield path


def test_a_constant_is_its_name() -> None:
    assert {name: getattr(environment, name) for name in OURS} == {name: name for name in OURS}
    assert not OURS & set(MEANINGS)


def test_every_variable_has_a_meaning() -> None:
    documented = {name for table in variables().values() for name in table}
    assert {name for name in OURS - documented if not name.startswith(("HPK_FAILPOINT", "HPK_STANDIN_"))} == set()
    assert list(variables()) == ["On the admin's machine", "In a job", "On a node"]


def test_no_other_name_is_written() -> None:
    declared = OURS | set(MEANINGS)
    unknown: Set[str] = set()
    for path in sources():
        for name in set(NAME.findall(path.read_text())) - declared:
            if not (name.endswith("_") and any(one.startswith(name) for one in declared)):
                unknown.add(f"{path.relative_to(CHECKOUT)}: {name}")
    assert unknown == set()


def test_every_variable_is_used() -> None:
    used = {name for path in sources() if path.name != "environment.py" for name in NAME.findall(path.read_text())}
    assert (OURS | set(MEANINGS)) - used == set()


def written(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts that are values: no docstring."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node


def test_the_package_uses_the_constants() -> None:
    found = []
    for path in in_package():
        source = path.read_text()
        if "HPK_" not in source:
            continue
        tree = ast.parse(source)
        found += [f"{path}:{text.lineno}" for text in written(tree) if set(NAME.findall(str(text.value))) - {"HPK_"}]
        found += [
            f"{path}: {call.arg}=" for call in ast.walk(tree) if isinstance(call, ast.keyword) and call.arg in OURS
        ]
    assert found == []
