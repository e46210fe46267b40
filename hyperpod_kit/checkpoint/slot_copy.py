"""A copy into a slot, by threads of the host and by devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from hyperpod_kit.checkpoint.copied_sources import CopyGuard
from hyperpod_kit.checkpoint.device import DeviceCopy
from hyperpod_kit.checkpoint.memory_copy import Batch, Copier, CopyRun


class SlotCopy:
    """The copy of one save's tensors into its slot, from its begin to its end.

    `guard` looks at the sources once more before they may change. `finish(error)` is called once, by the thread that
    ends last.
    """

    def __init__(
        self,
        copier: Copier,
        batches: Sequence[Batch],
        device_copies: Sequence[DeviceCopy],
        guard: CopyGuard,
        finish: Callable[[BaseException | None], None],
        *,
        background: bool,
    ) -> None:
        self._device_copies = device_copies
        self._lock = threading.Lock()
        self._open = 1 + bool(device_copies)
        self._guard = guard
        self._finish = finish
        self._error: BaseException | None = None
        small: list[Batch] = [
            [(copy.wait_then_report_changes_and_digests, ())]
            + [(torch.Tensor.copy_, (view.view(-1).view(torch.uint8), data)) for view, data in copy.small]
            for copy in device_copies
        ]
        # The host's copies first: a thread that waits for a device copies nothing else meanwhile.
        self._host_run: CopyRun = copier.start(batches, self._finish_after_last_run, background=background)
        if device_copies:
            self._device_run: CopyRun | None = copier.start(small, self._finish_after_last_run, background=background)
        else:
            self._device_run = None

    def _finish_after_last_run(self, error: BaseException | None) -> None:
        with self._lock:
            self._open -= 1
            self._error = self._error or error
            last = self._open == 0
        if not last:
            return
        try:
            self._guard.record_all_sources_changed_since_start()
        except Exception as err:  # whatever it is, the slot has to become free
            self._error = self._error or err
        self._finish(self._error)

    def wait_until_sources_free(self) -> None:
        """Wait until nothing reads the tensors any more; for tensors on a device only the device waits.
        Raises what failed."""
        self._host_run.help_and_wait()
        self._guard.record_all_sources_changed_since_start()
        for copy in self._device_copies:
            copy.block_current_stream()

    def wait(self) -> None:
        """Wait until everything is in the slot. Raises what failed."""
        self._host_run.help_and_wait()
        if self._device_run is not None:
            self._device_run.help_and_wait()

    @property
    def ended(self) -> bool:
        return self._host_run.ended and (self._device_run is None or self._device_run.ended)
