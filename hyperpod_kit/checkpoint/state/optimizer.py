"""An optimizer's state keyed by the model's parameter names, so that another topology and other tools can read it.

torch numbers the parameters of a state dict by their order in the groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from hyperpod_kit.checkpoint.codec import codec, sharding
from hyperpod_kit.checkpoint.state.tensors import Collector
from hyperpod_kit.errors import CheckpointError, StateNotSerializable

GROUPS, PARAMS = "param_groups", "params"


def parameter_names(optimizer: torch.optim.Optimizer, fqns: Mapping[int, str]) -> list[str]:
    """Return a name for each parameter of an optimizer, in torch's order: its first name in the model,
    else its number, in a form that is no parameter's name (`<0>`) where the model has that as a
    name."""
    params = _parameters(optimizer)
    if all(id(param) in fqns for param in params):
        return [fqns[id(param)] for param in params]
    taken = set(fqns.values())
    numbers = [f"<{number}>" if str(number) in taken else str(number) for number in range(len(params))]
    return [fqns.get(id(param), number) for param, number in zip(params, numbers, strict=True)]


def parameters_of(optimizer: torch.optim.Optimizer, fqns: Mapping[int, str]) -> list[tuple[str, torch.Tensor]]:
    """Return (name, parameter) for each parameter of an optimizer, with the names of
    `parameter_names`."""
    return list(zip(parameter_names(optimizer, fqns), _parameters(optimizer), strict=True))


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return list(itertools.chain.from_iterable(group[PARAMS] for group in optimizer.param_groups))


_CONSOLIDATED = (
    "each rank has the state of its own parameters alone: divide the model with FSDP2 (fully_shard) instead, which a "
    "State can hold"
)


def named_state(optimizer: torch.optim.Optimizer, fqns: Mapping[int, str]) -> dict[str, Any]:
    """Return `optimizer.state_dict()` with parameter names in place of numbers; its tensors are the
    live ones. Raises StateNotSerializable."""
    try:
        body = optimizer.state_dict()
    except RuntimeError as err:
        if not hasattr(optimizer, "consolidate_state_dict"):
            raise
        raise StateNotSerializable("state", f"state of {class_of(optimizer)}: {err}", hint=_CONSOLIDATED) from err
    if not is_standard_form(body):
        return body  # a wrapper with a format of its own
    names = parameter_names(optimizer, fqns)
    state: dict[Any, Any] = {}
    for key, value in body["state"].items():
        if type(key) is int and key < len(names):
            state[names[key]] = value
        else:
            state[key] = value
    if len(state) != len(body["state"]):
        twice = next(key for key in body["state"] if type(key) is str and key in names)
        raise StateNotSerializable(f"state.{twice}", "value of an optimizer under the name of a parameter")
    groups = [{**group, PARAMS: [names[number] for number in group[PARAMS]]} for group in body[GROUPS]]
    return {"state": state, GROUPS: groups}


def encode(optimizer: torch.optim.Optimizer, path: str, collector: Collector, fqns: Mapping[int, str]) -> Any:
    """Record an optimizer's tensors in the collector and return the encoded tree of its state. Each
    tensor that is not like its parameter is recorded with its type and shape: a fresh start makes
    the state from that."""

    def described(path: str, tensor: torch.Tensor) -> dict[str, Any]:
        return codec.record_with_type_and_shape(collector.add_tensor(path, tensor), tensor)

    body = named_state(optimizer, fqns)
    if not is_standard_form(body) and not isinstance(optimizer, torch.optim.Optimizer):
        return codec.encode(body, path, partial(_record_tensor_or_refuse_sharded, described, class_of(optimizer)))
    if not is_standard_form(body) or any(type(key) is not str for key in body["state"]):
        return codec.encode(body, path, described)
    inside = itertools.chain.from_iterable(group[PARAMS] for group in optimizer.param_groups)
    params = dict(zip(parameter_names(optimizer, fqns), inside, strict=True))
    state = {
        name: codec.encode(values, f"{path}.state.{name}", partial(_record_state_tensor, collector, params.get(name)))
        for name, values in body["state"].items()
    }
    return {"state": state, GROUPS: codec.encode(body[GROUPS], f"{path}.{GROUPS}", described)}


def _record_tensor_or_refuse_sharded(
    take: Callable[[str, torch.Tensor], dict[str, Any]], owner: str, path: str, tensor: torch.Tensor
) -> dict[str, Any]:
    if sharding.is_sharded(tensor):
        raise StateNotSerializable(
            path,
            f"tensor that is divided among the ranks, in the state_dict of {owner}, which is neither a "
            "torch.optim.Optimizer nor gives its state in that form: a fresh start could not divide it again",
            hint=f"derive {owner.rpartition('.')[2]} from torch.optim.Optimizer",
        )
    return take(path, tensor)


def _record_state_tensor(
    collector: Collector, param: torch.Tensor | None, path: str, tensor: torch.Tensor
) -> str | dict[str, Any]:
    taken = collector.add_tensor(path, tensor)
    if param is not None and tensor.dtype is param.dtype and tensor.shape == param.shape:
        return taken
    record = codec.record_with_type_and_shape(taken, tensor)
    if sharding.is_dtensor(tensor):
        return {**record, codec.DIVIDED: sharding.placement_codes(tensor)}
    return record


def is_standard_form(body: Any) -> bool:
    """Return whether a state dict, or the tree of one, has the form of torch's own optimizers."""
    return set(body) == {"state", GROUPS}


def unwrap_stateless_wrappers(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer inside a wrapper that has no state of its own (Accelerate's); any other as
    it is."""
    inner = getattr(optimizer, "optimizer", None)
    if not isinstance(inner, torch.optim.Optimizer) or inner is optimizer:
        return optimizer
    if (
        optimizer.state is not inner.state
        or optimizer.param_groups is not inner.param_groups
        or not is_standard_form(optimizer.state_dict())
    ):
        return optimizer  # a Lookahead, say, with weights of its own
    return unwrap_stateless_wrappers(inner)


def hookable_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Return the optimizer whose step hooks run: this one, or the one that it drives where it is an
    Optimizer in name only; None where there is none."""
    if hasattr(optimizer, "_optimizer_step_post_hooks"):
        return optimizer
    for name in ("optimizer", "base_optimizer"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer:
            return hookable_optimizer(inner)
    return None


def class_of(optimizer: object) -> str:
    """Return the full name of the optimizer's class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def require_same_parameters(optimizer: torch.optim.Optimizer, tree: Any, fqns: Mapping[int, str], path: str) -> None:
    """Raise CheckpointError when the groups or their parameters in the checkpoint are not those of
    this optimizer. An optimizer with its own load_state_dict may divide them into groups as it
    likes."""
    if not is_standard_form(tree):
        return
    names = parameter_names(optimizer, fqns)
    saved = [name for group in tree[GROUPS] for name in group[PARAMS]]
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        if not set(saved) <= set(names):
            raise CheckpointError(f"the parameters of {path} differ: {_describe_parameter_difference(saved, names)}")
        return
    if saved != names or len(tree[GROUPS]) != len(optimizer.param_groups):
        raise CheckpointError(f"the parameters of {path} differ: {_describe_parameter_difference(saved, names)}")


def describe_class_change_or_refuse_state_loss(
    optimizer: torch.optim.Optimizer, tree: Any, saved: str | None, path: str
) -> str | None:
    """Return the warning that the checkpoint is of another class of optimizer, or None where it is
    not; its state was made before.

    Raises CheckpointError when that class keeps other state: it would be lost, and what this one
    needs is not there.
    """
    here = class_of(optimizer)
    if saved is None or saved.rpartition(".")[2] == here.rpartition(".")[2]:
        return None
    differ = f"{path} is {here} here, and the checkpoint's is {saved}"
    usual = type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict and is_standard_form(tree)
    if usual and tree["state"]:
        keys = [
            {key for values in states if isinstance(values, Mapping) for key in values}
            for states in (optimizer.state.values(), tree["state"].values())
        ]
        if keys[0] != keys[1]:
            raise CheckpointError(
                f"{differ}: {sorted(keys[1] - keys[0])} would be lost, {sorted(keys[0] - keys[1])} are not there",
                hint="to change the optimizer, restore with State(model) first and make a State with the new one then",
            )
    return f"{differ}: it continues with the settings (lr, ...) and the state of the saved optimizer"


def _describe_parameter_difference(saved: list[str], names: list[str]) -> str:
    missing, unexpected = sorted(set(names) - set(saved)), sorted(set(saved) - set(names))
    if not missing and not unexpected:
        return "the same parameters in another order or other groups"
    return f"missing {missing[:8]}, unexpected {unexpected[:8]}"
