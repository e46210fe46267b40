from __future__ import annotations

import pytest

from rehearsal_tests.fakes import make_operations


@pytest.fixture
def operations(tmp_path):
    made = make_operations(tmp_path / "state")
    yield made
    made.fleet.stopping.set()
