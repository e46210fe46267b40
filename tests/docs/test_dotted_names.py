"""Each dotted name that the documents give leads somewhere: to a module, to what a module has, or to a setting."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, List, Set

import pytest

from hyperpod_kit.config.schema import build_schema

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAME = re.compile(r"\bhyperpod_kit(?:\.[A-Za-z_]\w*)+")
HAS = re.compile(r"`(hyperpod_kit[.\w]+)`\s+has\s+((?:(?:an?\s+)?`\w+`(?:,\s+|\s+and\s+)?)+)")
"""A sentence that says what a module has."""
METRICS_FILE = "hyperpod_kit.prom"
SETTINGS = set(build_schema(limits=False)["properties"]["hyperpod_kit"]["properties"])


def names_in(text: str) -> Set[str]:
    """The names that a text gives, also in a sentence such as "`a.b` has a `C` and a `D`"."""
    names = set(NAME.findall(text))
    for module, things in HAS.findall(text):
        names.update(f"{module}.{thing}" for thing in re.findall(r"`(\w+)`", things))
    return names


def imported(name: str) -> Any:
    """What a dotted name leads to. Raises ImportError, AttributeError."""
    module = importlib.import_module("hyperpod_kit")
    parts = name.split(".")[1:]
    value: Any = module
    for number, part in enumerate(parts, 1):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(".".join(["hyperpod_kit", *parts[:number]]))
    return value


def lacks_another_package(err: Exception) -> bool:
    """A module of ours that is there, for a framework that is not."""
    return isinstance(err, ModuleNotFoundError) and not str(err.name).startswith("hyperpod_kit")


def names() -> List[str]:
    every = set().union(*(names_in(path.read_text()) for path in PAGES))
    return sorted(name for name in every if name != METRICS_FILE and name.split(".")[1] not in SETTINGS)


def test_every_name_can_be_imported() -> None:
    missing = []
    for name in names():
        try:
            imported(name)
        except (ImportError, AttributeError) as err:
            if not lacks_another_package(err):
                missing.append(f"{name}: {err}")
    assert missing == []


def test_what_is_a_name() -> None:
    text = "`hyperpod_kit.checkpoint.dcp` has a `Reader` and a `Writer`, and hyperpod_kit.job.run. runs."
    whole = {"hyperpod_kit.checkpoint.dcp", "hyperpod_kit.job.run"}
    assert names_in(text) == whole | {f"hyperpod_kit.checkpoint.dcp.{name}" for name in ("Reader", "Writer")}
    assert "hyperpod_kit.checkpoint.dcp" in names()


@pytest.mark.parametrize("name", ["hyperpod_kit.checkpoint.dcp.Nothing", "hyperpod_kit.nowhere"])
def test_a_name_that_is_not_there(name: str) -> None:
    with pytest.raises((ImportError, AttributeError)):
        imported(name)
