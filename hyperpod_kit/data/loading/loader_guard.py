"""A loader that other programs pass on as it is, or that refuses to be iterated in parts.

Programs that train take a DataLoader apart and build another one of its pieces: its data set, its batches. What comes
out splits each rank's batches once more, and knows of no position. So the pieces that torch needs show what keeps such
a program from it, where it asks (Lightning and Fabric: a DistributedSampler; Accelerate: see prepare), and the
batches are given to nobody but the loader itself.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NoReturn

from torch.utils.data.distributed import DistributedSampler

from hyperpod_kit.data.loading.sampler import ElasticBatchSampler
from hyperpod_kit.errors import DataError


class GuardedBatches:
    """What the loader gives torch for a batch sampler: torch may iterate it while the loader begins, nobody else."""

    def __init__(self, batches: ElasticBatchSampler) -> None:
        self.batch_size = batches.batch_size
        self.drop_last = False
        self._batches = batches
        self._open = False

    @contextlib.contextmanager
    def iteration_allowed(self) -> Iterator[None]:
        """Allow iteration while the context lasts, in which torch makes its iterator."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        if not self._open:
            _refuse_iteration()
        return iter(self._batches)


class EpochSetter(DistributedSampler[Any]):
    """The loader's `sampler`, of the class by which others know that ranks have their shares already.

    It takes the epochs that a program counts for the loader's: the first that is named is the one that the position is
    in, a later one begins behind it. One that is named again, or before anything was trained on since, moves nothing.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self._named_epoch: tuple[int, int] | None = None
        self._position = -1

    def set_epoch(self, epoch: int) -> None:
        """See DistributedSampler."""
        loader = self._loader()
        if loader is None:
            return
        position = loader.position
        if self._named_epoch is None or position == self._position:
            self._named_epoch = epoch, loader.epoch
        named, then = self._named_epoch
        loader.set_epoch(max(loader.epoch, then + epoch - named))
        self._position = loader.position

    def forget_named_epoch(self) -> None:
        """Forget the epoch that was named: after the position was set, the next one that is named is the one it is
        in."""
        self._named_epoch = None

    def __len__(self) -> int:
        loader = self._loader()
        if loader is None:
            return 0
        return int(len(loader) * loader.batch_sampler.batch_size)

    def __iter__(self) -> NoReturn:
        _refuse_iteration()


def _refuse_iteration() -> NoReturn:
    raise DataError(
        "an ElasticLoader was rebuilt: another loader was made from its batches, which would split them between "
        "ranks once more and never advance the position",
        hint="use the loader itself: it already has this rank's share and resumes where the checkpoint was, so it "
        "needs no prepare, no sampler for ranks and no skipped batches",
    )


# An ElasticLoader under Accelerate: `prepare` hands it back as it is, and it does what a prepared loader does.
#
# That is: batches are put on the process's device, and Accelerate is told which loader is iterated and when its last
# batch has come, where `accumulate` takes a step of the optimizer.


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
