"""What `make check` makes of functions above the limit of complexity: limits fall, and none is added or raised."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/complexity.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_complexity", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # typing.NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


def table(script: ModuleType, *rows: str) -> object:
    return script.read_table("\n".join(rows))


def test_the_table_is_written_as_it_is_read(script: ModuleType) -> None:
    text = script.TABLE.read_text()
    assert script.write_table(script.read_table(text)) == text
    assert all((script.ROOT / function.path).is_file() for function in script.read_table(text))


@pytest.mark.parametrize(
    "rows, measured, violations, lowered",
    [
        (["15 a.py run"], ["15 a.py run"], [], ["15 a.py run"]),
        (
            ["15 a.py run"],
            ["16 a.py run"],
            ["a.py: the complexity of run rose from 15 to 16: divide it"],
            ["15 a.py run"],
        ),
        (["15 a.py run"], ["12 a.py run"], [], ["12 a.py run"]),
        (["15 a.py run"], [], [], []),
        ([], ["11 a.py run"], ["a.py: run has a complexity of 11: divide it"], []),
        (["15 a.py run"], ["11 b.py run"], ["b.py: run has a complexity of 11: divide it"], []),
    ],
)
def test_limits_only_fall(
    script: ModuleType, rows: list[str], measured: list[str], violations: list[str], lowered: list[str]
) -> None:
    limits, complexity = table(script, *rows), table(script, *measured)
    assert script.violations(limits, complexity) == violations
    assert script.lowered(limits, complexity) == table(script, *lowered)
