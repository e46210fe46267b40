"""File after file: an order for training on one file at a time, which any number of ranks share and resume.

A program gives a `FileOrder` to `ElasticLoader`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.index.layout import SampleIndex
from hyperpod_kit.data.numbers.bijection import Numbers, mix_key, permute
from hyperpod_kit.data.numbers.deduplication import unique_values
from hyperpod_kit.data.order.buckets import WeightBuckets


class FileOrder:
    """All samples of one file, then all of the next; all ranks share each file, however many samples it has.

    Args:
        index: The index of the files.
        seed: Gives each epoch its own order of files, and each file its own order of samples. Default: 0. None: files
            and samples come as they lie.

    Example:
        With an `index` and a `dataset` of it:

            from hyperpod_kit.data import ElasticLoader, FileOrder

            order = FileOrder(index, seed=1)
            loader = ElasticLoader(dataset, batch_size=4, order=order)
            print("training begins with", index.file(order.file_at(loader.position)).path)
    """

    def __init__(self, index: SampleIndex, seed: int | None = 0) -> None:
        self.samples = index.samples
        self._seed = seed
        self._firsts = index.firsts
        self._counts = np.diff(self._firsts, append=self.samples)
        self._cached_epoch: tuple[int, Numbers, Numbers] | None = None

    def described(self) -> dict[str, Any]:
        """Describe the order: two with equal descriptions have the same sample at each position.

        Returns:
            Names and values, for JSON.
        """
        return {"order": "files", "samples": self.samples, "files": len(self._firsts), "seed": self._seed}

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        """Look up samples by their positions in an epoch.

        Args:
            epoch: The epoch, from 0.
            positions: Positions in it: 0 <= position < samples.

        Returns:
            The numbers of the samples.
        """
        files, ends = self._files_and_ends(epoch)
        ranks = np.searchsorted(ends, positions, side="right")
        samples = np.empty_like(positions)
        for rank in unique_values(ranks).tolist():
            at_rank = ranks == rank
            file = int(files[rank])
            size = int(self._counts[file])
            inside = positions[at_rank] - (int(ends[rank]) - size)
            if self._seed is not None:
                inside = permute(inside, size, mix_key(self._seed, epoch, file + 1))
            samples[at_rank] = inside + self._firsts[file]
        return samples

    def weighed(self, epoch: int, weights: npt.NDArray[np.uint32]) -> WeightBuckets:
        """Sum weights by sections of an epoch: a section is a file.

        Args:
            epoch: The epoch, from 0.
            weights: The weight of each sample, by its number.

        Returns:
            For each section the positions, and the weight, up to its end.
        """
        files, ends = self._files_and_ends(epoch)
        full = np.flatnonzero(self._counts)
        sums = np.zeros(len(self._counts), np.int64)
        sums[full] = np.add.reduceat(weights, self._firsts[full], dtype=np.int64)
        return WeightBuckets(ends, np.cumsum(sums[files]))

    def file_at(self, position: int) -> int:
        """Look up the file that a position lies in.

        Args:
            position: How many samples all ranks have received since the first epoch, as `loader.position` counts them.

        Returns:
            The number of the file: `index.file(number).path` is its path.
        """
        epoch, inside = divmod(position, self.samples)
        files, ends = self._files_and_ends(epoch)
        return int(files[int(np.searchsorted(ends, inside, side="right"))])

    def _files_and_ends(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Return the files in an epoch's order, and where each of them ends."""
        if self._cached_epoch is None or self._cached_epoch[0] != epoch:
            files = np.arange(len(self._firsts), dtype=np.int64)
            if self._seed is not None:
                files = permute(files, len(files), mix_key(self._seed, epoch))
            self._cached_epoch = (epoch, files, np.cumsum(self._counts[files]))
        return self._cached_epoch[1:]
