"""What a restore fills: a state's own tensors, and new ones where the checkpoint has others.

A tensor's shape or type may depend on what was trained: a module's extra state, observers, a queue that grows, moments
that a program has cast. Whoever has code that loads such a tensor, as torch would give it, is given a new one; an
optimizer's state is simply replaced. Everything else that differs stays as it is, and is refused with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from hyperpod_kit.checkpoint.codec import codec, sharding, subclasses
from hyperpod_kit.checkpoint.codec.dtypes import TYPES
from hyperpod_kit.checkpoint.state import modules, optimizer_state
from hyperpod_kit.checkpoint.state.tensors import Collector, TensorUse, is_per_rank
from hyperpod_kit.errors import CheckpointError


class NewTensor(NamedTuple):
    """Memory for a tensor of the checkpoint that this state has otherwise, or not."""

    name: str
    tensor: torch.Tensor
    use: TensorUse


class AddedPart(NamedTuple):
    """An attribute that a subclass's tensor gets once it is filled; None for one that the checkpoint does not have."""

    holder: Any
    name: str
    tensor: torch.Tensor | None


class Targets(Protocol):
    """What is to be filled, by the names of the checkpoint."""

    def add_tensor(self, path: str, tensor: torch.Tensor, /) -> object: ...

    def drop(self, names: Iterable[str], /) -> None: ...


class Filling:
    """A restore under way."""

    def __init__(self) -> None:
        self.live: dict[str, torch.Tensor] = {}
        """The tensors that are filled, by their names in the checkpoint."""
        self.wholes: dict[str, torch.Tensor] = {}
        """The subclasses whose parts are filled, by name."""
        self.fresh: dict[str, torch.Tensor] = {}
        """Of `live` those that were made for this restore."""
        self.made: list[torch.optim.Optimizer] = []
        """The optimizers whose state was made for it."""
        self._added: list[AddedPart] = []
        self._stacks: dict[str, torch.Tensor] = {}

    def clear_made_optimizer_state(self) -> None:
        """Clear the state that was made for optimizers, because nothing was restored."""
        for optimizer in self.made:
            optimizer.state.clear()

    def replace_misfits_and_match_subclasses(
        self,
        tree: Mapping[str, Any],
        collector: Collector,
        loaders: Mapping[str, modules.Loader],
        optimizers: Mapping[str, torch.optim.Optimizer],
        fqns: Mapping[int, str],
    ) -> None:
        """Put new tensors in the place of those that `collector` took and that the checkpoint has with
        another type or shape, and match the parts of subclasses.

        Raises CheckpointError for a subclass that is not the one that was saved.
        """
        for path, loader in loaders.items():
            self._replace_with_new_tensors(_new_tensors_for_module(tree[path], loader, collector), collector)
            self._match_subclasses_below(tree[path], path, collector, strict=True)
        for path, optimizer in optimizers.items():
            if codec.RECORDS in tree:
                misfits = optimizer_state.allocate_for_misfits(optimizer, tree[path], fqns, collector.find)
                self._replace_with_new_tensors((NewTensor(*misfit, TensorUse.WEIGHT) for misfit in misfits), collector)
            self._match_subclasses_below(tree[path], path, collector, strict=False)

    def _replace_with_new_tensors(self, new_tensors: Iterator[NewTensor], collector: Collector) -> None:
        for new in list(new_tensors):
            collector.drop([new.name])
            if not is_per_rank(new.name):  # a rank's own part is read as a new tensor anyway
                collector.add_tensor(new.name, new.tensor, new.use)
                self.fresh[new.name] = new.tensor

    def match_state_dict_subclasses(
        self, tree: Mapping[str, Any], live: Mapping[str, Any], collector: Collector
    ) -> None:
        """Match the tensor subclasses of a nested state dict with those of the checkpoint. Raises
        CheckpointError for one that is none in the checkpoint."""
        for path in live:
            self._match_subclasses_below(tree[path], path, collector, strict=False)
            plain = {name for name in collector.wholes if f"{name}.".startswith(f"{path}.")} - self.wholes.keys()
            if plain:
                name = min(plain)
                problem = subclasses.describe_difference(name, None, collector.wholes[name].head)
                raise CheckpointError(str(problem), hint=f"create {name} as the program that saved it did")

    def _match_subclasses_below(self, tree: Any, path: str, collector: Collector, *, strict: bool) -> None:
        """Match the tensor subclasses below `path` with the saved ones; with `strict` each saved one has
        to exist here."""
        saved = {
            record["name"]: record
            for record in codec.iter_tensor_and_subclass_records(tree)
            if record["$"] == "subclass"
        }
        here = {name for name in collector.wholes if f"{name}.".startswith(f"{path}.")}
        names = here & saved.keys()
        if strict:
            names = here | saved.keys()
        for name in sorted(names):
            record, live_subclass = saved.get(name), collector.wholes.get(name)
            problem = subclasses.describe_difference(
                name, record, live_subclass.head if live_subclass is not None else None
            )
            if problem is not None:
                raise CheckpointError(problem, hint=f"create {name} as the program that saved it did")
            assert record is not None and live_subclass is not None
            self.wholes[name] = live_subclass.tensor
            self.match_subclass_parts(record, live_subclass.tensor, live_subclass.parts, collector)

    def match_subclass_parts(
        self,
        record: Mapping[str, Any],
        subclass_tensor: torch.Tensor,
        live_parts: subclasses.TakenApart,
        targets: Targets,
    ) -> None:
        """Compare the parts of one subclass with those that were saved: make missing parts, drop those
        that the checkpoint lacks and note both for `assign_loaded_parts`."""
        parts = {part.name: part for part in live_parts.parts}
        for key, saved in record["parts"].items():
            part = parts.get(key)
            if saved["$"] != "tensor":
                continue
            if part is None:
                part = subclasses.allocate_part(subclass_tensor, key, saved)
                targets.add_tensor(saved["name"], part.tensor)
                self._added.append(AddedPart(live_parts.holder, key, part.inner))
            elif part.rows != saved.get(subclasses.ROWS, 0):
                targets.drop([saved["name"]])
                self._stacks[saved["name"]] = part.inner
        for key in parts.keys() - record["parts"].keys():
            targets.drop([f"{record['name']}.{key}"])
            self._added.append(AddedPart(live_parts.holder, key, None))

    def assign_loaded_parts(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Copy stacked parts and set or remove the attributes of subclasses, once all bytes are read.
        Raises CheckpointError for a part that several ranks had each for itself."""
        with torch.no_grad():
            for name, inner in self._stacks.items():
                stack = loaded[name]
                row = stack
                if stack.dim() > inner.dim():
                    row = subclasses.require_equal_rows(name, stack)
                inner.copy_(row)
        for holder, name, tensor in self._added:
            setattr(holder, name, tensor)


def _new_tensors_for_module(
    tree: Mapping[str, Any], loader: modules.Loader, collector: Collector
) -> Iterator[NewTensor]:
    """Yield new tensors for those that a module's own code loads or whose type or shape differs in the
    checkpoint."""
    for plain, saved in tree.items():
        for record in codec.iter_tensor_and_subclass_records(saved):
            if record["$"] != "tensor" or "t" not in record:
                continue
            here = collector.find(record["name"])
            as_saved = TYPES[record["t"]], torch.Size(record["s"])
            if modules.is_extra_state(plain) or loader.is_lazy_buffer(plain):
                yield NewTensor(record["name"], _allocate(as_saved, loader.device), loader.tensor_use_of(plain))
            elif loader.is_buffer_of_other_dtype(plain, here, *as_saved):
                assert here is not None, "what is not there is not replaced"
                yield NewTensor(record["name"], _allocate(as_saved, here.device), loader.tensor_use_of(plain))
            elif loader.has_custom_loading(plain) and (here is None or (here.dtype, here.shape) != as_saved):
                like = None
                if here is not None and not sharding.is_sharded(here):
                    like = here
                device = like.device if like is not None else loader.device
                yield NewTensor(record["name"], _allocate(as_saved, device), loader.tensor_use_of(plain))


def _allocate(kind: tuple[torch.dtype, torch.Size], device: torch.device) -> torch.Tensor:
    return torch.empty(kind[1], dtype=kind[0], device=device)
