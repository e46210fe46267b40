"""Which samples come soon, told to a data set that can read them meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hyperpod_kit.data.sampler import RankBatch

_MAX_BYTES = 16 << 20
_MAX_SAMPLES = 8192
"""Told at a time, whichever is less."""


class ComingSamples:
    """Calls `dataset.ahead(numbers)` with what comes after a batch: one to two portions of up to 16 MiB each.

    Nothing is told with the first batch: a start reads what it needs and nothing else.
    """

    def __init__(self, dataset: Any, batches: Iterable[RankBatch], batch_size: int) -> None:
        self._dataset = dataset
        self._batches: Iterator[RankBatch] = iter(batches)
        self._batch_size = batch_size
        mean = dataset.index.bytes // max(1, dataset.index.samples)
        self._portion = max(batch_size, min(_MAX_SAMPLES, _MAX_BYTES // max(1, mean)))
        self._received = self._announced = 0

    def count_batch_and_prefetch_next(self) -> None:
        """Count a batch that the trainer has received, and give the data set the numbers of the next samples."""
        self._received += self._batch_size
        if self._received == self._batch_size:
            return
        while self._announced < self._received + self._portion:
            portion: list[RankBatch] = []
            for batch in self._batches:
                portion.append(batch)
                if len(portion) * self._batch_size >= self._portion:
                    break
            if not portion:
                return
            self._announced += len(portion) * self._batch_size
            if self._announced > self._received:
                self._dataset.ahead(np.concatenate([batch.samples for batch in portion]))
