"""Lightning with this engine under it: `Trainer(callbacks=[CheckpointedFit(every=100)])`.

Lightning keeps its loops and its words: what it would have written beside tensors (loops, schedulers, callbacks, the
loader's place) is one of the objects of a State, and what a restore finds is handed to it as the checkpoint that it
would have read itself.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from typing import Any

from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from hyperpod_kit.checkpoint.adapters.roots import RootPath, resolve_root
from hyperpod_kit.checkpoint.convert.formats.lightning import LIGHTNING, lightning_checkpoint
from hyperpod_kit.checkpoint.dcp import checkpoint_location
from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.restore.results import Restored
from hyperpod_kit.checkpoint.saves.arguments import OnBusy
from hyperpod_kit.checkpoint.saves.handle import Handle
from hyperpod_kit.checkpoint.saves.preemption_signal import REQUEUE_EXIT_CODE
from hyperpod_kit.checkpoint.state.state import State

_TENSORS = ("state_dict", "optimizer_states")
"""Of a checkpoint of Lightning's, what is in the State itself."""


class CheckpointedFit(Callback):  # type: ignore[misc]  # lightning is not asked for its types
    """Saves in `fit` after so many steps and at its end. At its beginning it restores the newest checkpoint that all
    ranks can prove, in the middle of an epoch too, where the loader has a `state_dict`.

    `every` counts steps of optimizers (`global_step`). `options` are those of Manager; `keep` is the newest three
    unless it says otherwise. `checkpoint_root`: a directory on storage that all nodes share, or s3://bucket/prefix; by
    default the root of `hyperpod-kit job run`, else `checkpoints` in the Trainer's `default_root_dir`. `metrics` names
    what of the Trainer's `callback_metrics` is kept with each checkpoint, for `keep=Best(...)`.
    `fit` returns when the newest save is durable, and raises CheckpointError when it came to nothing. Where there is a
    checkpoint, `ckpt_path` is not looked at. With `save_on_signal=True` `fit` ends with SystemExit(75) after SIGUSR1 or
    SIGTERM, the step saved.
    """

    def __init__(
        self,
        checkpoint_root: RootPath | None = None,
        *,
        every: int,
        metrics: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._root = checkpoint_root
        self._every = every
        self._options = options
        self._metrics = tuple(metrics)
        self._manager: Manager | None = None
        self._state = State()
        self._step = -1
        self._waited = -1
        self._newest: Handle | None = None
        self._resumed: dict[str, Any] | None = None
        self._evaluation = contextlib.ExitStack()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """See Callback: model and optimizers are where they belong by now."""
        self._manager = Manager(resolve_root(self._root, trainer.default_root_dir), **self._options)
        metadata = _LightningMetadata(trainer)
        first, *other_optimizers = trainer.optimizers or [None]
        objects: dict[str, Any] = {
            f"optimizer{number}": optimizer for number, optimizer in enumerate(other_optimizers, 1)
        }
        objects[LIGHTNING] = metadata
        self._state = State(trainer.strategy.model, first, **objects)
        restored = self._manager.restore(self._state)
        if not isinstance(restored, Restored):
            return
        self._step = self._waited = restored.step
        self._resumed = metadata.restored
        connector = trainer._checkpoint_connector
        connector._loaded_checkpoint = {
            **metadata.restored,
            "state_dict": pl_module.state_dict(),
            "optimizer_states": [optimizer.state_dict() for optimizer in trainer.optimizers],
        }
        # What it has done by now where it reads a file; the rest it does next.
        connector.restore_model()
        connector.restore_datamodule()
        connector.restore_callbacks()
        # What a run keeps of its end is in the callback alone: it would train to the next look at what is monitored.
        if any(callback.wait_count >= callback.patience for callback in trainer.early_stopping_callbacks):
            trainer.should_stop = True

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """See Callback: the loaders' iterators were made since the restore, which draws numbers."""
        loaders = trainer.fit_loop._combined_loader
        samplers: set[str] = set()
        if loaders:
            samplers = {_unrepeatable_sampler_class_name(loader) for loader in loaders.flattened}
        for name in sorted(samplers - {""}):
            warnings.warn(
                "a run that resumes in the middle of an epoch receives the rest of the epoch in another order: the "
                f"order of {name} does not depend only on a seed and the epoch; give the loader a DistributedSampler",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._resumed is not None:
            _seek_loaders_and_generators(trainer.fit_loop, self._resumed, self._state)
            self._resumed = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """See Callback. Between the steps of accumulated gradients nothing is saved."""
        if self._manager is None or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        due = not self._manager.reached(self._step) or self._step % self._every == 0
        if due or self._manager.ending:
            self._save(trainer, wait_for_room=self._manager.ending or self._step == trainer.max_steps)
        if self._manager.ending:  # out of `fit`: `on_exception` waits for the save
            raise SystemExit(REQUEUE_EXIT_CODE)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """See Callback: the watch for jobs that hang knows of it."""
        if self._manager is not None:
            self._evaluation.enter_context(self._manager.evaluation())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._evaluation.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """See Callback: the last step is saved, and waits for room."""
        # What became of a save that did not wait may differ between ranks, and all must do the same here.
        if self._manager is not None and trainer.global_step == self._step != self._waited:
            self._save(trainer, wait_for_room=True)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """See Callback: nothing is waited for, the agent goes on alone."""
        if self._manager is not None:
            self._manager.__exit__(type(exception), exception, exception.__traceback__)
            self._manager = None

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """See Callback. Raises CheckpointError when the newest save is not durable."""
        manager, self._manager, self._state = self._manager, None, State()
        if manager is not None:
            manager.__exit__(None, None, None)

    def _save(self, trainer: Any, *, wait_for_room: bool) -> None:
        assert self._manager is not None
        if wait_for_room:
            on_busy: OnBusy = "wait"
        else:
            on_busy = "skip"
        self._newest = self._manager.save(
            self._step, self._state, on_busy=on_busy, metrics=self._selected_metrics(trainer)
        )
        if wait_for_room:
            self._waited = self._step

    def _selected_metrics(self, trainer: Any) -> dict[str, float]:
        callback_metrics = trainer.callback_metrics
        return {name: float(callback_metrics[name]) for name in self._metrics if name in callback_metrics}


class ProvedCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]  # see above
    """`Trainer(plugins=[ProvedCheckpointIO()])`: `ckpt_path` may be a root of checkpoints or ROOT/ATTEMPT, for `test`,
    `validate` and `predict`, every byte proved; files are Lightning's own business, as before."""

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """See CheckpointIO. Raises NoValidCheckpoint, StorageUnreadable, CheckpointError, OSError."""
        location = checkpoint_location.parse(path)
        if os.path.isfile(path) or not location.root:
            checkpoint: dict[str, Any] = super().load_checkpoint(path, *args, **options)
            return checkpoint
        return lightning_checkpoint(location.root, attempt=location.checkpoint_id or None)


def _unrepeatable_sampler_class_name(loader: Any) -> str:
    """Return the class name of the loader's sampler, where a resumed run cannot draw the order of an
    epoch once more; else ""."""
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None) or getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSamplerWrapper):  # what it wraps draws anew at each beginning, seen by no state
        sampler = sampler.dataset._sampler
        draws = not (isinstance(sampler, SequentialSampler) or hasattr(sampler, "set_epoch"))
    else:
        draws = isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler))
    if draws:
        return f"{type(sampler).__module__}.{type(sampler).__qualname__}"
    return ""


def _seek_loaders_and_generators(loop: Any, saved: dict[str, Any], state: State) -> None:
    """Bring the loaders and the random number generators to where the run was.

    Lightning makes the iterators before it tells the samplers which epoch it is, so a later epoch
    would go on in the order of the first; and it skips nothing where a loader has no state.
    """
    loaders, fetcher, progress = loop._combined_loader, loop._data_fetcher, loop.epoch_loop.batch_progress
    if loaders is None:  # nothing to train
        return
    for loader in loaders.flattened:
        _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
    if progress.is_last_batch:  # the next epoch begins, and its iterator draws after the save
        state.restore_rng()
        iter(fetcher)
        return
    states = saved["loops"]["fit_loop"]["state_dict"].get("combined_loader")
    if states:
        loaders._load_state_dicts(states)
    iter(fetcher)
    if not states:
        for _ in range(progress.current.ready):
            next(fetcher)
        fetcher.fetched = 0  # Lightning counts them itself
    state.restore_rng()


class _LightningMetadata:
    """What Lightning says of a run beside tensors: asked for at each save, kept at a restore."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.restored: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        dumped = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        return {name: value for name, value in dumped.items() if name not in _TENSORS}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.restored = saved
