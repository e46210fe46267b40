"""An ElasticLoader under Accelerate: `prepare` hands it back as it is, and it does what a prepared loader does.

That is: batches are put on the process's device, and Accelerate is told which loader is iterated and when its last
batch has come, where `accumulate` takes a step of the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


class AcceleratedLoop:
    """One iteration of a loader."""

    def __init__(self, loader: Any) -> None:
        state = import_module("accelerate.state")
        operations = import_module("accelerate.utils.operations")
        self._loader = loader
        self._gradients: Any = state.GradientState()
        self._device: Any = state.PartialState().device
        self._put: Callable[..., Any] = operations.send_to_device
        loader.end_of_dataloader = False
        loader.remainder = -1  # unknown: the samples of a step that are fillers are not the last of all ranks
        self._gradients._add_dataloader(loader)

    def send_batch_to_device(self, batch: Any, *, is_last_batch: bool) -> Any:
        """Move a batch to the process's device, and set the loader's `end_of_dataloader` for Accelerate."""
        self._loader.end_of_dataloader = is_last_batch
        return self._put(batch, self._device, non_blocking=bool(self._loader.pin_memory))

    def unregister_loader(self) -> None:
        """Remove the loader from Accelerate's gradient state: its loop has ended."""
        self._gradients._remove_dataloader(self._loader)
