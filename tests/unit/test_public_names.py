"""The public packages load their names on demand, and type checkers, editors and `dir()` see the same names."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

import hyperpod_kit

PACKAGE = Path(hyperpod_kit.__file__).parent
PUBLIC = ("checkpoint", "data")


def stub(package: str) -> ast.Module:
    return ast.parse((PACKAGE / package / "__init__.pyi").read_text())


def imported_names(package: str) -> Dict[str, str]:
    """Public name -> the module that the stub imports it from, relative to the package."""
    prefix = f"hyperpod_kit.{package}."
    names = {}
    for node in stub(package).body:
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.module.startswith(prefix)
            for alias in node.names:
                # Only `X as X` exports a name from a stub.
                assert alias.asname == alias.name
                names[alias.name] = node.module[len(prefix) :]
    return names


def exported_names(package: str) -> List[str]:
    for node in stub(package).body:
        if isinstance(node, ast.Assign):
            return list(ast.literal_eval(node.value))
    raise AssertionError("the stub has no __all__")


@pytest.mark.parametrize("package", PUBLIC)
def test_stub_and_module_name_the_same_places(package: str) -> None:
    module = importlib.import_module(f"hyperpod_kit.{package}")
    assert imported_names(package) == module._MODULES
    assert exported_names(package) == module.__all__


@pytest.mark.parametrize("package", PUBLIC)
def test_dir_lists_every_public_name_and_each_one_loads(package: str) -> None:
    module = importlib.import_module(f"hyperpod_kit.{package}")
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Mangler'"):
        _ = module.Mangler


@pytest.mark.parametrize("package", PUBLIC)
def test_listing_the_names_imports_no_implementation(package: str) -> None:
    # Of `data` this is checked without torch; the node's programs import `checkpoint` each minute.
    program = (
        f"import sys, hyperpod_kit.{package} as package; dir(package); "
        f"print(*(name for name in sys.modules if name.startswith('hyperpod_kit.{package}.')), 'torch' in sys.modules)"
    )
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert listed.stdout.split() == ["False"]


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").read_bytes() == b""
