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
MAX_SHARE = 0.8
"""A mount that is so full, or would be, is not written to."""


class BudgetSpent(HyperpodKitError):
    """A measurement was left out: its bytes would go past the budget, or fill the mount past 80 %."""


class Scratch:
    """A new directory below a mount, removed at the end of the block, whatever ends it but SIGKILL.

    SIGTERM ends the block as an exception does. `reserve(size)` before each write counts the bytes.
    """

    def __init__(self, mount: Path, budget: float) -> None:
        """Raises OSError when the directory cannot be made."""
        self.mount = mount
        self.remaining = budget
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=mount))
        self._previous_handler: object = None

    def __enter__(self) -> Scratch:
        self._previous_handler = signal.signal(signal.SIGTERM, _exit_on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave half of it there.
        previous_handlers = {
            number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            by_descriptor.remove_tree(self.path, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, previous_handlers[signal.SIGINT])
            signal.signal(signal.SIGTERM, self._previous_handler)  # type: ignore[arg-type]

    def reserve_bytes_within_budget_and_room(self, size: float, label: str) -> None:
        """Count `size` bytes that are about to be written. Raises BudgetSpent: then nothing may be written."""
        if size > self.remaining:
            raise BudgetSpent(
                f"{label}: {size / 1e6:,.0f} MB more would exceed the budget; {self.remaining / 1e6:,.0f} MB are left",
                hint="--budget SIZE",
            )
        file_system = os.statvfs(self.path)
        # As df counts: what is reserved for root is no room.
        used = (file_system.f_blocks - file_system.f_bfree) * file_system.f_frsize
        total = used + file_system.f_bavail * file_system.f_frsize
        if total and used + size > MAX_SHARE * total:
            raise BudgetSpent(
                f"{label}: {self.mount} would be {(used + size) / total:.0%} full, and a bench stops at {MAX_SHARE:.0%}"
            )
        self.remaining -= size

    def make_directory(self, name: str) -> Path:
        """Make a new empty directory in it."""
        path = self.path / name
        by_descriptor.make_directory(path)
        return path

    def remove(self, path: Path) -> None:
        """Remove what one measurement wrote."""
        by_descriptor.remove_tree(path, ignore_errors=True)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
