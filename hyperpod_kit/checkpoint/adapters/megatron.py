"""Megatron-core's `dist_checkpointing` over this engine: `dist_checkpointing = MegatronCheckpoints(root)` in the place
of the import.

`save` and `load` take the sharded state dict that Megatron makes, of the model and of the distributed optimizer, so
what TP, PP and DP may be at the next start is Megatron's own business. A save is a copy in shared memory; a load takes
the newest checkpoint that all ranks can prove, from memory where the ranks are divided as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace, merge, nested_values
from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    apply_factory_merges,
    is_main_replica,
)
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess, save_preprocess
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.utils import extract_sharded_base
from megatron.core.dist_checkpointing.validation import determine_global_metadata, validate_sharding_integrity

from hyperpod_kit.checkpoint.adapters.dcp import step_or_number_in_checkpoint_id
from hyperpod_kit.checkpoint.adapters.roots import RootPath, resolve_root
from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.restore.results import CheckpointInfo, Fresh, Restored
from hyperpod_kit.checkpoint.saves.handle import Handle, SaveState
from hyperpod_kit.checkpoint.state.sharded_state import (
    LocalShard,
    ShardedState,
    ShardPlacement,
    agree_placement,
    torch_load_with_length,
    torch_save_with_length_and_padding,
)
from hyperpod_kit.errors import CheckpointError


class MegatronCheckpoints:
    """`save` and `load` as `megatron.core.dist_checkpointing` has them, for one run. Every rank makes it, after
    `initialize_model_parallel`, and ends with `close` or the end of a `with` block, as with Manager.

    `root`: a directory on storage that all nodes share, or s3://bucket/prefix; None: that of `hyperpod-kit job run`.
    With `rng` torch's generators of each rank are saved and put back too. `options` are those of Manager: `keep` is the
    newest three unless it says otherwise, and `compare` None: Megatron lets replicas differ in their last bits, and the
    one that is written counts. Raises CheckpointError without a root, and what Manager raises.
    """

    def __init__(self, root: RootPath | None = None, *, rng: bool = True, **options: Any) -> None:
        self.manager = Manager(resolve_root(root), **{"compare": None, **options})
        self.found: Restored | Fresh | None = None
        self._state = ShardedState(rng=rng)
        self._placement: ShardPlacement | None = None

    def newest(self) -> CheckpointInfo | None:
        """What the newest checkpoint says beside its tensors, its `step` for one; None where nothing was ever
        committed: then there is nothing to load. All ranks call it, at the start, as Manager.inspect."""
        return self.manager.inspect()

    def save(
        self,
        sharded_state_dict: dict[str, Any],
        checkpoint_dir: RootPath | None = None,
        *_: Any,
        step: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        async_sharded_save: bool = False,
        **__: Any,
    ) -> AsyncRequest | None:
        """Copy the state into shared memory, and wait until it is durable; with `async_sharded_save` return at once,
        with a request for Megatron's queue whose end raises when the save came to nothing. Such a save is skipped when
        earlier ones are still on their way. No collective, but for the first save of a run that has loaded nothing.

        The step just completed is `step`, else the last number in `checkpoint_dir`, which says nothing else. What is
        not sharded is each rank's own, and must be plain values and tensors. All further arguments say nothing.
        Raises ValueError without a step, CheckpointError when it never will be durable, and what `Manager.save` raises.
        """
        sharded, common = save_preprocess(sharded_state_dict, False)
        boxes, objects = _split_shards_and_objects_allocating_missing(sharded)
        written = {
            entry.unique_key: torch_save_with_length_and_padding(entry.key, entry.data)
            for entry in objects
            if is_main_replica(entry.replica_id)
        }
        placement = self._placement or self._require_no_checkpoint_and_agree_placement(sharded, boxes, written)
        self._state.set_contents(boxes, written, common, placement)
        on_busy = "wait"
        if async_sharded_save:
            on_busy = "skip"
        number = step_or_number_in_checkpoint_id(step, checkpoint_dir)
        handle = self.manager.save(number, self._state, on_busy=on_busy, metrics=metrics)  # type: ignore[arg-type]
        self._state.set_contents((), {}, {}, placement)
        if async_sharded_save:
            return AsyncRequest(None, (), [_make_failure_check(handle)])
        if not handle.wait():
            raise _save_error(handle)
        return None

    def load(
        self, sharded_state_dict: dict[str, Any], checkpoint_dir: object = None, *_: Any, **__: Any
    ) -> dict[str, Any] | None:
        """The state dict of the newest checkpoint that all ranks can prove, as Megatron's `load` returns it; None where
        nothing was ever committed. Call it once at each start where there is a `newest`, with all that will be saved.

        `checkpoint_dir` and all further arguments say nothing; `found` has more to say afterwards. Raises what
        `Manager.restore` raises, and CheckpointingException when the ranks do not hold each tensor once.
        """
        sharded, local_state, factories = load_preprocess(sharded_state_dict)
        sharded, _rest = extract_sharded_base(sharded)
        boxes, objects = _split_shards_and_objects_allocating_missing(sharded)
        placement = self._validate_sharding_and_agree_placement(
            sharded, boxes, [entry.unique_key for entry in objects if is_main_replica(entry.replica_id)]
        )
        self._state.set_contents(
            boxes,
            {entry.unique_key: torch.empty(0, dtype=torch.uint8, device="cpu") for entry in objects},
            {},
            placement,
        )
        self.found = self.manager.restore(self._state)
        result, object_data = self._state.values, self._state.object_data
        self._state.set_contents((), {}, {}, placement)
        if not isinstance(self.found, Restored):
            return None
        object_data = self._add_missing_objects_from_other_ranks(object_data, {entry.unique_key for entry in objects})

        def loaded(entry: Any) -> Any:
            if isinstance(entry, ShardedTensor):
                return entry.data
            return torch_load_with_length(object_data[entry.unique_key])

        dict_list_map_inplace(loaded, sharded)
        merge(result, local_state)
        merge(result, sharded)
        state_dict: dict[str, Any] = apply_factory_merges(result, factories)
        return state_dict

    def _require_no_checkpoint_and_agree_placement(
        self, sharded: Any, boxes: list[LocalShard], written: dict[str, torch.Tensor]
    ) -> ShardPlacement:
        """Agree before the first save of a run that has loaded nothing which rank holds what, and complete
        the restore of nothing. A collective. Raises CheckpointError when there was something to load."""
        newest = self.newest()
        if newest is not None:
            raise CheckpointError(f"{self.manager.root} holds {newest.checkpoint_id}", hint="call load() before save()")
        placement = self._validate_sharding_and_agree_placement(sharded, boxes, written)
        self._state.set_contents(boxes, written, {}, placement)
        self.found = self.manager.restore(self._state)
        return placement

    def _validate_sharding_and_agree_placement(
        self, sharded: Any, boxes: list[LocalShard], written: Iterable[str]
    ) -> ShardPlacement:
        validate_sharding_integrity(determine_global_metadata(sharded)[1])
        self._placement = agree_placement(self.manager.ranks, boxes, written)
        return self._placement

    def _add_missing_objects_from_other_ranks(self, local: dict[str, bytes], wanted_keys: set[str]) -> dict[str, bytes]:
        """Return the objects that this rank wants, gathered from the ranks that have read them. A
        collective."""
        ranks = self.manager.ranks
        missing = {key for keys in ranks.gather(sorted(wanted_keys - set(local))) for key in keys}
        gathered = []
        if missing:
            gathered = ranks.gather({key: data for key, data in local.items() if key in missing})
        return {key: data for objects in (*gathered, local) for key, data in objects.items()}

    def close(self) -> bool:
        """See Manager.close: whether the newest save is durable."""
        return self.manager.close()

    def __enter__(self) -> MegatronCheckpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.manager.__exit__(kind, error, trace)


def _split_shards_and_objects_allocating_missing(sharded: Any) -> tuple[list[LocalShard], list[Any]]:
    """Return the local shards and the objects of a sharded state dict, with memory for tensors that
    have none. Raises CheckpointError."""
    boxes, objects = [], []
    for entry in nested_values(sharded):
        if isinstance(entry, ShardedObject):
            objects.append(entry)
            continue
        if entry.flattened_range is not None:
            raise CheckpointError(
                f"{entry.key} is a range of a flattened tensor",
                hint="sharded_state_dict(..., metadata={'distrib_optim_sharding_type': 'dp_reshardable'}), or "
                "'dp_zero_gather_scatter' before Megatron-core 0.14",
            )
        if entry.data is None:
            make: Any = torch.empty
            if entry.allow_shape_mismatch:
                make = torch.zeros
            entry.init_data("cpu", make)
        boxes.append(
            LocalShard(
                entry.key,
                entry.data,
                tuple(entry.global_shape),
                tuple(entry.global_offset),
                entry.allow_shape_mismatch,
            )
        )
    return boxes, objects


def _make_failure_check(handle: Handle) -> Callable[[], None]:
    def end() -> None:
        if handle.state in (SaveState.FAILED, SaveState.DROPPED):
            raise _save_error(handle)

    return end


def _save_error(handle: Handle) -> CheckpointError:
    return CheckpointError(f"the save of step {handle.step} is {handle.state}: {handle.reason}")
