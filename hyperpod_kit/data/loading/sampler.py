"""Batches of sample numbers for torch's DataLoader: this rank's share of each step, from any position on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hyperpod_kit.data.loading.position import Course, DataStep, Last
from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.numbers.deduplication import unique_values
from hyperpod_kit.data.order.order import SampleOrder

_NUMBERS_PER_STEP = 4096
"""Samples whose numbers are computed at once: one by one they would cost more than reading them."""

_MAX_CACHED = 8
"""Of these, that are kept: workers are asked for batches before the trainer has the ones before them."""


class RankBatch(NamedTuple):
    """A rank's batch of one step: the samples' numbers, how many at the end are fillers, and the step."""

    samples: Numbers
    fillers: int
    step: DataStep


class ElasticBatchSampler:
    """Lists of sample numbers from `position` to the end of its epoch.

    All ranks have the same number of batches, and each batch has `batch_size` samples. Iterating changes nothing: who
    counts what was received is the loader.
    """

    def __init__(
        self,
        order: SampleOrder,
        batch_size: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        last: Last = Last.PAD,
        may_change: bool = False,
    ) -> None:
        if batch_size < 1 or not 0 <= rank < ranks:
            raise ValueError(f"batch_size={batch_size}, rank={rank} of {ranks} ranks")
        self.order = order
        self.may_change = may_change
        """Nobody has chosen the order."""
        self.batch_size = batch_size
        self.rank = rank
        self.ranks = ranks
        self.course = Course(order.samples, last)
        self.position = 0
        self._cached: dict[int, list[RankBatch]] = {}
        if not self.course.steps_to_epoch_end(0, self.samples_per_step):
            raise ValueError(
                f"an epoch of {order.samples} samples has no step of {self.samples_per_step} "
                f"(batch_size={batch_size} on {ranks} ranks), and last={last.value!r} leaves out what does not fill one"
            )

    def replace_order(self, order: SampleOrder) -> None:
        """Take another order of as many samples."""
        self.order = order
        self._cached.clear()

    @property
    def samples_per_step(self) -> int:
        """How many samples a step of all ranks has."""
        return self.batch_size * self.ranks

    def __len__(self) -> int:
        """Steps of the current epoch, counted from its beginning."""
        epoch = self.course.epoch_at(self.position)
        begin = epoch * self.course.samples
        if self.course.last is Last.REPEAT and self.position - begin:
            # Steps reach over the end of an epoch, so this one began with the step after that.
            begin = self.position - (self.position - begin) // self.samples_per_step * self.samples_per_step
        return self.course.steps_to_epoch_end(begin, self.samples_per_step)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.rank_batches_until_epoch_end(self.position):
            yield batch.samples.tolist()

    def rank_batches_until_epoch_end(self, position: int) -> Iterator[RankBatch]:
        """Yield this rank's batches from a position to the end of its epoch."""
        end = self.course.epoch_at(position) + 1
        while self.course.epoch_at(position) < end:
            some = self._cached_batches_at(position)
            if not some:
                return
            yield from some
            position = some[-1].step.after

    def _cached_batches_at(self, position: int) -> list[RankBatch]:
        """Return the next batches from a position on, cached.

        They are requested twice: by torch for its workers, and by the loader, which counts what was received.
        """
        batches = self._cached.get(position)
        if batches is None:
            batches = self._cached[position] = self._compute_batches(position)
            if len(self._cached) > _MAX_CACHED:
                del self._cached[next(iter(self._cached))]
        return batches

    def _compute_batches(self, position: int) -> list[RankBatch]:
        epoch = self.course.epoch_at(position)
        steps: list[DataStep] = []
        # A start is not kept waiting for the batches after its first.
        most = 1
        if self._cached:
            most = max(1, _NUMBERS_PER_STEP // self.batch_size)
        while len(steps) < most and self.course.epoch_at(position) == epoch:
            step = self.course.step_at_unless_rest_is_dropped(position, self.samples_per_step)
            if step is None:
                break
            steps.append(step)
            position = step.after
        if not steps:
            return []
        # All but the last step are whole, and one begins where the one before it ends.
        first, last = steps[0], steps[-1]
        places = np.concatenate(
            [
                np.arange(first.begin + self.rank, last.begin, self.ranks, dtype=np.int64),
                self.course.positions_of_rank(last, self.rank, self.ranks),
            ]
        )
        samples = self._sample_numbers_at(places).reshape(len(steps), self.batch_size)
        fillers = self.course.count_fillers_of_rank(last, self.rank, self.ranks)
        return [
            RankBatch(samples_of_rank, fillers if step is last else 0, step)
            for step, samples_of_rank in zip(steps, samples, strict=True)
        ]

    def _sample_numbers_at(self, places: Numbers) -> Numbers:
        epochs = places // self.course.samples
        inside = places - epochs * self.course.samples
        if epochs[0] == epochs[-1]:
            return self.order.at(int(epochs[0]), inside)
        samples = np.empty_like(places)
        for epoch in unique_values(epochs).tolist():
            here = epochs == epoch
            samples[here] = self.order.at(epoch, inside[here])
        return samples
