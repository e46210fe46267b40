"""torchtitan with this engine under it: `install()` before torchtitan's `main`.

torchtitan's CheckpointManager keeps its configuration and its words: which states there are, when a save is due, what
is left out of a load. What it would have written through torch.distributed.checkpoint is one save of ours, and its load
takes the newest checkpoint that all ranks can prove.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torchtitan.components.checkpoint import MODEL, CheckpointManager

from hyperpod_kit.checkpoint.adapters.roots import RootPath, resolve_root
from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.checkpoint.restore.results import Fresh, Restored
from hyperpod_kit.checkpoint.saves.handle import Handle
from hyperpod_kit.checkpoint.saves.preemption_signal import REQUEUE_EXIT_CODE
from hyperpod_kit.checkpoint.state import randomness
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.errors import CheckpointError

_GENERATORS = "generators"
_DATA = "dataloader"


class CheckpointedManager(CheckpointManager):  # type: ignore[misc]  # torchtitan is not asked for its types
    """CheckpointManager of torchtitan, whose `checkpoint` settings mean what they did, except that `folder` and
    `async_mode` say nothing here.

    `root`: a directory on storage that all nodes share, or s3://bucket/prefix; by default the root of `hyperpod-kit job
    run`, else `checkpoints` in `dump_folder`. `options` are those of Manager; `keep` is torchtitan's `keep_latest_k`
    unless they say otherwise. Set both in a subclass, or through `install`.
    """

    root: ClassVar[RootPath | None] = None
    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, *args: Any, base_folder: str = "", **more: Any) -> None:
        super().__init__(*args, base_folder=base_folder, **more)
        self._manager: Manager | None = None
        self._state: StateDict | None = None
        self.newest: Handle | None = None
        self.found: Restored | Fresh | None = None
        if not self.enable:
            return
        if getattr(self, "enable_ft_dataloader_checkpoints", False):
            raise CheckpointError(
                "CheckpointedManager does not support torchft", hint="use torchtitan's own CheckpointManager"
            )
        self.states[_GENERATORS] = _Generators()
        retention = None
        if self.keep_latest_k > 0:
            retention = policy.Latest(self.keep_latest_k)
        options = {"keep": retention, **self.options}
        self._manager = Manager(resolve_root(self.root, base_folder or "."), **options)

    @torch.no_grad()
    def load(self, step: int = -1) -> bool:
        """Bring all states to the newest checkpoint that all ranks can prove; True. Where nothing was ever committed
        torchtitan loads what it would have loaded (its own checkpoints in `folder`, `initial_load_path`).

        Raises what `Manager.restore` raises, and CheckpointError for a `load_step` where there are checkpoints.
        """
        if self._manager is None:
            return bool(super().load(step))
        states = self._states_to_load(False)
        self.found = self._manager.restore(StateDict(states, own=[_GENERATORS]))
        if isinstance(self.found, Fresh):
            generators = self.states.pop(_GENERATORS)  # what torchtitan has written has none
            try:
                return bool(super().load(step))
            finally:
                self.states[_GENERATORS] = generators
        if step not in (-1, self.found.step):
            raise CheckpointError(
                f"load_step is {step}, and the newest checkpoint in {self._manager.root} is of step {self.found.step}",
                hint=f"hyperpod-kit job rewind {self._manager.root} ATTEMPT goes back to an earlier one",
            )
        if MODEL in self.states:
            self.states[MODEL].load_state_dict(states)
        return True

    @torch.no_grad()
    def save(self, curr_step: int, last_step: bool = False) -> bool:
        """Copy all states into shared memory where torchtitan would have saved, and at once after a signal (Manager's
        `save_on_signal`), which ends the process with SystemExit(75). A save that finds earlier ones still on their way
        is skipped, with a warning; the last one waits for room. `last_save_model_only` writes torchtitan's own files of
        the weights besides."""
        if self._manager is None:
            return bool(super().save(curr_step, last_step))
        reached, ending = self._manager.reached(curr_step), self._manager.ending
        if not self._should_save(curr_step, last_step) and reached and not ending:
            return False
        if self._state is None:
            self._state = StateDict({}, own=[_GENERATORS])
        self._state.extra = self._flattened_model_states_sd()
        on_busy = "skip"
        if last_step or ending:
            on_busy = "wait"
        self.newest = self._manager.save(curr_step, self._state, on_busy=on_busy)  # type: ignore[arg-type]
        if ending:
            self.close()
            raise SystemExit(REQUEUE_EXIT_CODE)
        if last_step and self.last_save_model_only:
            self._save_last_step(curr_step)
        return True

    def close(self) -> None:
        """See CheckpointManager. Returns when the newest save is durable, and raises CheckpointError when it will not
        be; where training has ended with an exception nothing is waited for."""
        manager, self._manager = getattr(self, "_manager", None), None
        super().close()
        if manager is not None:
            manager.__exit__(*sys.exc_info())


class _Generators:
    """torch's and Python's, which torchtitan leaves out of its checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        return randomness.capture()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        randomness.restore(saved)


def install(root: RootPath | None = None, **options: Any) -> type[CheckpointedManager]:
    """torchtitan's trainers make a CheckpointedManager from now on; see there for the arguments."""
    import torchtitan.train

    manager_class = type(CheckpointedManager.__name__, (CheckpointedManager,), {"root": root, "options": options})
    torchtitan.train.CheckpointManager = manager_class
    return manager_class
