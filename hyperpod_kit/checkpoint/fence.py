"""Copies in flight, and the fence that keeps an optimizer from changing what is still being copied."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hyperpod_kit.checkpoint.copier import Batch, Copier, Copy
from hyperpod_kit.checkpoint.device import Transfer
from hyperpod_kit.checkpoint.handle import Handle

_LOOK = 0.005


class Flight:
    """One save's copy from its begin to its end. `finish(error)` is called once, by the thread that ends last."""

    def __init__(
        self,
        copier: Copier,
        work: Sequence[Batch],
        transfers: Sequence[Transfer],
        finish: Callable[[BaseException | None], None],
        *,
        background: bool,
    ) -> None:
        self._transfers = transfers
        self._lock = threading.Lock()
        self._open = 1 + bool(transfers)
        self._finish = finish
        self._error: BaseException | None = None
        landing: list[Batch] = [
            [(transfer.wait, ())]
            + [(torch.Tensor.copy_, (view.view(-1).view(torch.uint8), data)) for view, data in transfer.landed]
            for transfer in transfers
        ]
        # The host's copies first: a thread that waits for a device copies nothing else meanwhile.
        self._host: Copy = copier.start(work, self._part, background=background)
        self._landing: Copy | None = copier.start(landing, self._part, background=background) if transfers else None

    def _part(self, error: BaseException | None) -> None:
        with self._lock:
            self._open -= 1
            self._error = self._error or error
            last = self._open == 0
        if last:
            self._finish(self._error)

    def fence(self) -> None:
        """Until nothing reads the tensors any more; of device tensors only the device waits. Raises what failed."""
        self._host.wait()
        for transfer in self._transfers:
            transfer.fence()

    def wait(self) -> None:
        """Until everything is in the slot. Raises what failed."""
        self._host.wait()
        if self._landing is not None:
            self._landing.wait()

    @property
    def ended(self) -> bool:
        return self._host.ended and (self._landing is None or self._landing.ended)


class Fence:
    """The flight of the last overlapped save, and the optimizers that wait for it before they step."""

    def __init__(self) -> None:
        self._flight: tuple[Flight, Handle] | None = None
        self._passed = True
        self._watched: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._hooks: list[Any] = []

    def watch(self, optimizers: Iterable[torch.optim.Optimizer]) -> bool:
        """Make each optimizer wait for the fence before its step. False when there is no optimizer."""
        found = False
        for optimizer in optimizers:
            found = True
            if optimizer not in self._watched:
                self._watched.add(optimizer)
                self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.wait()))
        return found

    def hold(self, flight: Flight, handle: Handle) -> None:
        self._flight, self._passed = (flight, handle), False

    def wait(self) -> None:
        """Until the tensors may change. The time is added to the save's `stall_ms`; a failure is in its handle."""
        if self._passed or self._flight is None:
            return
        begin = time.perf_counter()
        flight, handle = self._flight
        try:
            flight.fence()
        except Exception:
            handle.reason = handle.reason or "the copy failed"
        self._passed = True
        handle.stall_ms += (time.perf_counter() - begin) * 1000.0

    def drain(self) -> None:
        """Until the last overlapped save is captured, or has failed."""
        self.wait()
        if self._flight is not None:
            flight, handle = self._flight
            self._flight = None
            try:
                flight.wait()
            except Exception:
                handle.reason = handle.reason or "the copy failed"

    def rest(self, seconds: float) -> None:
        """Wait until no thread copies any more, `seconds` at most: the interpreter is about to end."""
        end = time.monotonic() + seconds
        while self._flight is not None and not self._flight[0].ended and time.monotonic() < end:
            time.sleep(_LOOK)

    def close(self) -> None:
        self.drain()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
