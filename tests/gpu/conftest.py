"""Tests that need a CUDA device; elsewhere they are skipped with the reason."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from tests.support.capabilities import require

# cuBLAS reads it once, before its first product: without it a product may come out otherwise in another process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    require("cuda")
    import torch

    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In a tmpfs, where slots lie: the driver registers no memory of files on a disk."""
    with tempfile.TemporaryDirectory(prefix="hpk-gpu-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("HPK_SHM_DIR", str(shm))
    return str(tmp_path / "run")
