"""The fence that keeps an optimizer from changing what is still being copied."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from hyperpod_kit.checkpoint.handle import Handle
from hyperpod_kit.checkpoint.slot_copy import SlotCopy

_POLL_SECONDS = 0.005


class Fence:
    """The copy of the last overlapped save, and the optimizers that wait for it before they step."""

    def __init__(self) -> None:
        self._running: tuple[SlotCopy, Handle] | None = None
        self._passed = True
        self._watched: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._hooks: list[Any] = []

    def install_step_hooks_unless_no_optimizer(self, optimizers: Iterable[torch.optim.Optimizer]) -> bool:
        """Install a hook on each optimizer that makes it wait for the fence before its step; return False
        when there is no optimizer."""
        has_optimizer = False
        for optimizer in optimizers:
            has_optimizer = True
            if optimizer not in self._watched:
                self._watched.add(optimizer)
                self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.wait_until_sources_free()))
        return has_optimizer

    def track(self, copy: SlotCopy, handle: Handle) -> None:
        self._running, self._passed = (copy, handle), False

    def wait_until_sources_free(self) -> None:
        """Wait until the tensors may change. The time is added to the save's `stall_ms`; a failure is
        written to its handle."""
        if self._passed or self._running is None:
            return
        begin = time.perf_counter()
        copy, handle = self._running
        try:
            copy.wait_until_sources_free()
        except Exception:
            handle.reason = handle.reason or "the copy failed"
        self._passed = True
        handle.stall_ms += (time.perf_counter() - begin) * 1000.0

    def wait_until_captured(self) -> None:
        """Wait until the last overlapped save is captured, or has failed, and forget it."""
        self.wait_until_sources_free()
        if self._running is not None:
            copy, handle = self._running
            self._running = None
            try:
                copy.wait()
            except Exception:
                handle.reason = handle.reason or "the copy failed"

    def wait_for_copy_threads(self, seconds: float) -> None:
        """Wait until no thread copies any more, `seconds` at most: the interpreter is about to end."""
        end = time.monotonic() + seconds
        while self._running is not None and not self._running[0].ended and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        self.wait_until_captured()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
