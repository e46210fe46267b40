"""A loader that other programs pass on as it is, or that refuses to be iterated in parts.

Programs that train take a DataLoader apart and build another one of its pieces: its data set, its batches. What comes
out splits each rank's batches once more, and knows of no position. So the pieces that torch needs show what keeps such
a program from it, where it asks (Lightning and Fabric: a DistributedSampler; Accelerate: see accelerated.py), and the
batches are given to nobody but the loader itself.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

from torch.utils.data.distributed import DistributedSampler

from hyperpod_kit.data.sampler import ElasticBatchSampler
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
        "an ElasticLoader was taken apart: another loader was made of its batches, which would split them between "
        "ranks once more and leave its position where it is",
        hint="use the loader itself: it has this rank's share already and goes on where the checkpoint was, so it "
        "needs no prepare, no sampler for ranks and no skipped batches",
    )
