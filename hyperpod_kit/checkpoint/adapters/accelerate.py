"""Accelerate with this engine under it: `CheckpointedAccelerator` in the place of `Accelerator`.

`save_state` and `load_state` keep their places in the script. What `prepare` and `register_for_checkpointing` were
given is one State of ours; where the data goes on is the script's business (`skip_first_batches`), and the generators
are put back behind it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import SeedableRandomSampler
from accelerate.utils import DistributedType
from torch.utils.data import RandomSampler

from hyperpod_kit.checkpoint.adapters.dcp import step_or_number_in_checkpoint_id
from hyperpod_kit.checkpoint.adapters.roots import RootPath, resolve_root
from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.restore.results import Fresh, Restored
from hyperpod_kit.checkpoint.saves.arguments import OnBusy
from hyperpod_kit.checkpoint.saves.handle import Handle
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.errors import CheckpointError

_REFUSED = (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA)
_STEP = "accelerator_step"


class CheckpointedAccelerator(Accelerator):  # type: ignore[misc]  # accelerate is not asked for its types
    """`checkpoint_root`: a directory on storage that all nodes share, or s3://bucket/prefix; by default the root of
    `hyperpod-kit job run`, else `checkpoints` in `project_dir`. `checkpoint_options` are those of Manager; `keep` is
    the newest three unless they say otherwise.

    Raises CheckpointError under DeepSpeed, Megatron-LM and XLA, and where there is no root.
    """

    def __init__(
        self,
        *args: Any,
        checkpoint_root: RootPath | None = None,
        checkpoint_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if self.distributed_type in _REFUSED:
            raise CheckpointError(
                f"CheckpointedAccelerator does not support {self.distributed_type.value}",
                hint="use Accelerator instead",
            )
        root = resolve_root(checkpoint_root, self.project_configuration.project_dir)
        self._root, self._options = root, dict(checkpoint_options or {})
        self._manager: Manager | None = None
        self._state = State()
        self._skipping = False
        self._wrapped: dict[int, Any] = {}
        self.found: Restored | Fresh | None = None

    def prepare_model(self, model: Any, *args: Any, **options: Any) -> Any:
        """See Accelerator, which forgets what it has wrapped the model into."""
        prepared = self._wrapped[id(model)] = super().prepare_model(model, *args, **options)
        return prepared

    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *_: Any,
        step: int | None = None,
        on_busy: OnBusy = "wait",
        **__: Any,
    ) -> Handle:
        """Copy everything that was prepared and registered into shared memory, and return.

        The step just completed is `step`, else the last number in `output_dir`, which says nothing else. A save that
        finds earlier ones still on their way waits for room, and ranks compare what they hold together; with
        `on_busy="skip"` it does neither, see `Manager.save`. Raises ValueError without a step,
        CheckpointError before `load_state`, and what `Manager.save` raises.
        """
        if self._manager is None:
            raise CheckpointError("save_state before load_state", hint="call accelerator.load_state() after prepare()")
        self._state.extra[_STEP] = self.step
        return self._manager.save(step_or_number_in_checkpoint_id(step, output_dir), self._state, on_busy=on_busy)

    def load_state(self, input_dir: object = None, *_: Any, **__: Any) -> int:
        """Bring everything to the newest checkpoint that all ranks can prove, and return its step; 0, and everything as
        it was, where nothing was ever committed. Call it once at each start, after `prepare` and
        `register_for_checkpointing`. `input_dir` says nothing; `found` has more to say afterwards.

        Raises what `Manager.restore` raises.
        """
        if self._manager is None:
            self._manager = Manager(self._root, **self._options)
        self._state = self._collect_state()
        restored = self.found = self._manager.restore(self._state)
        if isinstance(restored, Restored):
            self.step = self._state.extra[_STEP]
            self._skipping = True
        for loader in self._dataloaders:
            if _has_unrepeatable_order(loader):
                warnings.warn(
                    "a run that resumes in the middle of an epoch receives the rest of the epoch in another order: "
                    "give Accelerator dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)",
                    RuntimeWarning,
                    stacklevel=2,
                )
        if isinstance(restored, Restored):
            return restored.step
        return 0

    def export_state(self, output_dir: str | os.PathLike[str], **options: Any) -> str:
        """Write what was prepared and registered as Accelerator's own `save_state` does, in its own layout, which
        `load_state` of a plain Accelerator reads without us; returns where that is. Right after `load_state` it is the
        checkpoint that was restored. All ranks call it; it is waited for, and not proved when it is read.
        `options` and what is raised are those of Accelerator's."""
        directory: str = super().save_state(os.fspath(output_dir), **options)
        return directory

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """See Accelerator. The first time after a restore the generators are put back when the first batch has come,
        which was drawn before the save; without batches to skip, the loader as it is."""
        if num_batches == 0:
            self._skipping = False
            return dataloader
        if hasattr(dataloader, "set_epoch"):
            dataloader.set_epoch(dataloader.iteration)  # the sampler is shared, and knows no epoch yet
        loader = super().skip_first_batches(dataloader, num_batches)
        if hasattr(loader, "iteration"):
            loader.iteration = dataloader.iteration  # accelerate before 1.13 begins to count anew
        resumed, self._skipping = self._skipping, False
        if resumed:
            return _Resumed(loader, self._state)
        return loader

    def end_training(self) -> None:
        """See Accelerator. Returns when the newest save is durable; raises CheckpointError when it will not be."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.__exit__(None, None, None)
        super().end_training()

    def _collect_state(self) -> State:
        if self.scaler is not None:
            parts: dict[str, Any] = {"scaler": self.scaler}
        else:
            parts = {}
        models = [self._wrapped.get(id(prepared), prepared) for prepared in self._models]
        kinds = {"model": models[1:], "optimizer": self._optimizers[1:]}
        for kind, objects in kinds.items():
            parts.update((f"{kind}{number}", thing) for number, thing in enumerate(objects, 1))
        stateful = [loader for loader in self._dataloaders if getattr(loader, "use_stateful_dataloader", False)]
        by_kind = {"scheduler": self._schedulers, "loader": stateful, "registered": self._custom_objects}
        for kind, objects in by_kind.items():
            parts.update((f"{kind}{number}", thing) for number, thing in enumerate(objects))
        model, optimizer = next(iter(models), None), next(iter(self._optimizers), None)
        return State(model, optimizer, extra={}, **parts)


class _Resumed:
    """A loader that puts the generators back when its first batch has come."""

    def __init__(self, loader: Any, state: State) -> None:
        self._loader, self._state = loader, state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            if number == 0:
                self._state.restore_rng()
            yield batch


def _has_unrepeatable_order(loader: Any) -> bool:
    """Whether a resumed run cannot draw the order of an epoch once more."""
    if getattr(loader, "use_stateful_dataloader", False) or not hasattr(loader, "get_sampler"):
        return False
    sampler = loader.get_sampler()
    return isinstance(sampler, RandomSampler) and not isinstance(sampler, SeedableRandomSampler)
