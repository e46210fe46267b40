"""Where the training is in its data: one integer, the samples that the trainer has received since the first epoch.

Pure arithmetic; ranks, workers and the size of a batch may be others at each step. `ElasticLoader(last=...)` takes a
`Last`; `sampler` calls the rest.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from hyperpod_kit.data.numbers.bijection import Numbers


class Last(enum.Enum):
    """What happens to the samples at an epoch's end that do not fill a step of all ranks.

    `DROP`: they are left out of this epoch. `PAD`: the step is filled up with samples from the epoch's beginning, which
    count as fillers. `REPEAT`: the step is filled up with the first samples of the next epoch, which then begins behind
    them.

    Example:
        With a `dataset`:

            from hyperpod_kit.data import ElasticLoader, Last

            loader = ElasticLoader(dataset, batch_size=4, last=Last.DROP)
    """

    DROP = "drop"
    """They are left out of this epoch."""
    PAD = "pad"
    """The step is filled up with samples from the epoch's beginning, which count as fillers."""
    REPEAT = "repeat"
    """The step is filled up with the first samples of the next epoch, which then begins behind them."""


@dataclass(frozen=True)
class DataStep:
    """One step of all ranks: `real` samples from `begin` on, then `fillers`, and the position after it."""

    begin: int
    real: int
    fillers: int
    after: int


@dataclass(frozen=True)
class Course:
    """Epochs of `samples` each, one after another."""

    samples: int
    last: Last

    def epoch_at(self, position: int) -> int:
        """Return the epoch that a position lies in, from 0."""
        return position // self.samples

    def steps_to_epoch_end(self, position: int, samples_per_step: int) -> int:
        """Count the steps of `samples_per_step` samples from `position` to the end of its epoch."""
        remaining = self.samples - position % self.samples
        if self.last is Last.DROP:
            return remaining // samples_per_step
        return -(-remaining // samples_per_step)

    def step_at_unless_rest_is_dropped(self, position: int, samples_per_step: int) -> DataStep | None:
        """Compute the step at a position; None where what is left of the epoch is no step."""
        remaining = self.samples - position % self.samples
        end = position + remaining
        if remaining >= samples_per_step:
            after = position + samples_per_step
            if self.last is Last.DROP and end - after < samples_per_step:
                after = end
            return DataStep(position, samples_per_step, 0, after)
        if self.last is Last.DROP:
            return None
        if self.last is Last.REPEAT:
            return DataStep(position, samples_per_step, 0, position + samples_per_step)
        return DataStep(position, remaining, samples_per_step - remaining, end)

    def is_last_of_epoch(self, step: DataStep) -> bool:
        """Whether a step is the last of its epoch."""
        return self.epoch_at(step.after) > self.epoch_at(step.begin)

    def positions_of_rank(self, step: DataStep, rank: int, ranks: int) -> Numbers:
        """List the positions that one rank takes of a step, its fillers last: every `ranks`-th, so that with lanes in
        the order each rank stays in its own."""
        offsets = np.arange(rank, step.real + step.fillers, ranks, dtype=np.int64)
        real = offsets < step.real
        begin_of_epoch = step.begin - step.begin % self.samples
        return np.where(real, step.begin + offsets, begin_of_epoch + (offsets - step.real) % self.samples)

    def count_fillers_of_rank(self, step: DataStep, rank: int, ranks: int) -> int:
        """Count the fillers among the positions that one rank takes of a step."""
        return len(range(rank, step.real + step.fillers, ranks)) - len(range(rank, step.real, ranks))
