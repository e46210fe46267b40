"""moto with what it lacks, and an account on it in which the example is right."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest
from moto import mock_aws

from tests.unit.preflight import iam_simulation, moto_more
from tests.unit.preflight.world import World, build


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    iam_simulation.install(monkeypatch)
    moto_more.install(monkeypatch)
    with mock_aws():
        yield build(tmp_path)
