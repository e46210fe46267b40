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


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside DDP and torch.compile."""
    inner = None
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        inner = model.module
    if inner is None:
        inner = getattr(model, "_orig_mod", None)
    if isinstance(inner, torch.nn.Module):
        return unwrap(inner)
    return model


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
    weight = partial(collector.take, use=use)

    def take_as(use: TensorUse, path: str, tensor: torch.Tensor) -> dict[str, Any]:
        # A module may give a buffer another shape or type as it goes.
        return codec.describe_tensor(collector.take(path, tensor, use), tensor)

    for name, value in model.state_dict(keep_vars=True).items():
        if name in left_out:
            continue
        plain = plain_name(name)
        # Forward may change buffers, and before it DDP sends rank 0's to all: only those are the model's.
        is_weight = name in parameters and name not in sent
        take: codec.Take = weight
        if not is_weight:
            take = partial(take_as, buffer_use(name, sent))
        out[plain] = codec.encode(value, f"{path}.{plain}", take)
    return out


def buffer_use(name: str, sent: Set[str]) -> TensorUse:
    """What a tensor that is no parameter is for."""
    if name in sent:
        return TensorUse.SENT_BUFFER
    return TensorUse.BUFFER


def frozen(model: torch.nn.Module) -> frozenset[str]:
    """The names of its parameters, as the module has them, that no gradient changes."""
    return frozenset(name for name, param in model.named_parameters(remove_duplicate=False) if not param.requires_grad)


def nonpersistent_names(module: torch.nn.Module) -> list[str]:
    """Where nothing of a module is in its state_dict: what it has and declares to be of no checkpoint, non-persistent
    buffers and the states of a torchmetrics Metric."""
    # Where there are parameters it may be a collective.
    if next(module.parameters(), None) is not None or module.state_dict():
        return []
    names = [name for name, _ in module.named_buffers()]
    for prefix, each in module.named_modules():
        declared = vars(each).get("_persistent")  # torchmetrics' own, by the name of the state
        if isinstance(declared, dict):
            names += [_joined(prefix, str(name)) for name, is_persistent in declared.items() if not is_persistent]
    return names


def _joined(prefix: str, name: str) -> str:
    """Put the name of a module before that of its part; the outermost module has none."""
    if prefix:
        return f"{prefix}.{name}"
    return name


class Loader:
    """Who loads what in a module: what it is filled with in place, and what code of its own is given."""

    def __init__(
        self, model: torch.nn.Module, *, use: TensorUse = TensorUse.WEIGHT, sent: Set[str] = frozenset()
    ) -> None:
        """`use`, `sent`: as for `encode`."""
        self._model = model
        self._uses = {plain_name(name): use for name in fqns(model)[1]}
        self._uses.update((plain_name(name), buffer_use(name, sent)) for name in sent)
        self._owners = [plain_name(name) for name, module in model.named_modules() if _loads_itself(module)]
        # A ScriptModule's has no other way to be gone through than `items`.
        buffers = {}
        for name, module in model.named_modules():
            for key, _ in module._buffers.items():
                if key not in module._non_persistent_buffers_set:
                    buffers[plain_name(_joined(name, key))] = module, key
        self._late = {name: slot for name, slot in buffers.items() if slot[0]._buffers[slot[1]] is None}
        self._buffers = {name: slot for name, slot in buffers.items() if name not in self._late}

    @property
    def device(self) -> torch.device:
        """Where the module's tensors are."""
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            return tensor.device
        return torch.device("cpu")

    def owns(self, name: str) -> bool:
        """Whether code of a module's own loads what has that plain name, whatever its shape and type."""
        return is_extra_state(name) or any(not owner or name.startswith(f"{owner}.") for owner in self._owners)

    def use(self, name: str) -> TensorUse:
        """What the tensors of that plain name are for, those too that the module does not have yet: as they are saved
        again."""
        return self._uses.get(name, TensorUse.BUFFER)

    def is_late(self, name: str) -> bool:
        """Whether it is a buffer that the module makes later: in its first forward pass."""
        return name in self._late

    def is_replaced(self, name: str, here: torch.Tensor | None, dtype: torch.dtype, shape: torch.Size) -> bool:
        """Whether it is a buffer that differs in nothing but its type: a program has cast it on the way."""
        if name not in self._buffers or here is None or sharding.is_sharded(here):
            return False
        return here.shape == shape and here.dtype != dtype and not self.owns(name)

    def adopt(
        self,
        tree: Mapping[str, Any],
        tensor: Callable[[str], torch.Tensor],
        wholes: Mapping[str, torch.Tensor],
        fresh: Set[str],
    ) -> None:
        """Give the modules' own code what could not be filled in place, or everything if they have such code, as
        torch's own loading calls it. `wholes` are the subclasses that are filled, `fresh` the names of tensors that
        were made for this restore."""
        here = self._model.state_dict(keep_vars=True)
        storages = {_storage(value) for value in (*self._model.parameters(), *self._model.buffers())}
        # What is not here is made by the module's own code, or was left out when it was saved.
        names = {name: plain_name(name) for name in here}
        names.update({plain: plain for plain in tree.keys() - names.values()})
        rest = {}
        for name, plain in names.items():
            if plain not in tree:
                continue
            if plain in self._late:
                module, key = self._late[plain]
                module._buffers[key] = codec.decode(tree[plain], tensor, wholes=wholes)
                continue
            new = any(record["name"] in fresh for record in codec.records(tree[plain]))
            if new and plain in self._buffers and not self.owns(plain):
                module, key = self._buffers[plain]
                module._buffers[key] = codec.decode(tree[plain], tensor, wholes=wholes)
                continue
            value = here.get(name)
            filled = isinstance(value, torch.Tensor) and _storage(value) in storages and not new
            if self._owners or not filled:
                rest[name] = codec.decode(tree[plain], tensor, wholes=wholes)
        if rest:
            self._model.load_state_dict(rest, strict=False)


def is_extra_state(name: str) -> bool:
    """Whether it is what `get_extra_state` of a module gave."""
    return name.rpartition(".")[2] == "_extra_state"


def _loads_itself(module: torch.nn.Module) -> bool:
    """Whether a module has code of its own that must see what is loaded."""
    function = type(module)._load_from_state_dict
    is_overridden = not function.__module__.startswith("torch.nn.modules.")
    return is_overridden or _has_hooks(module)


def plain_name(name: str) -> str:
    """A name of the bare model's, without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _storage(tensor: torch.Tensor) -> tuple[torch.device, int]:
    part = sharding.unwrap_dtensor(tensor)
    if not sharding.is_plain(part):
        return part.device, id(part)  # the memory is that of its parts
    return part.device, part.untyped_storage().data_ptr()


def _has_hooks(module: torch.nn.Module) -> bool:
    """Whether it has hooks that must see what is loaded; FSDP2's only rearrange."""
    for hook in (*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values()):
        function = getattr(hook, "hook", hook)
        if not getattr(function, "__module__", "").startswith("torch.distributed.fsdp"):
            return True
    return False
