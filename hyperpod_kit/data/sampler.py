"""Batches of sample numbers for torch's DataLoader: this rank's share of each step, from any position on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hyperpod_kit.data.bijection import Numbers
from hyperpod_kit.data.order import SampleOrder
from hyperpod_kit.data.position import Course, DataStep, Last

_AHEAD = 4096
"""Samples whose numbers are computed at once: one by one they would cost more than reading them."""


class RankBatch(NamedTuple):
    """What one rank receives at one step: the samples' numbers, how many at the end are fillers, and the step."""

    samples: Numbers
    fillers: int
    step: DataStep


class ElasticBatchSampler:
    """Lists of sample numbers from `position` to the end of its epoch.

    All ranks have the same number of batches, and each batch has `batch_size` samples. Iterating changes nothing: who
    counts what was received is the loader.
    """

    def __init__(
        self, order: SampleOrder, batch_size: int, *, rank: int = 0, ranks: int = 1, last: Last = Last.PAD
    ) -> None:
        if batch_size < 1 or not 0 <= rank < ranks:
            raise ValueError(f"batch_size={batch_size}, rank={rank} of {ranks} ranks")
        self.order = order
        self.batch_size = batch_size
        self.rank = rank
        self.ranks = ranks
        self.course = Course(order.samples, last)
        self.position = 0
        if not self.course.steps_left(0, self.group):
            raise ValueError(
                f"an epoch of {order.samples} samples has no step of {self.group} (batch_size={batch_size} on {ranks} "
                f"ranks), and last={last.value!r} leaves out what does not fill one"
            )

    @property
    def group(self) -> int:
        """Samples of a step of all ranks."""
        return self.batch_size * self.ranks

    def __len__(self) -> int:
        """Steps of the current epoch, counted from its beginning."""
        epoch = self.course.epoch(self.position)
        begin = epoch * self.course.samples
        if self.course.last is Last.REPEAT and self.position - begin:
            # Steps reach over the end of an epoch, so this one began with the step after that.
            begin = self.position - (self.position - begin) // self.group * self.group
        return self.course.steps_left(begin, self.group)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches(self.position):
            yield batch.samples.tolist()

    def batches(self, position: int) -> Iterator[RankBatch]:
        """This rank's batches from a position to the end of its epoch."""
        end = self.course.epoch(position) + 1
        ahead = max(1, _AHEAD // self.batch_size)
        while self.course.epoch(position) < end:
            steps: list[DataStep] = []
            while len(steps) < ahead and self.course.epoch(position) < end:
                step = self.course.step(position, self.group)
                if step is None:
                    break
                steps.append(step)
                position = step.after
            if not steps:
                return
            places = np.concatenate([self.course.places(step, self.rank, self.ranks) for step in steps])
            samples = self._samples(places).reshape(len(steps), self.batch_size)
            for step, mine in zip(steps, samples, strict=True):
                yield RankBatch(mine, self.course.fillers(step, self.rank, self.ranks), step)

    def _samples(self, places: Numbers) -> Numbers:
        epochs = places // self.course.samples
        inside = places - epochs * self.course.samples
        found = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            found[here] = self.order.at(epoch, inside[here])
        return found
