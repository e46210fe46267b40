"""An optimizer's state brought to a checkpoint's: as `Optimizer.load_state_dict` does it, with its hooks, but in place
and in the types that were saved.
"""

from __future__ import annotations

import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hyperpod_kit.checkpoint.codec import codec, sharding
from hyperpod_kit.checkpoint.codec.dtypes import NAMES, TYPES
from hyperpod_kit.checkpoint.state.optimizer import GROUPS, PARAMS, is_standard_form, parameter_names

_STEP = "step"
_LOAD_PRE, _LOAD_POST = "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks"
_SAVE_HOOKS = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def has_custom_load_or_nonstandard_form(optimizer: torch.optim.Optimizer, tree: Any) -> bool:
    """Return whether the optimizer's own code loads a state, and not what is here."""
    return type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict or not is_standard_form(tree)


def _has_custom_state_dict_or_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether what the optimizer saves may have another form than its state."""
    return type(optimizer).state_dict is not torch.optim.Optimizer.state_dict or any(
        getattr(optimizer, name, None) for name in _SAVE_HOOKS
    )


# --- before the fill --------------------------------------------------------------------------------------------


def make_missing_state(
    optimizer: torch.optim.Optimizer, tree: Any, fqns: Mapping[int, str], *, records_have_type_and_shape: bool
) -> bool:
    """Make the state tensors that a restore of `tree` fills, where the optimizer has none yet; return
    whether it made any.
    `records_have_type_and_shape`: the records of the tree have their types and shapes. Else a step
    makes them, except of what is no Optimizer and drives one: its step may do more, and its own code
    is given what was saved."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return False
    every = [param for group in optimizer.param_groups for param in group[PARAMS]]
    if optimizer.state or not tree.get("state") or any(map(torch.nn.parameter.is_lazy, every)):
        return False
    subclass = any(record["$"] == "subclass" for record in codec.iter_tensor_and_subclass_records(tree["state"]))
    if (
        not records_have_type_and_shape
        or subclass
        or has_custom_load_or_nonstandard_form(optimizer, tree)
        or _has_custom_state_dict_or_hooks(optimizer)
    ):
        return make_state_by_null_step(optimizer)
    params, groups = _param_by_name(optimizer, fqns), _group_by_param_id(optimizer)
    for name, values in tree["state"].items():
        param = params.get(name, name)
        optimizer.state[param] = _allocate_state_of_parameter(values, param, groups.get(id(param), {}))
    return True


def make_state_by_null_step(optimizer: torch.optim.Optimizer) -> bool:
    """Make an optimizer's state tensors, as targets of a restore, by one step with zero gradients and
    a learning rate of zero; return whether any was made. Weights and gradients stay as they are,
    and no step hook runs.

    Some optimizers cannot (LBFGS wants a closure, SparseAdam sparse gradients): whatever they
    raise, their state is then set from what was loaded. torch.distributed.checkpoint.state_dict
    does it in the same way.
    """
    params = [param for group in optimizer.param_groups for param in group[PARAMS]]
    if optimizer.state or any(map(torch.nn.parameter.is_lazy, params)):
        return False
    # A program may have run its model backward before: its gradients are put aside, and are there again afterwards.
    gradients = [param.grad for param in params]
    rates = [group.get("lr") for group in optimizer.param_groups]
    try:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            for param in group[PARAMS]:
                if param.requires_grad:
                    param.grad = torch.zeros_like(param)
            if rate is not None:
                group["lr"] = _zero_like(rate)
        with _without_step_hooks(optimizer):
            optimizer.step()
    except Exception:
        optimizer.state.clear()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
    return bool(optimizer.state)


def _zero_like(rate: Any) -> Any:
    """Make a learning rate of zero, a tensor where that is one."""
    if isinstance(rate, torch.Tensor):
        return torch.zeros_like(rate)
    return 0.0


@contextmanager
def _without_step_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Remove all step hooks, global ones too, for the block: those of the program count steps, average
    weights, log, and a step that trains nothing is none for them."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    global_hooks = [getattr(module, f"_global_optimizer_{kind}_hooks", {}) for kind in ("pre", "post")]
    saved_hooks = [dict(hooks) for hooks in global_hooks]
    instance_hooks = {name: getattr(optimizer, name) for name in _STEP_HOOKS if hasattr(optimizer, name)}
    try:
        for hooks in global_hooks:
            hooks.clear()
        for name in instance_hooks:
            setattr(optimizer, name, OrderedDict())
        yield
    finally:
        for hooks, before in zip(global_hooks, saved_hooks, strict=True):
            hooks.update(before)
        for name, before in instance_hooks.items():
            setattr(optimizer, name, before)


def _allocate_state_of_parameter(saved: codec.Json, param: Any, group: Mapping[str, Any], key: object = "") -> Any:
    """Return what an optimizer holds for a parameter, with new memory for its tensors."""
    if isinstance(saved, dict) and saved.get("$") == "tensor":
        return allocate_state_tensor(saved, param, group, key)
    saved_children = codec.container_children(saved)
    if isinstance(saved_children, dict):
        return {name: _allocate_state_of_parameter(item, param, group, name) for name, item in saved_children.items()}
    if saved_children is not None:
        return type(saved_children)(_allocate_state_of_parameter(item, param, group, key) for item in saved_children)
    return saved  # a number, say: its value comes with the rest


def allocate_state_tensor(record: dict[str, Any], param: Any, group: Mapping[str, Any], key: object) -> torch.Tensor:
    """Return memory for a tensor of the state, where torch's own loading puts it: beside its
    parameter, divided as that one where it has its shape; a count of steps is on the host where no
    kernel reads it."""
    if not isinstance(param, torch.Tensor):
        return torch.empty(record.get("s", ()), dtype=TYPES[record.get("t", "F32")], device="cpu")
    dtype, shape = param.dtype, param.shape
    if "t" in record:
        dtype = TYPES[record["t"]]
    if "s" in record:
        shape = torch.Size(record["s"])
    on_host = key == _STEP and not (group.get("capturable") or group.get("fused"))
    device = param.device
    if on_host:
        device = torch.device("cpu")
    if shape != param.shape:
        if codec.DIVIDED in record and sharding.is_dtensor(param):
            return _allocate_dtensor(record[codec.DIVIDED], shape, dtype, param)
        return torch.empty(shape, dtype=dtype, device=device)
    local = sharding.unwrap_dtensor(param)
    if sharding.is_plain(local):
        local = torch.empty_like(local.detach(), dtype=dtype, device=device)
    else:
        local = torch.empty(local.shape, dtype=dtype, device=device)
    if sharding.is_dtensor(param):
        return dtensor_like(param, local)
    return local


def _allocate_dtensor(placement_codes: list[str], shape: torch.Size, dtype: torch.dtype, param: Any) -> torch.Tensor:
    """A DTensor on the mesh of its parameter, divided as when it was saved; whole on each rank where the mesh has other
    dimensions now."""
    from torch.distributed.tensor import Replicate, Shard, empty

    mesh = param.device_mesh
    placements: list[Any] = [Replicate()] * mesh.ndim
    if len(placement_codes) == mesh.ndim:
        for dim, code in enumerate(placement_codes):
            if code.startswith("S"):
                placements[dim] = Shard(int(code[1:]))
    dtensor: torch.Tensor = empty(shape, dtype=dtype, device_mesh=mesh, placements=placements)
    return dtensor


def dtensor_like(param: Any, local: torch.Tensor) -> torch.Tensor:
    """A DTensor of these local parts, divided as the parameter."""
    from torch.distributed.tensor import DTensor

    dtensor: torch.Tensor = DTensor.from_local(
        local, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
    )
    return dtensor


def allocate_for_misfits(
    optimizer: torch.optim.Optimizer,
    tree: Any,
    fqns: Mapping[int, str],
    find_live: Callable[[str], torch.Tensor | None],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, new memory for it) of each described tensor of the state that does not exist here,
    or has another type or shape. `find_live(name)` returns the tensor here."""
    if not is_standard_form(tree):
        return
    params, groups = _param_by_name(optimizer, fqns), _group_by_param_id(optimizer)
    for name, values in tree["state"].items():
        param = params.get(name, name)
        for record in codec.iter_tensor_and_subclass_records(values):
            if record["$"] != "tensor":
                continue
            live = find_live(record["name"])
            saved = _saved_type_and_shape(record, param)
            if live is None or saved != (live.dtype, live.shape):
                yield (
                    record["name"],
                    allocate_state_tensor(record, param, groups.get(id(param), {}), record["name"].rpartition(".")[2]),
                )


def _saved_type_and_shape(record: dict[str, Any], param: Any) -> tuple[torch.dtype, torch.Size] | None:
    if "t" in record:
        return TYPES[record["t"]], torch.Size(record["s"])
    if isinstance(param, torch.Tensor):
        return (param.dtype, param.shape)
    return None


def _group_by_param_id(optimizer: torch.optim.Optimizer) -> dict[int, Mapping[str, Any]]:
    return {id(param): group for group in optimizer.param_groups for param in group[PARAMS]}


def _param_by_name(optimizer: torch.optim.Optimizer, fqns: Mapping[int, str]) -> dict[Any, Any]:
    inside = itertools.chain.from_iterable(group[PARAMS] for group in optimizer.param_groups)
    return dict(zip(parameter_names(optimizer, fqns), inside, strict=True))


# --- after it ---------------------------------------------------------------------------------------------------


class Adoption:
    """One optimizer that takes over its part of a tree. Tensors in `live` (by name) and subclasses in `wholes` are
    filled already; others come from `tensor`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        tree: Any,
        fqns: Mapping[int, str],
        *,
        live: Mapping[str, torch.Tensor],
        wholes: Mapping[str, torch.Tensor],
        tensor: Callable[[str], torch.Tensor],
    ) -> None:
        self._optimizer, self._tree = optimizer, tree
        self._names = parameter_names(optimizer, fqns)
        inside = itertools.chain.from_iterable(group[PARAMS] for group in optimizer.param_groups)
        self._params = list(inside)
        self._live, self._wholes, self._tensor = live, wholes, tensor
        self._filled = {id(target) for target in (*live.values(), *wholes.values())}

    def load_into_optimizer(self) -> None:
        """Load the decoded state into the optimizer. Raises what the optimizer's own code and its hooks
        raise."""
        optimizer = self._optimizer
        body = codec.decode(self._tree, self._filled_or_read_tensor, filled_subclasses=self._wholes)
        if has_custom_load_or_nonstandard_form(optimizer, self._tree):
            optimizer.load_state_dict(_names_to_numbers(body, self._names))
            self._restore_saved_dtypes(body)
            return
        body = _names_to_numbers(body, self._names)
        for hook in getattr(optimizer, _LOAD_PRE, {}).values():
            body = hook(optimizer, body) or body
        for group, saved in zip(optimizer.param_groups, body[GROUPS], strict=True):
            group.update({key: value for key, value in saved.items() if key != PARAMS})
        numbers = {id(param): number for number, param in enumerate(self._params)}
        for key in [key for key in optimizer.state if numbers.get(id(key), key) not in body["state"]]:
            del optimizer.state[key]
        for key, values in body["state"].items():
            param = key
            if type(key) is int and key < len(self._params):
                param = self._params[key]
            optimizer.state[param] = self._place_read_tensors(values, param)
        if type(optimizer).__setstate__ is not torch.optim.Optimizer.__setstate__:
            optimizer.__setstate__({"state": optimizer.state, GROUPS: optimizer.param_groups})
        for hook in getattr(optimizer, _LOAD_POST, {}).values():
            hook(optimizer)

    def _filled_or_read_tensor(self, name: str) -> torch.Tensor:
        if name in self._live:
            return self._live[name]
        return self._tensor(name)

    def _place_read_tensors(self, value: Any, param: Any) -> Any:
        """Return the values in containers of their kinds, with tensors that have just been read moved to
        where they belong."""
        if isinstance(value, torch.Tensor):
            if id(value) in self._filled:
                return value
            return _move_to_parameter(param, value)
        if type(value) is dict:
            return {key: self._place_read_tensors(item, param) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._place_read_tensors(item, param) for item in value)
        return value

    def _restore_saved_dtypes(self, body: dict[str, Any]) -> None:
        """Put back the saved tensors that `Optimizer.load_state_dict`, called by the optimizer's own code,
        has rounded to the type of the parameter."""
        if not is_standard_form(body):
            return
        by_name = dict(zip(self._names, self._params, strict=True))
        state = getattr(self._optimizer, "state", {})
        for name, saved in body["state"].items():
            here = state.get(by_name.get(name, name))
            if not isinstance(saved, dict) or not isinstance(here, dict):
                continue
            for key, value in saved.items():
                now = here.get(key)
                if _is_rounded(now, value):
                    here[key] = value


def _is_rounded(now: Any, saved: Any) -> bool:
    if not (isinstance(now, torch.Tensor) and isinstance(saved, torch.Tensor)):
        return False
    if now.dtype == saved.dtype or now.shape != saved.shape or saved.dtype not in NAMES:
        return False
    parts = sharding.unwrap_dtensor(now), sharding.unwrap_dtensor(saved)
    return all(map(sharding.is_plain, parts)) and torch.equal(parts[0], parts[1].to(parts[0]))


def _move_to_parameter(param: Any, loaded: torch.Tensor) -> torch.Tensor:
    """Return a state tensor without a live target on the device of its parameter, sharded as that
    where it has its local shape."""
    if not isinstance(param, torch.Tensor) or sharding.is_dtensor(loaded) or loaded.dim() == 0:
        return loaded
    if not sharding.is_dtensor(param):
        return loaded.to(param.device)
    if loaded.shape != sharding.local(param).shape:
        return loaded
    return dtensor_like(param, loaded.to(param.device))


def _names_to_numbers(body: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Replace the parameter names of a state dict by torch's numbers, which undoes
    `optimizer.named_state`."""
    if not is_standard_form(body):
        return body
    number = {name: index for index, name in enumerate(names)}
    state = {number.get(key, key): value for key, value in body["state"].items()}
    groups = [{**group, PARAMS: [number[name] for name in group[PARAMS]]} for group in body[GROUPS]]
    return {"state": state, GROUPS: groups}
