"""A module's tensors: under the bare model's names into the tree of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

import torch

from hyperpod_kit.checkpoint import codec, sharding
from hyperpod_kit.checkpoint.tensors import Collector, TensorUse

# Prefixes that wrappers put into parameter names; the checkpoint has the names of the bare model.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside DDP and torch.compile."""
    inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else None
    inner = getattr(model, "_orig_mod", None) if inner is None else inner
    return bare(inner) if isinstance(inner, torch.nn.Module) else model


def fqns(model: torch.nn.Module) -> tuple[dict[int, str], set[str]]:
    """(id of a parameter -> its first plain name, all names of parameters as the module has them), in one walk."""
    firsts: dict[int, str] = {}
    names = set()
    for name, param in model.named_parameters(remove_duplicate=False):
        names.add(name)
        if id(param) not in firsts:
            firsts[id(param)] = plain_name(name)
    return firsts, names


def encode(
    model: torch.nn.Module,
    path: str,
    collector: Collector,
    parameters: Set[str],
    *,
    use: TensorUse = TensorUse.WEIGHT,
    sent: Set[str] = frozenset(),
    left_out: Set[str] = frozenset(),
) -> dict[str, Any]:
    """The model's state dict with its own objects instead of detached copies of them (`keep_vars`), so that an
    unchanged tensor is recognised. `parameters` are the names of its parameters, which are of that `use`; all else is
    a buffer, and of them `sent` those that DDP sends around. `left_out` are names that are not saved."""
    out = {}
    weight, buffer, sent_buffer = (
        partial(collector.take, use=one) for one in (use, TensorUse.BUFFER, TensorUse.SENT_BUFFER)
    )
    for name, value in model.state_dict(keep_vars=True).items():
        if name in left_out:
            continue
        plain = plain_name(name)
        # Forward may change buffers, and before it DDP sends rank 0's to all: only those are the model's.
        take = sent_buffer if name in sent else weight if name in parameters else buffer
        out[plain] = codec.encode(value, f"{path}.{plain}", take)
    return out


def frozen(model: torch.nn.Module) -> frozenset[str]:
    """The names of its parameters, as the module has them, that no gradient changes."""
    return frozenset(name for name, param in model.named_parameters(remove_duplicate=False) if not param.requires_grad)


def adopt(model: torch.nn.Module, tree: Mapping[str, Any], tensor: Callable[[str], torch.Tensor]) -> None:
    """Let the module's own code load what could not be filled in place, or everything if it has such code."""
    storages = {_storage(value) for value in (*model.parameters(), *model.buffers())}
    everything = _has_hooks(model)
    rest = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if plain_name(name) not in tree:
            continue  # left out when it was saved
        filled = isinstance(value, torch.Tensor) and _storage(value) in storages
        if everything or not filled:
            rest[name] = codec.decode(tree[plain_name(name)], tensor)
    if rest:
        model.load_state_dict(rest, strict=False)


def plain_name(name: str) -> str:
    """A name of the bare model's, without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _storage(tensor: torch.Tensor) -> tuple[torch.device, int]:
    part = sharding.live(tensor)
    return part.device, part.untyped_storage().data_ptr()


def _has_hooks(model: torch.nn.Module) -> bool:
    """Whether a module has code of its own that must see what is loaded; FSDP2's hooks only rearrange."""
    for module in model.modules():
        hooks = [*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values()]
        for hook in hooks:
            function = getattr(hook, "hook", hook)
            if not getattr(function, "__module__", "").startswith("torch.distributed.fsdp"):
                return True
    return False
