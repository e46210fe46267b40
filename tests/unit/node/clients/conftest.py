"""Real dpkg and apt below a private root; real HTTP from a server of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

from tests.support.capabilities import require
from tests.unit.node.clients.debian_root import DebianRoot
from tests.unit.node.clients.package_server import PackageServer


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DebianRoot:
    require("apt-get", "dpkg-deb")
    root = DebianRoot(tmp_path / "root")
    for name, value in root.environment.items():
        monkeypatch.setenv(name, value)
    return root


@pytest.fixture
def server() -> Iterator[PackageServer]:
    with PackageServer() as running:
        yield running
