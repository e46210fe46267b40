"""A copy into a slot, by threads of the host and by devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from hyperpod_kit.checkpoint.copier import Batch, Copier, CopyRun
from hyperpod_kit.checkpoint.device import DeviceCopy


class SlotCopy:
    """The copy of one save's tensors into its slot, from its begin to its end.

    `finish(error)` is called once, by the thread that ends last.
    """

    def __init__(
        self,
        copier: Copier,
        batches: Sequence[Batch],
        device_copies: Sequence[DeviceCopy],
        finish: Callable[[BaseException | None], None],
        *,
        background: bool,
    ) -> None:
        self._device_copies = device_copies
        self._lock = threading.Lock()
        self._open = 1 + bool(device_copies)
        self._finish = finish
        self._error: BaseException | None = None
        landing: list[Batch] = [
            [(copy.wait, ())]
            + [(torch.Tensor.copy_, (view.view(-1).view(torch.uint8), data)) for view, data in copy.landed]
            for copy in device_copies
        ]
        # The host's copies first: a thread that waits for a device copies nothing else meanwhile.
        self._host: CopyRun = copier.start(batches, self._part, background=background)
        self._landing: CopyRun | None = (
            copier.start(landing, self._part, background=background) if device_copies else None
        )

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
        for copy in self._device_copies:
            copy.fence()

    def wait(self) -> None:
        """Until everything is in the slot. Raises what failed."""
        self._host.wait()
        if self._landing is not None:
            self._landing.wait()

    @property
    def ended(self) -> bool:
        return self._host.ended and (self._landing is None or self._landing.ended)
