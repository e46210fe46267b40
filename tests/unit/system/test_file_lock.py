"""Locks between processes."""

from __future__ import annotations

import os
from pathlib import Path

from hyperpod_kit.system.file_lock import lock_exclusively_within, try_lock
from hyperpod_kit.system.wait import fixed_pause


def test_one_has_it_or_many_share_it(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert try_lock(first, shared=True) and try_lock(second, shared=True) and not try_lock(second)
        os.close(first)
        first = os.open(tmp_path / "lock", os.O_RDWR)
        assert try_lock(second) and not try_lock(first) and not try_lock(first, shared=True)
        slept: list[float] = []
        assert not lock_exclusively_within(first, 1.0, fixed_pause(0.25), clock=lambda: sum(slept), sleep=slept.append)
        assert slept == [0.25] * 4
        os.close(second)
        second = os.open(tmp_path / "lock", os.O_RDWR)
        assert lock_exclusively_within(first, 1.0, fixed_pause(0.25), sleep=slept.append) and len(slept) == 4
    finally:
        os.close(first)
        os.close(second)
