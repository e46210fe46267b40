"""torch.distributed.checkpoint's three words over this engine: `dcp = Checkpoints(root)` in the place of the import.

A save is a copy in shared memory; a load takes the newest checkpoint that all ranks can prove, from memory where it
still lies there. The reader and writer of `hyperpod_kit.checkpoint.dcp`, for torch's own functions, know storage alone;
they read the same files and name the tensors alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from hyperpod_kit.checkpoint.adapters.roots import RootPath, resolve_root
from hyperpod_kit.checkpoint.dcp import checkpoint_location
from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.restore.loading import load_state
from hyperpod_kit.checkpoint.restore.results import Fresh, Restored
from hyperpod_kit.checkpoint.saves.handle import Handle, SaveState
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.errors import CheckpointError

_NUMBER = re.compile(r"\d+")

PathEndingInStep = str | os.PathLike[str]
"""What torch calls a checkpoint_id when it saves: only the number that it ends in counts, as the step."""

RootOrCheckpointPath = str | os.PathLike[str]
"""What torch calls a checkpoint_id when it loads: ROOT/CHECKPOINT, or any other text, which means the newest."""


class Checkpoints:
    """`save`, `async_save` and `load` as torch.distributed.checkpoint has them, for one run. Every rank makes it, after
    init_process_group, and ends with `close` or the end of a `with` block, as with Manager.

    `root`: a directory on storage that all nodes share, or s3://bucket/prefix; None: that of `hyperpod-kit job run`.
    `own` names what plain tensors are each rank's own (see StateDict; any other the ranks hold alike). `options` are
    those of Manager: `keep` is the newest three unless it says otherwise. Raises CheckpointError without a root, and
    what Manager raises.
    """

    def __init__(self, root: RootPath | None = None, *, own: Iterable[str] = (), **options: Any) -> None:
        self.manager = Manager(resolve_root(root), **options)
        self._per_rank_patterns = tuple(own)

    def save(
        self,
        state_dict: dict[str, Any],
        *,
        checkpoint_id: PathEndingInStep | None = None,
        step: int | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Handle:
        """As `async_save`, and wait until it is durable. A save that finds no room waits for it. Raises CheckpointError
        when it never will be durable."""
        state = StateDict(state_dict, own=self._per_rank_patterns)
        handle = self.manager.save(
            step_or_number_in_checkpoint_id(step, checkpoint_id), state, on_busy="wait", metrics=metrics
        )
        if not handle.wait():
            raise _save_error(handle)
        return handle

    def async_save(
        self,
        state_dict: dict[str, Any],
        *,
        checkpoint_id: PathEndingInStep | None = None,
        step: int | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Future[Handle]:
        """Copy the state into shared memory and return: the weights may change then. No collective.

        The future's result comes when the save is durable, a CheckpointError when it was skipped (earlier ones were
        still on their way), dropped or failed. The step just completed is `step`, else the last number in
        `checkpoint_id`, which says nothing else. Raises ValueError without a step, and what `Manager.save` raises.
        """
        state = StateDict(state_dict, own=self._per_rank_patterns)
        handle = self.manager.save(step_or_number_in_checkpoint_id(step, checkpoint_id), state, metrics=metrics)
        done: Future[Handle] = Future()
        done.set_running_or_notify_cancel()  # it cannot be cancelled

        def ended(handle: Handle) -> None:
            if handle.state == SaveState.DURABLE:
                done.set_result(handle)
            else:
                done.set_exception(_save_error(handle))

        handle.add_done_callback(ended)
        return done

    def load(
        self, state_dict: dict[str, Any], *, checkpoint_id: RootOrCheckpointPath | None = None
    ) -> Restored | Fresh:
        """Fill the state dict in place from the newest checkpoint that all ranks can prove. Fresh, and the state dict
        as it was, where nothing was ever committed.

        ROOT/ATTEMPT as `checkpoint_id` means that one, from storage; any other text means nothing. Raises what
        `Manager.restore` raises: CheckpointError for what is not in the checkpoint.
        """
        state = StateDict(state_dict, own=self._per_rank_patterns)
        location = None
        if checkpoint_id is not None:
            location = checkpoint_location.parse(checkpoint_id)
        if location is not None and location.checkpoint_id:
            return load_state(location.root or self.manager.root, state, checkpoint_id=location.checkpoint_id)
        return self.manager.restore(state)

    def close(self) -> bool:
        """See Manager.close: whether the newest save is durable."""
        return self.manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.manager.__exit__(kind, error, trace)


def step_or_number_in_checkpoint_id(step: int | None, checkpoint_id: PathEndingInStep | None) -> int:
    """Return `step`, else the last number in the last part of `checkpoint_id`. Raises ValueError where
    there is neither."""
    if step is not None:
        return step
    numbers = _NUMBER.findall(os.path.basename(os.fspath(checkpoint_id or "").rstrip("/")))
    if not numbers:
        raise ValueError(
            f"the step is unknown: give step=, or a checkpoint_id that ends in the step; found {checkpoint_id!r}"
        )
    return int(numbers[-1])


def _save_error(handle: Handle) -> CheckpointError:
    return CheckpointError(f"the save of step {handle.step} is {handle.state}: {handle.reason}")
