"""A nested state dict, as torch.distributed.checkpoint takes it, in the place of a State."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from hyperpod_kit.checkpoint.codec import codec, sharding
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.submeshes import TensorLayout
from hyperpod_kit.checkpoint.state import fsdp1, optimizer, optimizer_state
from hyperpod_kit.checkpoint.state.fitting import Filling
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.checkpoint.state.tensors import Collector, StateTensors, TensorUse, WalkCache
from hyperpod_kit.errors import CheckpointError

_RESERVED = frozenset({"classes", "held", "records", "rng", "save"})


class StateDict(State):
    """`values`: a dict of tensors, dicts, lists and plain values, and at its top of objects with `state_dict` and
    `load_state_dict`, which are asked for theirs at each save and given it back by a restore.

    Names are those of torch.distributed.checkpoint: `model.layers.0.weight`. A tensor is shared by the ranks as weights
    are (DTensors: each its part; plain ones: all the same, which is compared), except below the names in `own`, which
    may have wildcards (`loader`, `*.rng`); everything else is each rank's own. A restore fills what is there, which
    must all be in the checkpoint, and leaves the rest of the checkpoint alone: less here loads less, an empty dict
    takes its whole part. Generators are not in it. Raises ValueError for a name at the top that is reserved.
    """

    def __init__(self, values: dict[str, Any], *, own: Iterable[str] = ()) -> None:
        super().__init__(extra=values, rng=False)
        taken = sorted(_RESERVED.intersection(values))
        if taken:
            raise ValueError(f"{taken[0]!r} is a reserved name at the top of a state dict: use another name")
        self._below = _NamesBelow(own)
        self._live_values: dict[str, Any] = {}

    def check(self, ranks: Ranks) -> None:
        """See State."""
        plain_values = {name: value for name, value in self.extra.items() if not _is_stateful(value)}
        _encoded(plain_values, Collector(ranks, WalkCache(), owned=self._below))

    def tensors(self, ranks: Ranks) -> StateTensors:
        """See State."""
        collector = Collector(ranks, self._cache, owned=self._below)
        return collector.finish_and_add_shared_names({"extra": {}, **_encoded(self._current_values(), collector)})

    def names(self, ranks: Ranks) -> dict[str, TensorLayout]:
        """See State."""
        collector = Collector(ranks, WalkCache(), owned=self._below)
        _encoded(self._current_values(), collector)
        return collector.layouts()

    def targets(self, ranks: Ranks, tree: Mapping[str, Any]) -> StateTensors:
        """See State."""
        for value in self.extra.values():
            if isinstance(value, torch.optim.Optimizer) and optimizer_state.make_state_by_null_step(value):
                self._filling.made.append(value)
        self._live_values = self._current_values()
        missing = sorted(
            path
            for path, live, saved in _leaves(self._live_values, dict(tree))
            if not _is_in_checkpoint_as_same_kind(live, saved)
        )
        if missing:
            raise CheckpointError(
                f"the checkpoint has no {', '.join(missing[:8])}; at its top it has {', '.join(sorted(tree))}",
                hint="leave out of the state dict what was not saved",
            )
        collector = Collector(ranks, self._cache, owned=self._below)
        encoded = _encoded(self._live_values, collector)
        self._filling.match_state_dict_subclasses(tree, encoded, collector)
        return self._finish_under_saved_names(collector, encoded, tree)

    def required_names(self, tree: Mapping[str, Any]) -> set[str]:
        """See State."""
        return {name for _, _, saved in _leaves(self._live_values, dict(tree)) for name in codec.tensor_names(saved)}

    def adopt(self, tree: Mapping[str, Any], loaded: Mapping[str, torch.Tensor]) -> None:
        """See State."""
        live = self._filling.live
        self._filling.assign_loaded_parts(loaded)

        def tensor(name: str) -> torch.Tensor:
            if name in live:
                return live[name]
            return loaded[name]

        for name, value in list(self.extra.items()):
            filled = _merge_saved_values_in_place(self._live_values[name], tree[name], tensor)
            if _is_stateful(value):
                value.load_state_dict(filled)
            else:
                self.extra[name] = filled
        self._filling, self._live_values = Filling(), {}

    def _optimizers_without_state(self) -> list[torch.optim.Optimizer]:
        if any(isinstance(value, torch.nn.Module) and fsdp1.is_used(value) for value in self.extra.values()):
            return []  # whose state dict is a collective
        steppers = [
            optimizer.hookable_optimizer(value)
            for value in self.extra.values()
            if isinstance(value, torch.optim.Optimizer)
        ]
        return [thing for thing in steppers if thing is not None and not thing.state]

    def _current_values(self) -> dict[str, Any]:
        return {name: value.state_dict() if _is_stateful(value) else value for name, value in self.extra.items()}


_MISSING = object()
"""Stands for what the checkpoint does not have."""


class _NamesBelow:
    """Whether a name is one of those, or below one."""

    def __init__(self, names: Iterable[str]) -> None:
        patterns = [fnmatch.translate(more) for name in names for more in (name, f"{name}.*")]
        self._match: re.Pattern[str] | None = None
        if patterns:
            self._match = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))

    def __contains__(self, path: object) -> bool:
        return self._match is not None and self._match.fullmatch(str(path)) is not None


def _encoded(values: Mapping[str, Any], collector: Collector) -> dict[str, Any]:
    def take(path: str, tensor: torch.Tensor) -> str | dict[str, Any]:
        return collector.add_tensor(path, tensor, TensorUse.VALUE)

    return {name: codec.encode(value, name, take) for name, value in values.items()}


def _is_stateful(value: object) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _items_if_walked_into(live: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return (key, value) of a container that is walked into; None for what is one value: an empty
    one, and a list without a tensor in it, whose length may be another in the checkpoint."""
    if isinstance(live, dict):
        if live:
            return live.items()
        return None
    if isinstance(live, (list, tuple)) and any(map(_has_tensor, live)):
        return enumerate(live)
    return None


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) or sharding.is_sharded(value)


def _is_in_checkpoint_as_same_kind(live: Any, saved: codec.Json) -> bool:
    """Return whether what the checkpoint has in this place can be the value's."""
    if saved is _MISSING:
        return False
    return not _is_tensor(live) or (isinstance(saved, dict) and saved.get("$") in ("tensor", "subclass"))


def _has_tensor(live: Any) -> bool:
    if _is_tensor(live):
        return True
    if isinstance(live, dict):
        return any(map(_has_tensor, live.values()))
    if isinstance(live, (list, tuple)):
        return any(map(_has_tensor, live))
    return False


def _children_by_key(saved: codec.Json) -> dict[Any, codec.Json]:
    children = None
    if isinstance(saved, (dict, list)):
        children = codec.container_children(saved)
    if isinstance(children, dict):
        return children
    return dict(enumerate(children or ()))


def _leaves(live: Any, saved: codec.Json, path: str = "") -> Iterator[tuple[str, Any, codec.Json]]:
    """Yield each value in `live` with its path, and what the checkpoint has there."""
    inside = _items_if_walked_into(live)
    if inside is None:
        yield path, live, saved
        return
    children = _children_by_key(saved)
    for key, item in inside:
        yield from _leaves(item, children.get(key, _MISSING), f"{path}.{key}" if path else str(key))


def _merge_saved_values_in_place(live: Any, saved: codec.Json, tensor: Callable[[str], torch.Tensor]) -> Any:
    """Return `live` with the checkpoint's values in it: tensors are filled by now, containers stay the
    same ones."""
    if _is_tensor(live):
        return live
    inside = _items_if_walked_into(live)
    if inside is None:
        return codec.decode(saved, tensor)
    children = _children_by_key(saved)
    filled = {key: _merge_saved_values_in_place(item, children[key], tensor) for key, item in list(inside)}
    if isinstance(live, tuple):
        return tuple(filled.values())
    for key, item in filled.items():
        live[key] = item
    return live
