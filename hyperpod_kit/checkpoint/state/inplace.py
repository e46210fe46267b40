"""The trainer's own values (`extra`) brought to a checkpoint's, in the containers and tensors that the program holds.

A program keeps references into `extra`: an average of the weights, fp32 master weights. So a tensor that is there is
filled, a dict or list that is there stays the same object, and whatever would leave the program with a tensor that was
not restored is refused before anything changes. A key that is only in the checkpoint appears; one that is only here
goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.codec import codec, sharding, subclasses
from hyperpod_kit.checkpoint.state.fitting import Filling
from hyperpod_kit.checkpoint.state.tensors import Collector, TensorUse, is_per_rank
from hyperpod_kit.errors import CheckpointError


class Pair(NamedTuple):
    """A live tensor at `path` and the name under which the checkpoint has what belongs there."""

    path: str
    name: str
    tensor: torch.Tensor


def collect_fill_targets(live: Any, saved: codec.Json, path: str, collector: Collector, filling: Filling) -> set[str]:
    """Give the collector every live tensor that `saved` fills, under its name there, and return these
    names.

    Raises CheckpointError, StateNotSerializable when one does not fit or it is not clear which it
    is.
    """
    places: dict[str, str] = {}
    for pair in _pair_live_tensors_with_saved_names(live, saved, path, collector, filling):
        if collector.has(pair.name):
            if not collector.is_source(pair.name, pair.tensor):
                raise _mismatch_error(
                    pair.path, f"the same tensor as {places.get(pair.name, pair.name)}", "another tensor"
                )
            places.setdefault(pair.name, pair.path)
            continue
        sharded = sharding.is_sharded(pair.tensor)
        if sharded is is_per_rank(pair.name):
            kinds = ("a tensor of this rank alone", "a tensor that is divided among the ranks")
            raise _mismatch_error(pair.path, kinds[not sharded], kinds[sharded])
        places[pair.name] = pair.path
        first = collector.add_tensor(pair.name, pair.tensor, TensorUse.VALUE if sharded else TensorUse.PER_RANK)
        if not isinstance(first, str):
            raise _mismatch_error(pair.path, "one tensor", f"a {first['class']}")
        if first != pair.name:
            raise _mismatch_error(pair.path, "a tensor of its own", f"the same tensor as {places.get(first, first)}")
    for name in codec.tensor_names(saved):
        if not is_per_rank(name) and not collector.has(name):
            raise CheckpointError(
                f"{name} is divided among the ranks in the checkpoint, but does not exist in the program",
                hint=f"put a tensor like it into {path} before the restore",
            )
    return set(places)


def update_in_place(live: Any, saved: codec.Json, get_tensor: Callable[[str], torch.Tensor]) -> Any:
    """Bring `live` to `saved` in its own containers, now that the tensors which `collect_fill_targets`
    took are filled, and return it, or a new value where `live` cannot be kept. `get_tensor(name)`
    returns a tensor."""
    if _is_tensor(live):
        return live
    saved_children = codec.container_children(saved)
    if isinstance(saved_children, dict) and isinstance(live, dict):
        adopted = {key: update_in_place(live.get(key), item, get_tensor) for key, item in saved_children.items()}
        live.clear()
        live.update(adopted)
        return live
    if isinstance(saved_children, list) and isinstance(live, list):
        live[:] = _update_items(live, saved_children, get_tensor)
        return live
    if isinstance(saved_children, tuple) and type(live) is tuple:
        new = tuple(_update_items(live, saved_children, get_tensor))
        if len(new) == len(live) and all(a is b for a, b in zip(new, live, strict=True)):
            return live
        return new
    return codec.decode(saved, get_tensor)


def _update_items(live: Any, saved_items: Any, get_tensor: Callable[[str], torch.Tensor]) -> list[Any]:
    return [
        update_in_place(live[at] if at < len(live) else None, item, get_tensor) for at, item in enumerate(saved_items)
    ]


def _pair_live_tensors_with_saved_names(
    live: Any, saved: codec.Json, path: str, collector: Collector, filling: Filling
) -> Iterator[Pair]:
    """Yield each live tensor with the name of the saved tensor that belongs there, walking over
    `saved`, which is finite; `live` may lie in itself. Raises CheckpointError where they differ."""
    if _is_tensor(live) and isinstance(saved, dict) and saved.get("$") == "subclass":
        yield from _pair_and_match_subclass_parts(live, saved, path, collector, filling)
        return
    if _is_tensor(live):
        if not (isinstance(saved, dict) and saved.get("$") == "tensor"):
            raise _mismatch_error(path, _describe(saved), f"a tensor of {list(live.shape)}")
        yield Pair(path, saved["name"], live)
        return
    saved_children = codec.container_children(saved)
    if isinstance(saved_children, dict) and isinstance(live, dict):
        for key, item in saved_children.items():
            if key in live:
                yield from _pair_live_tensors_with_saved_names(live[key], item, f"{path}.{key}", collector, filling)
        return
    alike = (isinstance(saved_children, list) and isinstance(live, list)) or (
        isinstance(saved_children, tuple) and type(live) is tuple
    )
    if alike and len(saved_children) == len(live):  # type: ignore[arg-type]
        for at, item in enumerate(saved_children):  # type: ignore[arg-type]
            yield from _pair_live_tensors_with_saved_names(live[at], item, f"{path}.{at}", collector, filling)
        return
    inside = _first_tensor_path(live, path, set())
    if inside is not None:
        raise _mismatch_error(path, _describe(saved), f"{_describe(live)} with a tensor in it ({inside})")


def _pair_and_match_subclass_parts(
    live: Any, saved: dict[str, Any], path: str, collector: Collector, filling: Filling
) -> Iterator[Pair]:
    """Yield the parts of a tensor subclass by the names that they have in the checkpoint."""
    parts = subclasses.take_apart(path, live)
    if parts is None or parts.class_name != saved["class"]:
        raise _mismatch_error(path, f"a {saved['class']}", f"a {type(live).__name__}")
    filling.wholes[saved["name"]] = live
    names = {key: part["name"] for key, part in saved["parts"].items()}
    for part in parts.parts:
        if part.name in names:
            yield Pair(f"{path}.{part.name}", names[part.name], part.tensor)
    filling.match_subclass_parts(saved, live, parts, collector)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) or sharding.is_sharded(value)


def _first_tensor_path(live: Any, path: str, visited: set[int]) -> str | None:
    """Return the path of the first tensor in `live`; None where there is none."""
    if _is_tensor(live):
        return path
    if not isinstance(live, (dict, list, tuple)) or id(live) in visited:
        return None
    visited.add(id(live))
    items = live.items() if isinstance(live, dict) else enumerate(live)
    return next(
        (
            tensor_path
            for key, item in items
            if (tensor_path := _first_tensor_path(item, f"{path}.{key}", visited)) is not None
        ),
        None,
    )


def _describe(value: Any) -> str:
    """What a value is, live or encoded, for a message."""
    if isinstance(value, dict) and value.get("$") == "tensor":
        return "a tensor"
    container: Any = None
    if isinstance(value, (list, tuple)):
        container = value
    elif isinstance(value, dict):
        container = codec.container_children(value)
    if isinstance(container, dict):
        return "a dict"
    if container is not None:
        return f"a {type(container).__name__} of {len(container)}"
    return f"not a tensor ({str(value)[:40]!r})"


def _mismatch_error(path: str, expected: str, actual: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is {expected} in the checkpoint, {actual} here",
        hint=f"create {path} as the program that saved it did, or remove it before the restore: then the saved value "
        "replaces it",
    )
