"""The one directory that a bench writes to, and how much of it: nothing stays behind, and no mount is filled."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.untrusted import by_descriptor

PREFIX = "hyperpod-kit-bench-"
FULLEST = 0.8
"""A mount that is so full, or would be, is not written to."""


class BudgetSpent(HyperpodKitError):
    """A measurement was left out: its bytes would go past the budget, or fill the mount past 80 %."""


class Scratch:
    """A new directory below a mount, removed at the end of the block, whatever ends it but SIGKILL.

    SIGTERM ends the block as an exception does. `take(size)` before each write counts the bytes.
    """

    def __init__(self, mount: Path, budget: float, *, fullest: float = FULLEST) -> None:
        """Raises OSError when the directory cannot be made."""
        self.mount = mount
        self.left = budget
        self._fullest = fullest
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=mount))
        self._before: object = None

    def __enter__(self) -> Scratch:
        self._before = signal.signal(signal.SIGTERM, _stopped)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave half of it there.
        held = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            by_descriptor.remove_tree(self.path, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, held[signal.SIGINT])
            signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]

    def take(self, size: float, what: str) -> None:
        """Count `size` bytes that are about to be written. Raises BudgetSpent: then nothing may be written."""
        if size > self.left:
            raise BudgetSpent(
                f"{what}: {size / 1e6:,.0f} MB more are past the budget, of which {self.left / 1e6:,.0f} MB are left",
                hint="--budget SIZE",
            )
        room = os.statvfs(self.path)
        # As df counts: what is reserved for root is no room.
        used = (room.f_blocks - room.f_bfree) * room.f_frsize
        whole = used + room.f_bavail * room.f_frsize
        if whole and used + size > self._fullest * whole:
            raise BudgetSpent(
                f"{what}: {self.mount} would be {(used + size) / whole:.0%} full, and a bench stops at "
                f"{self._fullest:.0%}"
            )
        self.left -= size

    def directory(self, name: str) -> Path:
        """A new empty directory in it."""
        path = self.path / name
        by_descriptor.make_directory(path)
        return path

    def forget(self, path: Path) -> None:
        """Remove what one measurement wrote."""
        by_descriptor.remove_tree(path, ignore_errors=True)


def _stopped(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
