"""A flush without room on the root or in shared memory: nothing whole goes, and all of it is saved later."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.agent.persist import seal
from hyperpod_kit.checkpoint.repository import selection

pytestmark = pytest.mark.needs("mounts")
ROOMY = 64 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB: two captures of 24 kB fit."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={1 << 20}", "hpk-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, free: int) -> None:
    """Leave that many bytes, in whole pages."""
    status = os.statvfs(folder)
    with open(folder / "filler", "wb") as stream:
        stream.write(bytes(max(0, status.f_bavail * status.f_frsize - free)))


def give_room(folder: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={ROOMY}", str(folder)], check=True)


@pytest.mark.parametrize("free", range(0, 96 << 10, 8 << 10))
def test_a_full_root_costs_no_capture(capture: Any, shm: Path, small: Path, free: int) -> None:
    root = small / "root"
    for seq in (4, 5):
        for rank in (0, 1):
            made = capture(rank=rank, world=2, seq=seq, step=10 * seq, slot=seq, elsewhere=str(root))
            seal.seal(made)
    before = sorted(name for name in os.listdir(shm) if not name.endswith(".lock"))
    fill(small, free)
    (outcome,) = flush.flush(job="7")
    assert not outcome.lost
    if not outcome.removed:
        assert "No space left" in outcome.note, outcome
        assert sorted(name for name in os.listdir(shm) if not name.endswith(".lock")) == before
    give_room(small)
    (outcome, *_) = flush.flush(job="7") or [outcome]
    assert outcome.removed and not outcome.lost, outcome
    assert selection.newest_valid(str(root)).step == 50 and os.listdir(shm) == []


@pytest.mark.parametrize("free", [0, 4 << 10, 8 << 10])
def test_full_shared_memory_costs_no_capture(
    capture: Any, shm: Path, tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """Captures that are not sealed yet: what a flush writes beside them finds no room."""
    monkeypatch.setenv("HPK_SHM_DIR", str(small))
    for rank in (0, 1):
        capture(rank=rank, world=2, seq=4, step=40)
    for name in sorted(os.listdir(shm)):
        (small / name).write_bytes((shm / name).read_bytes())
    fill(small, free)
    (outcome,) = flush.flush(job="7")
    assert not outcome.lost, outcome
    give_room(small)
    (outcome, *_) = flush.flush(job="7") or [outcome]
    assert outcome.removed and not outcome.lost, outcome
    assert selection.newest_valid(str(tmp_path / "root")).step == 40 and os.listdir(small) == ["filler"]
