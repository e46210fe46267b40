"""Captures that ended jobs left in a node's memory, counted by a command that every node has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.remote.draining.unsaved import COUNT


@pytest.mark.parametrize("directory", ["", "hyperpod-kit/1000", "hyperpod-kit-1000", "hyperpod-kit/1000/partners"])
def test_a_capture_is_counted_wherever_it_may_lie(tmp_path: Path, directory: str) -> None:
    """Once for its control page, whatever other files the slot has; files of others are none."""
    page = tmp_path / directory / "hpk-1000-0123456789ab-00000-00.ctl"
    page.parent.mkdir(parents=True, exist_ok=True)
    assert shm_slots.NAME.fullmatch(page.name)
    assert counted(tmp_path) == 0
    page.touch()
    page.with_suffix(".img").touch()
    (page.parent / "somebody.ctl").touch()
    assert counted(tmp_path) == 1


def counted(folder: Path) -> int:
    command = COUNT.replace("/dev/shm", str(folder))
    return int(subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=30).stdout)
