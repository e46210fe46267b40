"""Tests that need a CUDA device; elsewhere they are skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def device() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("HPK_SHM_DIR", str(shm))
    return str(tmp_path / "run")
