"""The bench's fleet, small: every kind of node at least once, none of which may spoil the verdict on another."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.fixture(scope="module")
def fleet() -> ModuleType:
    sys.path.insert(0, str(PROGRAMS))
    try:
        spec = importlib.util.spec_from_file_location("lab_fleet", PROGRAMS / "fleet.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(PROGRAMS))


def test_forty_nodes_with_every_kind_of_trouble(fleet: ModuleType) -> None:
    with tempfile.TemporaryDirectory() as directory:
        args = Namespace(nodes=40, all="", timeout=9.0, connect_timeout=8.0, words=["--json"])
        found = fleet.measure_validate_mounts(Path(directory), args)
    assert set(found["kinds"]) == {"ok", *fleet.KINDS}
    assert found["wrong_verdicts"] == [] and found["exit_code"] == 1
    assert found["peak_memory_mib"] < 300
