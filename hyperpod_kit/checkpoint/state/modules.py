"""A module's tensors: under the bare model's names into the tree of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.codec import codec, sharding
from hyperpod_kit.checkpoint.state.tensors import Collector, TensorUse

# Prefixes that wrappers put into parameter names; the checkpoint has the names of the bare model.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def unwrap_ddp_and_compile(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside DDP and torch.compile."""
    inner = None
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        inner = model.module
    if inner is None:
        inner = getattr(model, "_orig_mod", None)
    if isinstance(inner, torch.nn.Module):
        return unwrap_ddp_and_compile(inner)
    return model


class ParameterNames(NamedTuple):
    """The names of a module's parameters: of each, by its id, the first in the bare model; and all, as the module has
    them."""

    first_by_id: dict[int, str]
    all_names: set[str]


NO_PARAMETERS = ParameterNames({}, set())


def parameter_names(model: torch.nn.Module) -> ParameterNames:
    """Name the parameters of a module, in one walk."""
    firsts: dict[int, str] = {}
    names = set()
    for name, param in model.named_parameters(remove_duplicate=False):
        names.add(name)
        if id(param) not in firsts:
            firsts[id(param)] = strip_wrapper_prefixes(name)
    return ParameterNames(firsts, names)


def encode(
    model: torch.nn.Module,
    path: str,
    collector: Collector,
    parameter_names: Set[str],
    *,
    use: TensorUse = TensorUse.WEIGHT,
    broadcast_names: Set[str] = frozenset(),
    excluded_names: Set[str] = frozenset(),
) -> dict[str, Any]:
    """Record a module's tensors in the collector and return its encoded state dict, by the bare
    model's names.
    The state dict has the model's own objects instead of detached copies of them (`keep_vars`), so
    that an unchanged tensor is recognised. `parameter_names` are the names of its parameters, which
    are of that `use`; all else is a buffer, and of them `broadcast_names` those that DDP sends
    around. `excluded_names` are not saved."""
    out = {}
    weight = partial(collector.add_tensor, use=use)

    def take_as(use: TensorUse, path: str, tensor: torch.Tensor) -> dict[str, Any]:
        # A module may give a buffer another shape or type as it goes.
        return codec.record_with_type_and_shape(collector.add_tensor(path, tensor, use), tensor)

    for name, value in model.state_dict(keep_vars=True).items():
        if name in excluded_names:
            continue
        plain = strip_wrapper_prefixes(name)
        # Forward may change buffers, and before it DDP sends rank 0's to all: only those are the model's.
        is_weight = name in parameter_names and name not in broadcast_names
        take: codec.Take = weight
        if not is_weight:
            take = partial(take_as, buffer_use(name, broadcast_names))
        out[plain] = codec.encode(value, f"{path}.{plain}", take)
    return out


def buffer_use(name: str, broadcast_names: Set[str]) -> TensorUse:
    """Return the use of a tensor that is no parameter: a buffer that DDP broadcasts, or another one."""
    if name in broadcast_names:
        return TensorUse.SENT_BUFFER
    return TensorUse.BUFFER


def frozen_parameter_names(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of the module's parameters, as the module has them, that require no gradient."""
    return frozenset(name for name, param in model.named_parameters(remove_duplicate=False) if not param.requires_grad)


def nonpersistent_names_if_stateless(module: torch.nn.Module) -> list[str]:
    """Return the names of a module's non-persistent buffers and torchmetrics states where its
    state_dict is empty; [] for a module that saves anything or has parameters."""
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
        self,
        model: torch.nn.Module,
        names: ParameterNames,
        *,
        use: TensorUse = TensorUse.WEIGHT,
        broadcast_names: Set[str] = frozenset(),
    ) -> None:
        """`names`: those of the model. `use`, `broadcast_names`: as for `encode`."""
        self._model = model
        self._uses = {strip_wrapper_prefixes(name): use for name in names.all_names}
        self._uses.update((strip_wrapper_prefixes(name), buffer_use(name, broadcast_names)) for name in broadcast_names)
        self._owners = []
        # A ScriptModule's has no other way to be gone through than `items`.
        buffers = {}
        for name, module in model.named_modules():
            if _has_custom_load_code_or_hooks(module):
                self._owners.append(strip_wrapper_prefixes(name))
            for key, _ in module._buffers.items():
                if key not in module._non_persistent_buffers_set:
                    buffers[strip_wrapper_prefixes(_joined(name, key))] = module, key
        self._late = {name: slot for name, slot in buffers.items() if slot[0]._buffers[slot[1]] is None}
        self._buffers = {name: slot for name, slot in buffers.items() if name not in self._late}

    @property
    def device(self) -> torch.device:
        """Where the module's tensors are."""
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            return tensor.device
        return torch.device("cpu")

    def has_custom_loading(self, name: str) -> bool:
        """Return whether a module's own code loads what has that plain name, whatever its shape and type."""
        return is_extra_state(name) or any(not owner or name.startswith(f"{owner}.") for owner in self._owners)

    def tensor_use_of(self, name: str) -> TensorUse:
        """Return the use of the tensors of that plain name, those too that the module does not have yet,
        so that they are saved again as before."""
        return self._uses.get(name, TensorUse.BUFFER)

    def is_lazy_buffer(self, name: str) -> bool:
        """Return whether it is a buffer that the module makes later, in its first forward pass."""
        return name in self._late

    def is_buffer_of_other_dtype(
        self, name: str, here: torch.Tensor | None, dtype: torch.dtype, shape: torch.Size
    ) -> bool:
        """Return whether it is a buffer that differs in nothing but its type: a program has cast it on the
        way."""
        if name not in self._buffers or here is None or sharding.is_sharded(here):
            return False
        return here.shape == shape and here.dtype != dtype and not self.has_custom_loading(name)

    def load_unfilled_state(
        self,
        tree: Mapping[str, Any],
        get_tensor: Callable[[str], torch.Tensor],
        filled_subclasses_by_name: Mapping[str, torch.Tensor],
        names_made_for_restore: Set[str],
    ) -> None:
        """Load what could not be filled in place through the modules' own `load_state_dict`, or everything
        where modules have such code, and set lazy and newly made buffers.
        `filled_subclasses_by_name` are the subclasses that are filled, `names_made_for_restore` the
        names of tensors that were made for this restore."""
        here = self._model.state_dict(keep_vars=True)
        storages = {_storage_identity(value) for value in (*self._model.parameters(), *self._model.buffers())}
        # What is not here is made by the module's own code, or was left out when it was saved.
        names = {name: strip_wrapper_prefixes(name) for name in here}
        names.update({plain: plain for plain in tree.keys() - names.values()})
        rest = {}
        for name, plain in names.items():
            if plain not in tree:
                continue
            if plain in self._late:
                module, key = self._late[plain]
                module._buffers[key] = codec.decode(
                    tree[plain], get_tensor, filled_subclasses=filled_subclasses_by_name
                )
                continue
            new = any(
                record["name"] in names_made_for_restore
                for record in codec.iter_tensor_and_subclass_records(tree[plain])
            )
            if new and plain in self._buffers and not self.has_custom_loading(plain):
                module, key = self._buffers[plain]
                module._buffers[key] = codec.decode(
                    tree[plain], get_tensor, filled_subclasses=filled_subclasses_by_name
                )
                continue
            value = here.get(name)
            filled = isinstance(value, torch.Tensor) and _storage_identity(value) in storages and not new
            if self._owners or not filled:
                rest[name] = codec.decode(tree[plain], get_tensor, filled_subclasses=filled_subclasses_by_name)
        if rest:
            self._model.load_state_dict(rest, strict=False)


def is_extra_state(name: str) -> bool:
    """Return whether the name is that of what a module's `get_extra_state` returned."""
    return name.rpartition(".")[2] == "_extra_state"


def _has_custom_load_code_or_hooks(module: torch.nn.Module) -> bool:
    """Return whether a module has code of its own that must see what is loaded."""
    function = type(module)._load_from_state_dict
    is_overridden = not function.__module__.startswith("torch.nn.modules.")
    return is_overridden or _has_load_hooks(module)


def strip_wrapper_prefixes(name: str) -> str:
    """Return a name of the bare model, without the prefixes that wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _storage_identity(tensor: torch.Tensor) -> tuple[torch.device, int]:
    part = sharding.unwrap_dtensor(tensor)
    if not sharding.is_plain(part):
        return part.device, id(part)  # the memory is that of its parts
    return part.device, part.untyped_storage().data_ptr()


def _has_load_hooks(module: torch.nn.Module) -> bool:
    """Return whether a module has hooks that must see what is loaded; FSDP2's only rearrange."""
    for hook in (*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values()):
        function = getattr(hook, "hook", hook)
        if not getattr(function, "__module__", "").startswith("torch.distributed.fsdp"):
            return True
    return False
