"""An optimizer's state keyed by the model's parameter names, so that another topology and other tools can read it.

torch numbers the parameters of a state dict by their order in the groups. `Optimizer.load_state_dict` copies
everything and casts floating-point state to the type of its parameter; here state is filled in place and keeps the
type that it was saved with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hyperpod_kit.checkpoint import codec, sharding
from hyperpod_kit.errors import CheckpointError

_GROUPS, _PARAMS = "param_groups", "params"


def names_of(optimizer: torch.optim.Optimizer, fqns: Mapping[int, str]) -> list[str]:
    """A name for each parameter, in torch's order: its first name in the model, else its number."""
    params = itertools.chain.from_iterable(group[_PARAMS] for group in optimizer.param_groups)
    return [fqns.get(id(param), str(number)) for number, param in enumerate(params)]


def state_of(optimizer: torch.optim.Optimizer, fqns: Mapping[int, str]) -> dict[str, Any]:
    """`optimizer.state_dict()` with names in place of numbers; its tensors are the live ones."""
    body = optimizer.state_dict()
    if set(body) != {"state", _GROUPS}:
        return body  # a wrapper with a format of its own
    names = names_of(optimizer, fqns)
    state = {
        names[key] if type(key) is int and key < len(names) else key: value for key, value in body["state"].items()
    }
    groups = [{**group, _PARAMS: [names[number] for number in group[_PARAMS]]} for group in body[_GROUPS]]
    return {"state": state, _GROUPS: groups}


def bare(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside a wrapper that has no state of its own (Accelerate's)."""
    inner = getattr(optimizer, "optimizer", None)
    if not isinstance(inner, torch.optim.Optimizer) or inner is optimizer:
        return optimizer
    if (
        optimizer.state is not inner.state
        or optimizer.param_groups is not inner.param_groups
        or set(optimizer.state_dict()) != {"state", _GROUPS}
    ):
        return optimizer  # a Lookahead, say, with weights of its own
    return bare(inner)


def stepper(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Where the hooks of a step are: the optimizer, or the one that a wrapper drives which is an Optimizer in name only
    and has none. None: nowhere."""
    if hasattr(optimizer, "_optimizer_step_post_hooks"):
        return optimizer
    for name in ("optimizer", "base_optimizer"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer:
            return stepper(inner)
    return None


def class_of(optimizer: object) -> str:
    """The full name of its class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def materialise(optimizer: torch.optim.Optimizer) -> bool:
    """Make the state tensors that a first step makes, as targets of a restore; the weights stay as they are.

    One step with zero gradients and a learning rate of zero, as torch.distributed.checkpoint.state_dict does it.
    Some optimizers cannot (LBFGS wants a closure, SparseAdam sparse gradients): whatever they raise, their state is
    then set from what was loaded. Whether something was made.
    """
    params = [param for group in optimizer.param_groups for param in group[_PARAMS]]
    if optimizer.state or any(map(torch.nn.parameter.is_lazy, params)):
        return False
    # A program may have run its model backward before: its gradients are put aside, and are there again afterwards.
    gradients = [param.grad for param in params]
    rates = [group.get("lr") for group in optimizer.param_groups]
    try:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            for param in group[_PARAMS]:
                if param.requires_grad:
                    param.grad = torch.zeros_like(param)
            if rate is not None:
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
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


def check(optimizer: torch.optim.Optimizer, tree: Any, fqns: Mapping[int, str], path: str) -> None:
    """Raises CheckpointError when the groups or their parameters are not those of this optimizer."""
    if not _is_ours(optimizer, tree):
        return
    names = names_of(optimizer, fqns)
    saved = [name for group in tree[_GROUPS] for name in group[_PARAMS]]
    if saved != names or len(tree[_GROUPS]) != len(optimizer.param_groups):
        raise CheckpointError(f"the parameters of {path} differ: {_difference(saved, names)}")


def compare_class(optimizer: torch.optim.Optimizer, tree: Any, saved: str | None, path: str) -> str | None:
    """What to warn of when the checkpoint is of another class of optimizer; `materialise` was called before.

    Raises CheckpointError when that class keeps other state: it would be lost, and what this one needs is not there.
    """
    here = class_of(optimizer)
    if saved is None or saved.rpartition(".")[2] == here.rpartition(".")[2]:
        return None
    differ = f"{path} is {here} here, and the checkpoint's is {saved}"
    if _is_ours(optimizer, tree) and tree["state"]:
        keys = [
            {key for values in states if isinstance(values, Mapping) for key in values}
            for states in (optimizer.state.values(), tree["state"].values())
        ]
        if keys[0] != keys[1]:
            raise CheckpointError(
                f"{differ}: {sorted(keys[1] - keys[0])} would be lost, {sorted(keys[0] - keys[1])} are not there",
                hint="to change the optimizer, restore with State(model) first and make a State with the new one then",
            )
    return f"{differ}: it goes on with the settings (lr, ...) and the state of that one"


def adopt(
    optimizer: torch.optim.Optimizer,
    tree: Any,
    fqns: Mapping[int, str],
    live: Mapping[str, torch.Tensor],
    tensor: Callable[[str], torch.Tensor],
) -> None:
    """Bring the optimizer, which `check` has seen, to `tree`. Tensors in `live` (by name) are filled already; others
    come from `tensor`."""

    def leaf(name: str) -> torch.Tensor:
        return live[name] if name in live else tensor(name)

    if not _is_ours(optimizer, tree):
        optimizer.load_state_dict(_numbered(codec.decode(tree, leaf), names_of(optimizer, fqns)))
        return
    inside = itertools.chain.from_iterable(group[_PARAMS] for group in optimizer.param_groups)
    params = dict(zip(names_of(optimizer, fqns), inside, strict=True))
    for group, wanted in zip(optimizer.param_groups, tree[_GROUPS], strict=True):
        group.update({key: codec.decode(value, leaf) for key, value in wanted.items() if key != _PARAMS})
    state: dict[Any, Any] = codec.decode(tree["state"], lambda name: _Loaded(name))  # type: ignore[arg-type,return-value]
    known = {id(param): name for name, param in params.items()}
    for key in [key for key in optimizer.state if known.get(id(key), key) not in state]:
        del optimizer.state[key]
    for name, values in state.items():
        param = params.get(name, name)
        optimizer.state[param] = _fill(values, param, live, tensor)


def _is_ours(optimizer: torch.optim.Optimizer, tree: Any) -> bool:
    """Whether state is set here, and not by code of the optimizer's own."""
    return type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict and set(tree) == {"state", _GROUPS}


class _Loaded:
    """Stands for a tensor while the tree around it is decoded."""

    def __init__(self, name: str) -> None:
        self.name = name


def _fill(value: Any, param: Any, live: Mapping[str, torch.Tensor], tensor: Callable[[str], torch.Tensor]) -> Any:
    if isinstance(value, _Loaded):
        return live[value.name] if value.name in live else _like(param, tensor(value.name))
    if isinstance(value, dict):
        return {key: _fill(item, param, live, tensor) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_fill(item, param, live, tensor) for item in value)
    return value


def _like(param: Any, loaded: torch.Tensor) -> torch.Tensor:
    """A state tensor without a live target: sharded and placed as its parameter when it has its shape."""
    if not sharding.is_dtensor(param):
        return loaded if not isinstance(param, torch.Tensor) or loaded.dim() == 0 else loaded.to(param.device)
    from torch.distributed.tensor import DTensor

    if loaded.shape != sharding.local(param).shape or loaded.dim() == 0:
        return loaded
    made: torch.Tensor = DTensor.from_local(
        loaded.to(param.device),
        param.device_mesh,
        param.placements,
        run_check=False,
        shape=param.shape,
        stride=param.stride(),
    )
    return made


def _numbered(body: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Undo the renaming of `state_of`."""
    if set(body) != {"state", _GROUPS}:
        return body
    number = {name: index for index, name in enumerate(names)}
    state = {number.get(key, key): value for key, value in body["state"].items()}
    groups = [{**group, _PARAMS: [number[name] for name in group[_PARAMS]]} for group in body[_GROUPS]]
    return {"state": state, _GROUPS: groups}


def _difference(saved: list[str], names: list[str]) -> str:
    missing, unexpected = sorted(set(names) - set(saved)), sorted(set(saved) - set(names))
    if not missing and not unexpected:
        return "the same parameters in another order or other groups"
    return f"missing {missing[:8]}, unexpected {unexpected[:8]}"
