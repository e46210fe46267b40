"""What DDP's communication hooks keep from step to step: PowerSGD's error feedback and warm start. It is in no module
and in no optimizer, and without it a restored run has other gradients."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from hyperpod_kit.checkpoint.state import randomness
from hyperpod_kit.errors import StateNotSerializable

PREFIX = "ddp-hook-"
"""Of the names that such a state has among a State's objects: no keyword can be one."""

_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "PowerSGDState": (
        "error_dict",
        "p_memory_dict",
        "q_memory_dict",
        "rng",
        "iter",
        "total_numel_before_compression",
        "total_numel_after_compression",
        "next_stats_report",
    ),
    "PostLocalSGDState": ("iter",),
}
"""By torch's class, what training changes: all else is how the program has made it."""

_OF_ONE_RANK = ("error_dict",)
"""What a rank's gradients have lost by compression so far: of no use to other ranks."""

_OF_BUCKETS = ("error_dict", "p_memory_dict", "q_memory_dict")
"""What is kept for each of DDP's buckets."""


class StateObjects(NamedTuple):
    """The objects of a State: those that it was given, and the states of the hooks of `model`, which is given in its
    wrappers. Hooks may be registered later than the State is made."""

    given: dict[str, Any]
    model: torch.nn.Module | None

    def all_objects(self) -> dict[str, Any]:
        """Return the given objects and the states of the model's communication hooks as they are now, by
        name."""
        return {**self.given, **hook_states(self.model)}


def hook_states(model: torch.nn.Module | None) -> dict[str, Any]:
    """Return the states of the communication hooks of a model's DDP wrappers as objects with a
    state_dict, by name. Raises StateNotSerializable for one of an unknown class that holds tensors."""
    states = [
        (wrapper, state)
        for wrapper in _ddp_wrappers_around_or_inside(model)
        for state in _registered_hook_states(wrapper)
    ]
    state_objects: dict[str, Any] = {}
    for number, (wrapper, state) in enumerate(states):
        name = f"{PREFIX}{number}"
        if type(state).__name__ in _ATTRIBUTES:
            state_objects[name] = HookState(state, wrapper)
        elif callable(getattr(state, "state_dict", None)) and callable(getattr(state, "load_state_dict", None)):
            state_objects[name] = state
        elif _holds_tensors(state):
            raise StateNotSerializable(
                name,
                f"{type(state).__module__}.{type(state).__qualname__} with tensors, the state of a communication hook "
                "of DDP",
                hint="give its class state_dict and load_state_dict",
            )
    return state_objects


def warn_and_return_missing_hook_states(names: set[str], saved: Mapping[str, Any]) -> set[str]:
    """Return which hook states among `names` a checkpoint lacks that was made before hooks were saved,
    and warn (RuntimeWarning) that they begin anew."""
    lacking = {f"objects.{name}" for name in names if name.startswith(PREFIX)}.difference(saved)
    if lacking:
        warnings.warn(
            "the checkpoint has no state of DDP's communication hooks: they start with an empty state, and the "
            "losses after the restore differ from those of a run that was not interrupted",
            RuntimeWarning,
            stacklevel=2,
        )
    return lacking


class HookState:
    """The state of a hook of torch's as an object with a state_dict."""

    def __init__(self, state: Any, wrapper: DDP) -> None:
        self._state, self._wrapper = state, wrapper

    def state_dict(self) -> dict[str, Any]:
        """What training has changed so far, as it is now."""
        values = {name: getattr(self._state, name) for name in _ATTRIBUTES[type(self._state).__name__]}
        if "rng" in values:
            values["rng"] = randomness.encode_numpy(values["rng"].get_state())
        return {"world": dist.get_world_size(), "buckets": _bucket_layout(self._wrapper), **values}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Take it over, less what belongs to other ranks or other buckets."""
        values = dict(values)
        world, buckets = values.pop("world"), values.pop("buckets")
        if world != dist.get_world_size():
            begins_anew: tuple[str, ...] = _OF_ONE_RANK
        else:
            begins_anew = ()
        if buckets != _bucket_layout(self._wrapper) and any(values.get(name) for name in _OF_BUCKETS):
            begins_anew = _OF_BUCKETS
            warnings.warn(
                f"{type(self._state).__name__} starts with an empty state: the gradients are in other buckets than "
                "when it was saved, as they are in DDP's first step; make three forward and backward passes before "
                "restore()",
                RuntimeWarning,
                stacklevel=2,
            )
        values.update({name: {} for name in begins_anew if name in values})
        for name, value in values.items():
            if name == "rng":
                self._state.rng.set_state(randomness.decode_numpy(value))
            else:
                setattr(self._state, name, _copy_to_current_device(value))


def _bucket_layout(wrapper: DDP) -> str:
    """Return which parameters are in which of DDP's buckets, as text; "" until DDP has rebuilt them."""
    facts: dict[str, Any] = wrapper._get_ddp_logging_data()
    return str(facts.get("rebuilt_per_bucket_param_indices", ""))


def _copy_to_current_device(value: Any) -> Any:
    """Copy the tensors of a dict to this process's device, where the hook will write to them; another
    value is returned as it is."""
    if not isinstance(value, dict):
        return value
    device = torch.device("cpu")
    if torch.cuda.is_initialized():
        device = torch.device("cuda", torch.cuda.current_device())
    copies: dict[Any, Any] = {}
    for key, item in value.items():
        if isinstance(item, torch.Tensor):
            copies[key] = item.to(device)
        else:
            copies[key] = copy.copy(item)
    return copies


def _ddp_wrappers_around_or_inside(model: torch.nn.Module | None) -> Iterator[DDP]:
    """Yield the DDP around a model, under torch.compile too, or else those inside it."""
    outer = model
    while isinstance(outer, torch.nn.Module) and not isinstance(outer, DDP):
        outer = getattr(outer, "_orig_mod", None)
    if isinstance(outer, DDP):
        yield outer
    elif model is not None:
        yield from (module for module in model.modules() if isinstance(module, DDP))


def _registered_hook_states(wrapper: DDP) -> list[Any]:
    """List the states of a DDP's hooks; of a state that is a pair, both."""
    states: list[Any] = []
    for _, state in getattr(wrapper, "_comm_hooks", ()):
        if isinstance(state, (tuple, list)):
            states += state
        else:
            states.append(state)
    return [state for state in states if state is not None and not isinstance(state, dist.ProcessGroup)]


def _holds_tensors(state: Any) -> bool:
    todo = list(_attribute_values(state))
    visited: set[int] = set()
    while todo:
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            return True
        if id(value) in visited:
            continue  # a container may hold itself
        visited.add(id(value))
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, (list, tuple)):
            todo += value
    return False


def _attribute_values(state: Any) -> Iterator[Any]:
    yield from getattr(state, "__dict__", {}).values()
    for kind in type(state).__mro__:
        slots = getattr(kind, "__slots__", ())
        names = slots
        if isinstance(slots, str):
            names = (slots,)
        yield from (getattr(state, name) for name in names if hasattr(state, name))
