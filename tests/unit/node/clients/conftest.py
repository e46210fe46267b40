"""Real dpkg and apt below a private root; real HTTP from a server of the test."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Iterator

import pytest

from tests.unit.node.clients.debian_root import DebianRoot
from tests.unit.node.clients.package_server import PackageServer


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DebianRoot:
    if not all(shutil.which(program) for program in ("apt-get", "apt-mark", "dpkg", "dpkg-deb", "dpkg-query")):
        pytest.skip("there is no dpkg and apt on this machine")
    root = DebianRoot(tmp_path / "root")
    for name, value in root.environment.items():
        monkeypatch.setenv(name, value)
    return root


@pytest.fixture
def server() -> Iterator[PackageServer]:
    with PackageServer() as running:
        yield running
