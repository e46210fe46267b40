"""The HF Trainer over an ElasticLoader: each sample once an epoch, and after `resume_from_checkpoint` the same batches.

The position is written into the checkpoint's `trainer_state.json`, which the Trainer writes last. A checkpoint without
one does not count.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from hyperpod_kit.data.loading.loader import ElasticLoader
from hyperpod_kit.data.loading.position import Last
from hyperpod_kit.errors import CheckpointError, Untrusted
from hyperpod_kit.untrusted import files, parse
from hyperpod_kit.untrusted.text import counted

log = logging.getLogger("hyperpod_kit.data")

_STATE_FILE = "trainer_state.json"
_CALLBACK_NAME = "DataPosition"
_MAX_STATE_BYTES = 256 << 20
"""Bytes of the Trainer's state, which has all that was logged."""
_CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")


class ElasticTraining:
    """Put before a Trainer: `class MyTrainer(ElasticTraining, SFTTrainer)`; ElasticTrainer is this before Trainer.

    The training data must be map-style: an IndexedDataset, PackedDataset, a map-style HF data set. `order` and `ledger`
    are those of ElasticLoader; the seed is `data_seed` or `seed`. Samples that do not fill a step are dropped with
    `dataloader_drop_last`, else the step is filled up. Ranks, workers, and per_device_train_batch_size may be others
    after a resume, as long as a step has as many samples in all (ranks x per device x gradient_accumulation_steps).
    `max_steps` of more than `num_train_epochs` epochs raises ValueError before the training.
    """

    def __init__(self, *args: Any, order: Any = None, ledger: str | None = None, **options: Any) -> None:
        self._order = order
        self._ledger = ledger
        self._position: dict[str, Any] | None = None
        super().__init__(*args, **options)
        its: Any = self
        its.args.ignore_data_skip = True  # the loader begins where it was; there is nothing to skip
        its.add_callback(DataPosition())

    def data_rank(self) -> tuple[int, int]:
        """(rank, ranks) among those that get other data. With tensor or context parallelism, override it."""
        its: Any = self
        return its.args.process_index, its.args.world_size

    def train(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """See Trainer. True: from the newest checkpoint in `output_dir` that has a position."""
        its: Any = self
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = newest_checkpoint(its.args.output_dir)
            if checkpoint is None:
                raise ValueError(f"{its.args.output_dir} has no checkpoint with a position to resume from")
        self._position = None
        if checkpoint:
            self._position = read_checkpoint_position(str(checkpoint))
        above: Any = super()
        return above.train(resume_from_checkpoint=checkpoint or None, **options)

    def get_train_dataloader(self) -> TrainerLoader:
        """See Trainer. Raises ValueError, and CheckpointError for a position in other data."""
        its: Any = self
        args, dataset = its.args, its.train_dataset
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ValueError(
                f"the training data is a {type(dataset).__name__}, expected a map-style data set with a length: "
                "hyperpod-kit data index SRC, and IndexedDataset of it"
            )
        rank, ranks = self.data_rank()
        loader = TrainerLoader(
            dataset,
            args.train_batch_size,
            accumulated=args.gradient_accumulation_steps,
            collate_fn=its.data_collator,
            order=self._order,
            seed=args.data_seed if args.data_seed is not None else args.seed,
            rank=rank,
            ranks=ranks,
            last=Last.DROP if args.dataloader_drop_last else Last.PAD,
            ledger=self._ledger,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        self._refuse_more_steps_than_data(loader)
        if self._position is not None:
            loader.resume_from_state(self._position)
        return loader

    def _refuse_more_steps_than_data(self, loader: TrainerLoader) -> None:
        its: Any = self
        steps, epochs = loader.steps_per_epoch, its.args.num_train_epochs
        there = math.ceil(epochs * steps)
        if its.args.max_steps > there:
            raise ValueError(
                f"max_steps={its.args.max_steps} is more than {there}, the steps in "
                f"{counted(epochs, 'epoch', spec='g')} of {counted(steps, 'step')} each: set "
                f"num_train_epochs={math.ceil(its.args.max_steps / steps)}, or max_steps={there}"
            )


class ElasticTrainer(ElasticTraining, Trainer):  # type: ignore[misc]  # transformers has no types
    """See ElasticTraining."""


class DataPosition(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers has no types
    """Notes the position at the end of each step, which the Trainer writes into its checkpoints."""

    def __init__(self) -> None:
        self.position: dict[str, Any] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **arguments: Any) -> None:
        """See TrainerCallback."""
        loader = arguments.get("train_dataloader")
        if not isinstance(loader, TrainerLoader):
            raise CheckpointError(
                f"the Trainer trains from a {type(loader).__name__}, whose position is not known",
                hint=(
                    "put ElasticTraining before the Trainer in the bases of the class, and do not override "
                    "get_train_dataloader"
                ),
            )
        self.position = loader.state_dict_with_step_size()
        state.epoch = loader.position / loader.sample_order.samples  # the Trainer's own begins at 0 after a resume

    def state(self) -> dict[str, Any]:
        """See ExportableState."""
        return {"args": {}, "attributes": {"position": self.position}}


class TrainerLoader(ElasticLoader):
    """One item of the position is a whole step of the optimizer, which the Trainer takes in `accumulated` batches: so
    an epoch has as many batches as whole steps need, and no checkpoint is in the middle of one."""

    def __init__(
        self, dataset: Any, batch_size: int, *, accumulated: int, collate_fn: Callable[[Any], Any], **options: Any
    ) -> None:
        self._accumulated = accumulated
        pieces = StepBatches(collate_fn, batch_size)
        super().__init__(dataset, batch_size * accumulated, collate_fn=pieces, **options)

    @property
    def steps_per_epoch(self) -> int:
        """Count the optimizer's steps in an epoch."""
        return super().__len__()

    def state_dict_with_step_size(self) -> dict[str, Any]:
        """Describe the position for a checkpoint, with what the Trainer's own count of steps depends on."""
        return {**self.state_dict(), "samples_of_a_step": self.samples_of_a_step}

    def resume_from_state(self, state: dict[str, Any]) -> None:
        """Go to a position of a checkpoint. Raises CheckpointError."""
        if state.get("samples_of_a_step") != self.samples_of_a_step:
            raise CheckpointError(
                f"a step has {counted(self.samples_of_a_step, 'sample')}, but had {state.get('samples_of_a_step')} "
                "in the checkpoint; the Trainer counts steps",
                hint="keep ranks x per_device_train_batch_size x gradient_accumulation_steps unchanged",
            )
        self.load_state_dict(state)

    @property
    def samples_of_a_step(self) -> int:
        """Count the samples of a step on all ranks."""
        return self._elastic.samples_per_step

    def __len__(self) -> int:
        return self.steps_per_epoch * self._accumulated

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's is a class of its own
        for batches in super().__iter__():
            yield from batches


class StepBatches:
    """Samples of a step -> its batches."""

    def __init__(self, collate: Callable[[Any], Any], size: int) -> None:
        self._collate = collate
        self._size = size

    def __call__(self, samples: Sequence[Any]) -> list[Any]:
        return [self._collate(samples[at : at + self._size]) for at in range(0, len(samples), self._size)]


def newest_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Find the newest `checkpoint-N` in a directory that is whole: `trainer.train(resume_from_checkpoint=…)` of it, or
    None at the first start.

    What a kill left half-written is passed over.
    """
    checkpoints = sorted(
        (
            (int(match[1]), path)
            for path in Path(folder).glob("checkpoint-*")
            if (match := _CHECKPOINT_NAME.fullmatch(path.name))
        ),
        reverse=True,
    )
    for _, path in checkpoints:
        try:
            read_checkpoint_position(path)
        except CheckpointError as err:
            log.warning("passed over: %s", err)
            continue
        return str(path)
    return None


def read_checkpoint_position(checkpoint: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the position that a Trainer's checkpoint holds. Raises CheckpointError."""
    path = Path(checkpoint, _STATE_FILE)
    try:
        state = parse.parse_json_object(files.read_file_or_pipe(str(path), _MAX_STATE_BYTES), _MAX_STATE_BYTES)
        position = state["stateful_callbacks"][_CALLBACK_NAME]["attributes"]["position"]
    except (OSError, Untrusted, ValueError, KeyError, TypeError) as err:
        raise CheckpointError(
            f"{checkpoint} has no position in {_STATE_FILE}: {type(err).__name__}: {err}",
            hint="the file is truncated, or was not written by an ElasticTrainer",
        ) from None
    if not isinstance(position, dict) or not position:
        raise CheckpointError(
            f"{path}: position {position!r}", hint="it does not belong to a step of an ElasticTrainer"
        )
    return position
