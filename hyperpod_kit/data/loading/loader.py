"""torch's DataLoader with an exact position in the data.

It counts what was trained on, not what workers fetched, nor what somebody looked at. A batch counts when the next one
is asked for, or when its step is reported (`state_dict`, `trained`). While a loop holds it, `position` is that behind
it; a loop that is left before gives it back, and it comes again. A training program makes an `ElasticLoader` and passes
it to `State(loader=loader)`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, default_collate

from hyperpod_kit.data.loading.bad_records import BadCount, CheckedCollate, GoodRecords, OnBad
from hyperpod_kit.data.loading.loader_guard import AcceleratedLoop, EpochSetter, GuardedBatches
from hyperpod_kit.data.loading.position import Last
from hyperpod_kit.data.loading.sample_log import SampleLog
from hyperpod_kit.data.loading.sampler import ElasticBatchSampler, RankBatch
from hyperpod_kit.data.loading.workers import POLL_SECONDS, WorkerStart, batches_replacing_failed_workers
from hyperpod_kit.data.numbers.bijection import mix_key
from hyperpod_kit.data.order.default_order import order_of, rebuild_saved_order, render_order_argument
from hyperpod_kit.data.order.mix import data_digest_or_empty
from hyperpod_kit.data.order.order import SampleOrder, ShuffledOrder
from hyperpod_kit.errors import CheckpointError, DataError, DataUnavailable
from hyperpod_kit.system.data_wait import LOOP

log = logging.getLogger("hyperpod_kit.data")

STATE = "hpk-position/1"
STUCK_SECONDS = 600.0
_WORD = (1 << 64) - 1


def _rank_and_world_size() -> tuple[int, int]:
    """Return (rank, ranks) of torch.distributed, (0, 1) without it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


class HeldBatch(NamedTuple):
    """The batch that a loop holds and that nobody has reported as trained on."""

    batch: RankBatch
    bad: tuple[tuple[int, str], ...]
    first: bool
    """Of its loop."""


@dataclass
class LoopState:
    """Of the loop over a loader: what it holds, whether the position was set or restored since it began,
    which of all loops it is, whether the log has that a batch comes again, whether the loader is one that Accelerate
    has prepared, how many samples of the batch are fillers."""

    held_batch: HeldBatch | None = None
    jumped: bool = True
    restored: bool = False
    turn: int = 0
    warned: bool = False
    prepared: bool = False
    fillers: int = 0


class ElasticLoader(DataLoader[Any]):
    """A DataLoader over a map-style data set: each sample once an epoch, across restarts, on any number of ranks.

    `State(loader=loader)` saves its position with the weights. Restored, it continues with the first sample that no
    step in the checkpoint has had, on as many ranks and workers as there are now.

    A batch counts for the position when the next one is asked for, or by `state_dict()`, which a save calls, or
    `trained()`. A loop that is left before gives its last batch back: it comes again, so looking at a batch loses none.
    Of several iterators only the one that was begun last continues; an older one raises DataError. So does one that
    has returned a batch when a position is restored.

    A worker that dies, or returns nothing for `timeout` seconds, is replaced together with all others, and the batches
    that the trainer has not received come again from the new ones, in the same order. The fourth such failure in a row
    without a batch raises DataUnavailable.

    Programs that would build another loader of its parts get it whole (Accelerate, Lightning, Fabric), or DataError at
    their first batch.

    Args:
        dataset: A map-style data set with a length: an IndexedDataset, MixDataset, PackedDataset, or any other.
        batch_size: How many samples one rank receives in a step. Default: 1.
        order: Which sample is at which position. None: shuffled by `seed`, as `order_of` chooses; a position that
            another release saved then continues in the default order of that release.
        seed: Of the order, where none is given. Default: 0.
        rank: This rank, from 0. None: that of torch.distributed. Give it with tensor parallelism: the rank among those
            that get other data.
        ranks: How many ranks there are, as for `rank`. None: as many as torch.distributed has, else 1.
        last: What becomes of the samples that do not fill a step at the end of an epoch: a `Last`, or its value.
            Default: "pad".
        epochs: After how many epochs there are no more batches. None: never.
        ledger: A directory in which every rank notes what it received, for `hyperpod-kit data verify-ledger`. None:
            nothing is noted.
        launch: What tells this start from others in the ledger, the same on all ranks. None: what the environment of
            Slurm, `job run` or torchrun has for it.
        on_bad: "raise": a record that cannot be decoded raises BadRecord. "skip": the next good one of the data comes
            in its place; such records are counted (`bad_records`) and noted in the ledger. Default: "raise".
        most_bad: How many bad records a rank passes over before it raises BadRecord. Default: 100.
        **options: DataLoader's other arguments: num_workers, collate_fn, pin_memory, prefetch_factor, worker_init_fn.
            `timeout` is 600 seconds by default.

    Raises:
        ValueError: An argument is out of its range; an epoch has no step with `last="drop"`; `on_bad="skip"` is given
            for a data set that decodes no records; or nothing names the launch of several ranks for the ledger.
        DataUnavailable: The file that the default order of Parquet needs cannot be read for now.
        OSError: The ledger's directory cannot be made, or that file cannot be read.

    Example:
        With a `dataset`, a `model` and a function `train_step`:

            from hyperpod_kit.checkpoint import Manager, State
            from hyperpod_kit.data import ElasticLoader

            loader = ElasticLoader(dataset, batch_size=4, seed=1)
            state = State(model, loader=loader)
            with Manager("/tmp/run", every=10) as manager:
                step = manager.restore(state).next_step
                for epoch in range(loader.epoch, 2):
                    for batch in loader:
                        train_step(batch)
                        manager.step(step, state)
                        step += 1
                manager.save(step - 1, state, on_busy="wait")
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        order: SampleOrder | None = None,
        seed: int = 0,
        rank: int | None = None,
        ranks: int | None = None,
        last: Last | str = Last.PAD,
        epochs: int | None = None,
        ledger: str | os.PathLike[str] | None = None,
        launch: str | None = None,
        on_bad: OnBad | str = OnBad.RAISE,
        most_bad: int = 100,
        **options: Any,
    ) -> None:
        install_outage_excepthook()
        default_rank, default_ranks = _rank_and_world_size()
        self._elastic = ElasticBatchSampler(
            order if order is not None else order_of(dataset, seed),
            batch_size,
            rank=rank if rank is not None else default_rank,
            ranks=ranks if ranks is not None else default_ranks,
            last=Last(last),
            may_change=order is None,
        )
        self._stuck_after = float(options.pop("timeout", 0) or STUCK_SECONDS)
        if options.get("num_workers"):
            options["timeout"] = min(POLL_SECONDS, self._stuck_after)
        self._data = data_digest_or_empty(dataset)
        self._epochs = epochs
        self._loop = LoopState()
        sampler = self._elastic
        self._ledger = ledger and SampleLog(
            ledger,
            rank=sampler.rank,
            ranks=sampler.ranks,
            meant={"last": sampler.course.last.value, **self._describe_data_and_order()},
            launch=launch,
        )
        self._bad: BadCount | None = None
        if OnBad(on_bad) is OnBad.SKIP:
            if not getattr(dataset, "decodes", False):
                raise ValueError('on_bad="skip" is for the records of an IndexedDataset; see lengths_of for windows')
            self._bad = BadCount(most_bad)
            dataset = GoodRecords(dataset)
            options["collate_fn"] = CheckedCollate(options.get("collate_fn") or default_collate)
        typed: Dataset[Any] = dataset
        self._init = options.get("worker_init_fn")
        # torch draws a seed for its workers from the trainer's generator, at each iterator: a restart would shift all
        # that the trainer draws after it, its dropout for one.
        self._seeds: torch.Generator | None = None
        if options.get("generator") is None:
            self._seeds = options["generator"] = torch.Generator()
        self._epochs_of_others = EpochSetter(self)
        super().__init__(typed, batch_sampler=GuardedBatches(self._elastic), **options)
        self._pass_block_size_to_dataset()

    # --- position -----------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """How many samples the trainer has received since the first epoch, on all ranks together.

        Those of the batch that the loop holds count too.
        """
        if self._loop.held_batch is None:
            return self._elastic.position
        return self._loop.held_batch.batch.step.after

    def trained(self) -> None:
        """Report that the batch that the loop holds is trained on: it counts, even when the loop is left now.

        Example:
            With a `loader` and a function `train_step`:

                for batch in loader:
                    train_step(batch)
                    if loader.position >= 8:
                        loader.trained()
                        break
        """
        batch, self._loop.held_batch = self._loop.held_batch, None
        if batch is None:
            return
        if self._ledger:
            samples = batch.batch.samples.tolist()
            self._ledger.log_received_samples(batch.batch.step, samples, [number for number, _ in batch.bad])
        self._elastic.position = batch.batch.step.after

    @property
    def sample_order(self) -> SampleOrder:
        """The order: which sample is at which position."""
        return self._elastic.order

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of, from 0."""
        return self._elastic.course.epoch_at(self.position)

    @property
    def remaining(self) -> int:
        """How many steps there are from here to the end of the epoch."""
        return self._elastic.course.steps_to_epoch_end(self.position, self._elastic.samples_per_step)

    @property
    def fillers(self) -> int:
        """How many samples at the end of the batch just received came before in this epoch."""
        return self._loop.fillers

    @property
    def bad_records(self) -> int:
        """How many bad records this rank has passed over since its start."""
        if self._bad is None:
            return 0
        return self._bad.count

    def position_of(self, state: Mapping[str, Any]) -> int:
        """Read the position in a `state_dict()`.

        Args:
            state: What `state_dict` returned.

        Returns:
            The position.

        Raises:
            CheckpointError: It holds no position that this release reads: its checkpoint is not valid.
        """
        position = state.get("position")
        if state.get("format") != STATE or type(position) is not int or position < 0:
            raise CheckpointError(
                f"not a loader position that this release can read: format {state.get('format')!r}, position "
                f"{position!r}, expected {STATE!r} and a number"
            )
        return position

    def refuse_other(self, state: Mapping[str, Any]) -> None:
        """Raise CheckpointError unless a position is one in this loader's data and order.

        The default order counts as the same where another release had another default: see `rebuild_saved_order`.

        Args:
            state: What `state_dict` returned.

        Raises:
            CheckpointError: The position is in other data or in another order; the message names both.
        """
        expected = self._describe_data_and_order(self._order_for_saved_position(state))
        other = {name: (state.get(name), value) for name, value in expected.items() if state.get(name) != value}
        if other:
            differences = "; ".join(
                f"{name}: {then!r} then, {now!r} now" for name, (then, now) in sorted(other.items())
            )
            raise CheckpointError(
                f"the checkpoint's position is for other data, or another order: {differences}",
                hint="give the loader the index of the run that saved it, and its order: "
                f"{render_order_argument(state)}",
            )

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; where the position is in it already, as after a restore, nothing changes.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ValueError: The epoch has passed: its samples would come again.

        Example:
            With a `loader` and a function `train_step`:

                for epoch in range(loader.epoch, 2):
                    loader.set_epoch(epoch)
                    for batch in loader:
                        train_step(batch)
        """
        if epoch == self.epoch:
            return
        if epoch < self.epoch:
            raise ValueError(
                f"set_epoch({epoch}): the position is in epoch {self.epoch}, and earlier epochs have been trained on; "
                "begin the loop there: for epoch in range(loader.epoch, epochs)"
            )
        self._jump_to_position(epoch * self._elastic.course.samples)

    def _start_iterator(self, *, anew: bool) -> Iterator[Any]:
        """Make torch's iterator over what the trainer has not received."""
        if anew:
            self._iterator = None
        if self._seeds is not None:
            self._seeds.manual_seed(mix_key(torch.initial_seed() & _WORD, self.position, self._elastic.rank) >> 1)
        context = self.multiprocessing_context or multiprocessing
        if context.get_start_method() != "forkserver":  # whose children are not this process's
            if not isinstance(self.worker_init_fn, WorkerStart):
                self._init = self.worker_init_fn  # Lightning sets one of its own
            self.worker_init_fn = WorkerStart(self._init)
        guarded_batches: Any = self.batch_sampler
        with guarded_batches.iteration_allowed():
            return super().__iter__()

    def _jump_to_position(self, position: int) -> None:
        self._loop.held_batch = None
        self._elastic.position = position
        self._loop.jumped = True

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what it is a position in, for a checkpoint.

        The batch that the loop holds is trained on, from now on.

        Returns:
            What `load_state_dict` takes: plain values.
        """
        self.trained()
        return {
            "format": STATE,
            "position": self.position,
            "last": self._elastic.course.last.value,
            **self._describe_data_and_order(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position.

        Args:
            state: What `state_dict` returned, of a loader on any number of ranks and workers.

        Raises:
            CheckpointError: It holds no position, or one in other data or in another order.
        """
        position = self.position_of(state)
        self.refuse_other(state)
        self._epochs_of_others.forget_named_epoch()
        self._replace_order(self._order_for_saved_position(state))
        self._jump_to_position(position)
        self._loop.restored = True

    def _order_for_saved_position(self, state: Mapping[str, Any]) -> SampleOrder:
        """Return the order in which a saved position continues: the one that was given, or the position's."""
        if not self._elastic.may_change:
            return self._elastic.order
        order: SampleOrder = rebuild_saved_order(state, self._elastic.order)
        return order

    def _replace_order(self, order: SampleOrder) -> None:
        """Take another order of the same samples, until another position is loaded."""
        if order == self._elastic.order:
            return
        self._elastic.replace_order(order)
        self._pass_block_size_to_dataset()
        if self._ledger:
            self._ledger.set_data_and_order_of_next_header(self._describe_data_and_order(order))

    def _pass_block_size_to_dataset(self) -> None:
        """Pass the order's block size to the data set, where that reads a block at once."""
        read_by = getattr(self.dataset, "read_by", None)
        if read_by is not None and isinstance(self._elastic.order, ShuffledOrder):
            read_by(self._elastic.order.block)

    def _describe_data_and_order(self, order: SampleOrder | None = None) -> dict[str, Any]:
        return {"data": self._data, **(order or self._elastic.order).described()}

    # --- batches ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps of the epoch, from its beginning."""
        return len(self._elastic)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's is a class of its own
        self._loop.held_batch = None  # an older iterator's
        if self._epochs is not None and self.epoch >= self._epochs:
            return
        self._loop.turn += 1
        turn = self._loop.turn
        if self._ledger and self._loop.jumped:
            self._ledger.write_segment_header(self.position)
        self._loop.jumped = False
        self._loop.restored = False
        loop = None
        if self._loop.prepared:
            loop = AcceleratedLoop(self)
        empty = True
        try:
            for received, batch in self._receive_batches():
                empty = False
                self._loop.held_batch = batch
                if loop is not None:
                    received = loop.send_batch_to_device(
                        received, is_last_batch=self._elastic.course.is_last_of_epoch(batch.batch.step)
                    )
                yield received
                self._refuse_outdated_iterator(turn)
                if self._loop.jumped:
                    return  # set_epoch was called in the loop's body
                self.trained()
        finally:
            if loop:
                loop.unregister_loader()
            if turn == self._loop.turn:
                self._count_held_batch_or_drop_it()
        if empty:
            # What was left of the epoch is no step of so many ranks.
            self._jump_to_position((self.epoch + 1) * self._elastic.course.samples)

    def _receive_batches(self) -> Iterator[tuple[Any, HeldBatch]]:
        """Yield batches from the position to the end of its epoch."""
        expected = self._elastic.rank_batches_until_epoch_end(self.position)
        coming = None
        if hasattr(self.dataset, "ahead") and not self.num_workers:
            coming = ComingSamples(
                self.dataset, self._elastic.rank_batches_until_epoch_end(self.position), self._elastic.batch_size
            )
        batches = batches_replacing_failed_workers(
            self._start_iterator, keep_workers=self.persistent_workers, stuck_after=self._stuck_after
        )
        first = True
        for received in LOOP.iter_counting_waits(batches):
            batch = next(expected)
            bad: tuple[tuple[int, str], ...] = ()
            if self._bad is not None:
                received, bad = received
                self._bad.add_and_enforce_limit(bad)
            self._loop.fillers = batch.fillers
            if coming:
                coming.count_batch_and_prefetch_next()
            yield received, HeldBatch(batch, bad, first)
            first = False

    def _count_held_batch_or_drop_it(self) -> None:
        """After a loop has ended, count the batch that it held as trained on, or drop it, so that it comes again.

        Behind the last batch of an epoch nothing can be asked for, so it counts, unless it was all that the loop had.
        """
        batch = self._loop.held_batch
        if batch is None:
            return
        if not batch.first and self._elastic.course.is_last_of_epoch(batch.batch.step):
            self.trained()
            return
        self._loop.held_batch = None
        if not batch.first and not self._loop.warned:
            self._loop.warned = True
            log.warning(
                "a loop over the loader was left before its last batch counted as trained, so the batch comes again: "
                "call loader.trained(), or save, before the break"
            )

    def _refuse_outdated_iterator(self, turn: int) -> None:
        if turn != self._loop.turn:
            raise DataError(
                "another iterator of this ElasticLoader was started later: both would share one position",
                hint="run one loop at a time; for other data, such as an evaluation, create another loader",
            )
        if self._loop.restored:
            raise DataError(
                f"the position of this ElasticLoader was restored to {self.position} after this iterator had returned "
                "a batch: its next batches are those of the position before",
                hint="restore before the first batch is requested, or begin another loop over the loader afterwards",
            )

    # --- what other programs ask for -----------------------------------------------------------------------------

    @property  # torch sets one that gives all samples in a row
    def sampler(self) -> EpochSetter:
        """See EpochSetter."""
        return self._epochs_of_others

    @sampler.setter
    def sampler(self, other: object) -> None:
        """torch's own is not kept."""

    use_stateful_dataloader = True
    """Accelerate keeps its `state_dict`."""

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Asked by Accelerate's `prepare`, which gives it back as it is then."""
        self._loop.prepared = True
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, other: object) -> None:
        """It is always."""


# Which samples come soon, told to a data set that can read them meanwhile.

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


# A trainer that does not catch DataUnavailable ends with its exit code, which `job run` reads as lost storage.


class _ExitHook:
    """Shows an exception as the hook before it does, and ends with its code where it is ours."""

    def __init__(self) -> None:
        self._previous_hook = sys.excepthook

    def __call__(self, kind: type[BaseException], err: BaseException, trace: TracebackType | None) -> None:
        self._previous_hook(kind, err, trace)
        if isinstance(err, DataUnavailable):
            raise SystemExit(err.exit_code)


def install_outage_excepthook() -> None:
    """Install an excepthook that ends this process with the exit code of an uncaught DataUnavailable.

    Once is enough; a hook that is set later takes its place.
    """
    if not isinstance(sys.excepthook, _ExitHook):
        sys.excepthook = _ExitHook()
