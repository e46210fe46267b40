"""The layers of docs/design/layers.md, held by the imports themselves."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Set

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hyperpod_kit"

BASE = {"audit", "descriptors", "errors", "run", "untrusted", "model", "slurm"}
MAY_IMPORT: Dict[str, Set[str]] = {
    "descriptors": set(),
    "errors": set(),
    "untrusted": {"descriptors", "errors"},
    "audit": {"untrusted"},
    "run": {"errors"},
    "model": {"errors", "untrusted"},
    "slurm": {"descriptors", "errors", "run", "untrusted", "model"},
    "checkpoint.repository": {"audit", "descriptors", "errors", "untrusted"},
    "node": BASE | {"checkpoint.repository"},
    "job": BASE | {"checkpoint.repository"},
    "checkpoint": BASE | {"checkpoint.repository"},
    "aws": BASE,
    "config": BASE | {"aws"},
    "bundle": BASE | {"aws", "config"},
    "cluster": BASE | {"aws", "config", "bundle"},
    "preflight": BASE | {"aws", "config"},
    "remote": BASE | {"aws", "config"},
    "rehearsal": BASE | {"aws", "config", "bundle", "remote"},
    "cli": BASE | {"config", "bundle", "aws", "cluster", "preflight", "remote", "rehearsal", "job", "checkpoint"},
}
"""Layer -> the layers that it may import besides itself. Arrows point down only."""

VENDORED = (
    "audit",
    "descriptors",
    "errors",
    "run",
    "untrusted",
    "model",
    "slurm",
    "node",
    "job",
    "checkpoint.repository",
)
"""What ships to the nodes: standard library only, Python 3.8."""

STANDALONE = ("rehearsal/standins", "rehearsal/agent")
"""Programs that run inside rehearsal machines: the same rule, and they import nothing else of ours."""

OPTIONAL = {"boto3", "botocore", "xxhash"}
"""Third-party modules that vendored code may use when they can be imported."""

TORCH_ALLOWED = ("checkpoint",)
GRAB_BAGS = {"utils", "util", "helpers", "helper", "common", "misc"}


def modules() -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_bundle" not in path.parts:
            yield path


def dotted(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(name: str) -> str:
    """`checkpoint.repository.cli` -> `checkpoint.repository`, `node.mounts.efs` -> `node`, `` -> ``."""
    return "checkpoint.repository" if name.startswith("checkpoint.repository") else name.split(".")[0]


def imports(path: Path) -> List[str]:
    """Every module that a file imports, absolute; relative imports are resolved."""
    package = ["hyperpod_kit", *path.relative_to(PACKAGE).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{prefix}.{alias.name}" for alias in node.names]
    return found


def ours(name: str) -> str:
    return layer(name[len("hyperpod_kit.") :])


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_keeps_the_rules(path: Path) -> None:
    name = dotted(path)
    source = path.read_text()
    assert len(source.splitlines()) <= 400, "more than one concern?"
    assert path.stem not in GRAB_BAGS
    here = layer(name)
    if not here:
        return
    allowed = MAY_IMPORT[here] | {here}
    used = imports(path)
    for target in used:
        if target.startswith("hyperpod_kit.") and target != "hyperpod_kit.__version__":
            assert ours(target) in allowed, f"{name} imports {target}: {here} may use {sorted(allowed)}"
        if target.split(".")[0] == "torch":
            assert here in TORCH_ALLOWED
    if path.name == "__init__.py":
        assert (
            not [target for target in used if target.startswith("hyperpod_kit.") and "__version__" not in target]
            or here == "checkpoint"
        ), "a package's __init__ imports no implementation"


@pytest.mark.parametrize(
    "path",
    [p for p in modules() if layer(dotted(p)) in VENDORED or str(p.relative_to(PACKAGE)).startswith(STANDALONE)],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_what_ships_to_nodes_needs_only_the_standard_library(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
    assert "from __future__ import annotations" in path.read_text() or path.name == "__init__.py"
    for target in imports(path):
        top = target.split(".")[0]
        assert top in sys.stdlib_module_names or top == "hyperpod_kit" or top in OPTIONAL, f"{path} imports {target}"


def test_layers_have_no_cycle() -> None:
    done: Set[str] = set()

    def visit(name: str, trail: List[str]) -> None:
        assert name not in trail, f"cycle: {' -> '.join([*trail, name])}"
        if name not in done:
            for below in MAY_IMPORT[name]:
                visit(below, [*trail, name])
            done.add(name)

    for name in MAY_IMPORT:
        visit(name, [])


def test_modules_have_no_cycle() -> None:
    graph = {dotted(path): set() for path in modules()}
    for path in modules():
        tree = ast.parse(path.read_text())
        top_level = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        source = ast.unparse(ast.Module(body=list(top_level), type_ignores=[]))
        for node in ast.parse(source).body:
            names = (
                [node.module, *[f"{node.module}.{a.name}" for a in node.names]]
                if isinstance(node, ast.ImportFrom) and node.module
                else []
            )
            for name in names:
                short = name[len("hyperpod_kit.") :] if name.startswith("hyperpod_kit.") else ""
                if short in graph and short != dotted(path):
                    graph[dotted(path)].add(short)
    done: Set[str] = set()

    def visit(name: str, trail: List[str]) -> None:
        assert name not in trail, f"cycle: {' -> '.join([*trail, name])}"
        if name in done:
            return
        for below in graph[name]:
            visit(below, [*trail, name])
        done.add(name)

    for name in graph:
        visit(name, [])
