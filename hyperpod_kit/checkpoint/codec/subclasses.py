"""Tensor subclasses as the plain tensors that they are made of: quantised weights, 8-bit optimizer states, float8.

A subclass that torch.compile can take apart says how: `__tensor_flatten__` names the attributes that are tensors, and
what else it needs to be made again. These tensors are saved under names of their own (`model.weight.scale`) and filled
where they lie. Of a DTensor whose local part is such a tensor each part becomes a DTensor by itself, divided as the
whole is: alike, in proportion, or, where torch cannot say how, as a stack with one row for each rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.codec import sharding, typed_values, unsavable
from hyperpod_kit.checkpoint.codec.dtypes import NAMES, TYPES
from hyperpod_kit.errors import CheckpointError, StateNotSerializable

if TYPE_CHECKING:
    from fractions import Fraction

Json = Any

ROWS = "rows"
"""Key of a part's record: how many ranks' parts are stacked in the tensor that is stored."""


class InnerTensor(NamedTuple):
    """A tensor inside a subclass. `inner` is the attribute's value, `tensor` what is saved of it: a DTensor over the
    same memory where the whole is one. `rows`: of a stack, 0 of anything else."""

    name: str
    inner: torch.Tensor
    tensor: torch.Tensor
    rows: int = 0


class TakenApart(NamedTuple):
    """A subclass that was taken apart. `holder` is the object that has the attributes: of a DTensor its local part."""

    holder: Any
    parts: tuple[InnerTensor, ...]
    kind: type
    context: Any
    """What else the class needs to make such a tensor again."""

    def has_same_parts(self, tensor: Any) -> bool:
        """Return whether `tensor`, which was taken apart before, still has these parts."""
        here = sharding.unwrap_dtensor(tensor)
        if here is not self.holder:
            return not self.parts
        names = here.__tensor_flatten__()[0]
        return len(names) == len(self.parts) and all(
            part.name == name and getattr(here, name) is part.inner
            for part, name in zip(self.parts, names, strict=True)
        )

    @property
    def class_name(self) -> str:
        return name_of_class(self.kind)


def name_of_class(kind: type) -> str:
    """Return the name under which records have a class."""
    return typed_values.class_name_if_found_in_modules(kind) or f"{kind.__module__}:{kind.__qualname__}"


def take_apart(path: str, tensor: Any) -> TakenApart | None:
    """The parts of a tensor, or of the local part of a DTensor; None for one without. Raises StateNotSerializable for
    a class that cannot be taken apart."""
    local = sharding.unwrap_dtensor(tensor)
    if sharding.is_plain(local) or sharding.is_sharded(local) or torch.nn.parameter.is_lazy(local):
        return None
    if local.is_nested or not hasattr(local, "__tensor_flatten__"):
        raise unsavable.subclass_error(path, local)
    names, context = local.__tensor_flatten__()
    inner = {name: getattr(local, name) for name in names}
    if not sharding.is_dtensor(tensor):
        parts = tuple(InnerTensor(name, part, part) for name, part in inner.items())
    else:
        with torch.no_grad():
            parts = tuple(_wrap_part_as_dtensor(path, tensor, name, part) for name, part in inner.items())
    return TakenApart(local, parts, type(local), context)


def nbytes(tensor: Any) -> int:
    """Return the bytes of a tensor; of a subclass those of its parts."""
    if sharding.is_plain(tensor) or not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    return sum(nbytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])


def part_record(name: str, part: InnerTensor) -> dict[str, Json]:
    """Return the record of a part that is stored as `name`."""
    record: dict[str, Json] = {"$": "tensor", "name": name}
    if isinstance(part.inner, torch.Tensor) and part.inner.dtype in NAMES:
        record.update(t=NAMES[part.inner.dtype], s=list(part.tensor.shape))
    if not part.rows:
        return record
    return {**record, ROWS: part.rows}


def rebuild_subclass_from_parts(record: dict[str, Json], parts: dict[str, torch.Tensor], context: Any) -> Any:
    """Return a new tensor of the class that was saved, made from its parts. Raises CheckpointError."""
    name = record["class"]
    kind = typed_values.imported_class_by_name(name)
    if not issubclass(kind, torch.Tensor) or not hasattr(kind, "__tensor_unflatten__"):
        raise CheckpointError(f"{name} was a tensor subclass when it was saved, but is not one now")
    rows = {key for key, part in record["parts"].items() if part.get(ROWS)}
    inner = {key: require_equal_rows(record["name"], part) if key in rows else part for key, part in parts.items()}
    return kind.__tensor_unflatten__(inner, context, None, None)


def require_equal_rows(name: str, stack: torch.Tensor) -> torch.Tensor:
    """Return the row that all rows of a stack equal. Raises CheckpointError where they differ: such a
    part belongs to one rank's."""
    first = stack[0]
    if any(not torch.equal(_flat_bytes(row), _flat_bytes(first)) for row in stack[1:]):
        raise CheckpointError(
            f"{name} has a part that {len(stack)} ranks have each for itself, and torch does not say how to divide it",
            hint=f"restore it on ranks that divide it into {len(stack)} parts",
        )
    return first


def describe_difference(path: str, saved: dict[str, Json] | None, here: dict[str, Json] | None) -> str | None:
    """Why the subclass that is here is not the one that was saved, by their records, in words; None where it is. A
    plain tensor has no record."""
    classes = [record["class"] if record is not None else "plain tensor" for record in (saved, here)]
    if saved is None or here is None or classes[0] != classes[1]:
        return f"{path} is a {classes[0]} in the checkpoint, and a {classes[1]} in the program"
    contexts = saved["context"], here["context"]
    if None not in contexts and contexts[0] != contexts[1]:
        return (
            f"{path}, a {classes[0]}, was made with {contexts[0]} in the checkpoint, and with {contexts[1]} in the "
            "program"
        )
    return None


def allocate_part(subclass_tensor: Any, name: str, record: dict[str, Json]) -> InnerTensor:
    """Return memory for a part that the checkpoint has and the tensor here does not have yet, of the
    shape that it has on one rank; it is not set on the tensor."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Shard

    rows = record.get(ROWS, 0)
    shape = record["s"]
    if rows:
        shape = shape[1:]
    inner = torch.empty(shape, dtype=TYPES[record["t"]], device=sharding.unwrap_dtensor(subclass_tensor).device)
    if not sharding.is_dtensor(subclass_tensor):
        return InnerTensor(name, inner, inner)
    placements = tuple(
        placement if placement.is_replicate() or not rows else Shard(0) for placement in subclass_tensor.placements
    )
    data = inner
    if rows:
        data = inner.unsqueeze(0)
    dtensor: Any = DTensor.from_local(
        data, subclass_tensor.device_mesh, placements, run_check=False, shape=torch.Size(record["s"])
    )
    return InnerTensor(name, inner, dtensor, rows)


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


# --- the parts of a DTensor -------------------------------------------------------------------------------------


class _Division(NamedTuple):
    """How a part is divided: along its dimension `dim`, of which `extent` is the whole; None: as the whole tensor."""

    dim: int
    extent: int


def _wrap_part_as_dtensor(path: str, dtensor: Any, name: str, inner: torch.Tensor) -> InnerTensor:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Shard

    if not sharding.is_plain(inner):
        raise StateNotSerializable(
            f"{path}.{name}", f"{type(inner).__name__} inside a {type(sharding.local(dtensor)).__name__} of a DTensor"
        )
    local, mesh = sharding.local(dtensor), dtensor.device_mesh
    placements, rows, data = dtensor.placements, 0, inner.detach()
    if inner.shape == local.shape:
        shape: tuple[int, ...] = tuple(dtensor.shape)
    elif all(placement.is_replicate() for placement in placements):
        shape = tuple(inner.shape)
    else:
        split = [number for number, placement in enumerate(placements) if not placement.is_replicate()]
        division = _proportional_division_or_none(dtensor, name)
        if division is not None:
            shape = (*inner.shape[: division.dim], division.extent, *inner.shape[division.dim + 1 :])
            dim = division.dim
        else:
            rows = 1
            for number in split:
                rows *= mesh.size(number)
            data, shape, dim = data.unsqueeze(0), (rows, *inner.shape), 0
        placements = tuple(Shard(dim) if number in split else original for number, original in enumerate(placements))
    stride = torch.empty(shape, device="meta", dtype=data.dtype).stride()
    part: Any = DTensor.from_local(data, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
    return InnerTensor(name, inner, part, rows)


def _proportional_division_or_none(dtensor: Any, name: str) -> _Division | None:
    """Return along which dimension the part `name` is divided in proportion to the whole, seen from
    what slicing the local part does to it; None where that cannot be seen, or its boundaries would
    lie inside an item."""
    local = sharding.local(dtensor)
    dims = {placement.dim for placement in dtensor.placements if not placement.is_replicate()}
    if len(dims) != 1:
        return None
    (dim,) = dims
    inner = getattr(local, name)
    sliced = _probe_sliced_dimension(local, dim, name)
    if sliced is None:
        return None
    along, ratio = sliced
    parts = 1
    for number, placement in enumerate(dtensor.placements):
        if not placement.is_replicate():
            parts *= dtensor.device_mesh.size(number)
    extent, each = dtensor.shape[dim], -(-dtensor.shape[dim] // parts)
    even = extent % parts == 0
    nested = sum(not placement.is_replicate() for placement in dtensor.placements) > 1
    scaled = extent * ratio
    if (each * ratio).denominator != 1 or scaled.denominator != 1 or (nested and not even):
        return None
    if -(-int(scaled) // parts) != each * ratio or inner.shape[along] != local.shape[dim] * ratio:
        return None
    return _Division(along, int(scaled))


def _probe_sliced_dimension(local: Any, dim: int, name: str) -> tuple[int, Fraction] | None:
    """Return which dimension of the part becomes shorter when the tensor is cut along `dim`, and its
    items for one of the tensor's; None where that cannot be seen."""
    from fractions import Fraction  # of divided subclasses alone

    extent, before = local.shape[dim], getattr(local, name).shape
    for number in (2, 4, 3, 8, 5, 7, 6):
        if extent % number:
            continue
        try:
            after = getattr(local.narrow(dim, 0, extent // number), name).shape
        except Exception:  # whatever a class raises for a cut that it cannot make
            continue
        if len(after) != len(before):
            return None
        shorter = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if len(shorter) != 1 or before[shorter[0]] != after[shorter[0]] * number:
            return None
        return shorter[0], Fraction(before[shorter[0]], extent)
    return None
