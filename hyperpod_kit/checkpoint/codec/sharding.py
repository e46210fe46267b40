"""Where the part of a tensor that lies on this rank belongs in the whole, and which other ranks hold the same part.

No collective here but where whole tensors are gathered: a DTensor (DDP over a mesh, FSDP2, HSDP, tensor parallel) and
a ShardedTensor (FSDP1) carry everything that is needed; plain tensors are equal on all ranks that have their name (see
`placement`).
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.codec import unsavable
from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.submeshes import SubMeshes, TensorLayout
from hyperpod_kit.errors import StateNotSerializable

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))


class LocalPart(NamedTuple):
    """`offsets` and `full` as in TensorSpec; the rest as in Piece. `temporary`: `local` is a copy made for this."""

    local: torch.Tensor
    offsets: tuple[int, ...]
    full: tuple[int, ...]
    replica: tuple[int, int]
    holders: tuple[int, ...]
    group: dist.ProcessGroup | None
    layout: str = ""
    temporary: bool = False


@lru_cache(maxsize=None)
def _is_subclass_by_name(kind: Hashable, module: str, name: str) -> bool:
    """Return whether `kind` is a subclass of a class named by module and name, without importing it:
    nobody can have such a type before its module was imported."""
    expected = getattr(sys.modules.get(module), name, None)
    return expected is not None and isinstance(kind, type) and issubclass(kind, expected)


@lru_cache(maxsize=None)
def _changes_no_tensor_operation(kind: Hashable) -> bool:
    """Return whether a tensor of that class is its memory: the class adds names and methods, and
    changes no operation."""
    return (
        isinstance(kind, type)
        and issubclass(kind, (torch.nn.Parameter, torch.nn.Buffer))
        and not issubclass(kind, (torch.nn.parameter.UninitializedParameter, torch.nn.parameter.UninitializedBuffer))
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and not hasattr(kind, "__tensor_flatten__")
    )


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor's memory is all that it is: it is of torch's own classes, or of one that
    changes no operation."""
    kind: Any = type(tensor)
    return kind in PLAIN or _changes_no_tensor_operation(kind)


def wait_for_collective(tensor: Any) -> Any:
    """Wait for the collective that makes this tensor and return its result; any other tensor as it is."""
    if not _is_subclass_by_name(tensor.__class__, "torch.distributed._functional_collectives", "AsyncCollectiveTensor"):
        return tensor
    tensor.trigger_wait()
    return tensor.elem


def is_dtensor(tensor: Any) -> bool:
    return _is_subclass_by_name(tensor.__class__, "torch.distributed.tensor", "DTensor")


def is_sharded_tensor(tensor: Any) -> bool:
    return _is_subclass_by_name(tensor.__class__, "torch.distributed._shard.sharded_tensor", "ShardedTensor")


def is_sharded(tensor: object) -> bool:
    """Return whether it is a tensor of which each rank holds a part (DTensor, ShardedTensor)."""
    return is_dtensor(tensor) or is_sharded_tensor(tensor)


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor, live, and a plain tensor detached; of a ShardedTensor its
    first shard, or an empty tensor."""
    if is_dtensor(tensor):
        # What `to_local` gives without gradients, less 20 us of marking it as a parameter.
        part: torch.Tensor = tensor._local_tensor
        if type(part) not in PLAIN:
            part = wait_for_collective(part)
        return part
    if is_sharded_tensor(tensor):
        shards = tensor.local_shards()
        if not shards:
            return torch.empty(0, dtype=tensor.dtype, device="cpu")
        first: torch.Tensor = shards[0].tensor
        return first
    plain: torch.Tensor = tensor.detach()
    return plain


def unwrap_dtensor(tensor: Any) -> Any:
    """Return the local part of a DTensor, which may be a subclass; any other tensor as it is."""
    if is_dtensor(tensor):
        return local(tensor)
    return tensor


def undetached_local_tensor(tensor: Any) -> torch.Tensor:
    """Return this rank's part as `local`, but a plain tensor itself: to look at, not to keep."""
    part: torch.Tensor = tensor
    if type(tensor) not in PLAIN:
        part = local(tensor)
    return part


@lru_cache(maxsize=16)
def _cached_mesh_rank_grid(mesh: Any) -> torch.Tensor:
    """Return the ranks of a mesh, in its shape, cached: torch computes them at each access, which a
    state of many tensors feels."""
    ranks: torch.Tensor = mesh.mesh
    return ranks


@lru_cache(maxsize=16)
def _mesh_ranks(mesh: Any) -> tuple[int, ...]:
    """The global ranks of a mesh, in its order."""
    return tuple(_cached_mesh_rank_grid(mesh).reshape(-1).tolist())


@lru_cache(maxsize=256)
def _mesh_layout_text(mesh: Any, placements: Any, submeshes: SubMeshes) -> str:
    return TensorLayout("", tuple(_cached_mesh_rank_grid(mesh).shape), _mesh_ranks(mesh), str(list(placements))).text(
        submeshes
    )


def layout_of(tensor: Any) -> TensorLayout:
    """Return type, full shape, mesh and placements of a sharded tensor, as this rank sees it by
    itself."""
    kind = f"{NAMES.get(tensor.dtype)} {list(tensor.shape)}"
    if is_dtensor(tensor):
        mesh = tensor.device_mesh
        return TensorLayout(
            kind, tuple(_cached_mesh_rank_grid(mesh).shape), _mesh_ranks(mesh), str(list(tensor.placements))
        )
    boxes = [(shard.shard_offsets, shard.shard_sizes) for shard in tensor.metadata().shards_metadata]
    return TensorLayout(f"{kind} {boxes}")


def describe_layout(path: str, tensor: Any, ranks: Ranks) -> str:
    """Describe the layout of a sharded tensor, equal on all ranks: of all sub-meshes that hold the
    tensor alike."""
    if not is_dtensor(tensor):
        return layout_of(tensor).text()
    mesh_layout = _mesh_layout_text(tensor.device_mesh, tensor.placements, _submeshes(path, tensor, ranks))
    return f"{NAMES.get(tensor.dtype)} {list(tensor.shape)}{mesh_layout}"


def _submeshes(path: str, tensor: Any, ranks: Ranks) -> SubMeshes:
    if not ranks.placement.divided:
        return ()
    return ranks.placement.submeshes_if_several(path, _mesh_ranks(tensor.device_mesh))


@lru_cache(maxsize=256)
def _placement_codes(placements: Any) -> tuple[str, ...]:
    return tuple(map(_placement_code, placements))


def _placement_code(placement: Any) -> str:
    if placement.is_replicate():
        return "R"
    # A _StridedShard says of itself that it is a Shard, too.
    if type(placement).__name__ == "Shard":
        return f"S{placement.dim}"
    return ""


def placement_codes(tensor: Any) -> list[str]:
    """How a DTensor lies along each dimension of its mesh: `R` whole, `S0` divided along its dimension 0; "" for what
    no word says."""
    return list(_placement_codes(tensor.placements))


class Full(NamedTuple):
    """`State(full=True)`: rank 0 has whole tensors. `gather`: now, of a save; a restore fills what lies here."""

    is_requested: bool
    gather: bool


def locate_local_part(path: str, tensor: torch.Tensor, ranks: Ranks, *, per_rank: bool, full: Full) -> LocalPart | None:
    """Return where this rank's part of `tensor` belongs; None when no part of it lies here.

    `per_rank`: it is this rank's alone, of a DTensor the part that lies here. Where sharded tensors
    are gathered this is a collective. Raises StateNotSerializable for subclasses of Tensor, which
    `subclasses` takes apart before, and for placements that are no box of the whole.
    """
    if per_rank and is_dtensor(tensor):
        return LocalPart(local(tensor), (), (), (0, 1), (), None)
    if per_rank and is_sharded_tensor(tensor):
        raise StateNotSerializable(path, "ShardedTensor, of which each rank has a part already, as its own")
    if full.gather and is_sharded(tensor):
        return _gather_whole_on_rank_zero(path, tensor, ranks)
    if is_dtensor(tensor):
        return _locate_dtensor_part_on_rank(path, tensor, ranks)
    if is_sharded_tensor(tensor):
        return _locate_sharded_tensor_part_on_rank(path, tensor, ranks, rank_zero_writes_all=full.is_requested)
    if torch.nn.parameter.is_lazy(tensor):
        raise StateNotSerializable(
            path,
            f"{type(tensor).__name__} of a lazy module, which has no shape yet",
            hint="run the model forward once before its first restore or save",
        )
    if not is_plain(tensor):
        raise unsavable.subclass_error(path, tensor)
    if per_rank:
        return LocalPart(tensor.detach(), (), (), (0, 1), (), None)
    some = ranks.placement.replica_and_holders(path)
    if some is None:
        return LocalPart(tensor.detach(), (), (), (ranks.rank, ranks.world), (), None)
    replica, holders = some
    return LocalPart(tensor.detach(), (), (), replica, tuple(map(ranks.global_rank, holders)), None)


def _gather_whole_on_rank_zero(path: str, tensor: Any, ranks: Ranks) -> LocalPart:
    """Gather a sharded tensor whole on rank 0; without memory on other ranks, which write none of it.
    A collective."""
    if is_dtensor(tensor):
        full_tensor = gather_dtensor(tensor, is_requested=ranks.rank == 0)
    else:
        full_tensor = gather_sharded_tensor_to_rank_zero(tensor, is_requested=ranks.rank == 0)
    if full_tensor is None and ranks.rank == 0:
        raise StateNotSerializable(path, "ShardedTensor with full=True, of a process group without rank 0 of the job")
    if full_tensor is None:
        full_tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return LocalPart(full_tensor, (), (), (ranks.rank, ranks.world), (), None, temporary=True)


class _Box(NamedTuple):
    """Place, less the tensor itself: what all DTensors of one type, shape, mesh and placements have in common."""

    extents: tuple[int, ...]
    offsets: tuple[int, ...]
    absent: bool
    replica: tuple[int, int]
    holders: tuple[int, ...]
    group: dist.ProcessGroup | None


@lru_cache(maxsize=1024)
def _local_box_and_replica_holders(
    ranks: Ranks, mesh: Any, placements: Any, shape: tuple[int, ...], submeshes: SubMeshes
) -> _Box | None:
    """Return where this rank's part of a DTensor lies and which ranks hold it too, cached; None when
    this rank is not in the mesh.

    torch takes 0.1 ms to compute it, and a state has few of many tensors. `ranks` is of one process
    group's life, and so is the cache. Raises ValueError for placements that are no box of the
    whole.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    here = mesh.get_coordinate()
    if here is None:
        return None
    _refuse_partial_or_uneven_placements(mesh, placements, shape)
    extents, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
    split = [dim for dim, placement in enumerate(placements) if not placement.is_replicate()]
    absent = 0 in extents and any(here[dim] for dim in split)
    replicated_dims = [dim for dim in range(mesh.ndim) if dim not in split]
    replica, holders, group = _find_replica_holders(mesh, replicated_dims, here, submeshes, ranks)
    return _Box(tuple(extents), tuple(offsets), absent, replica, holders, group)


def _locate_dtensor_part_on_rank(path: str, tensor: Any, ranks: Ranks) -> LocalPart | None:
    shape = tuple(tensor.shape)
    try:
        box = _local_box_and_replica_holders(
            ranks, tensor.device_mesh, tensor.placements, shape, _submeshes(path, tensor, ranks)
        )
    except ValueError as err:
        raise StateNotSerializable(path, str(err)) from None
    if box is None:
        return None
    part = local(tensor)
    if tuple(part.shape) != box.extents:
        raise StateNotSerializable(path, f"DTensor whose local shape is {tuple(part.shape)}, expected {box.extents}")
    if box.absent:
        return None
    offsets, full = box.offsets, shape
    if box.extents == shape:
        offsets, full = (), ()
    return LocalPart(
        part,
        offsets,
        full,
        box.replica,
        box.holders,
        box.group,
        describe_layout(path, tensor, ranks),
    )


def _refuse_partial_or_uneven_placements(mesh: Any, placements: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError for placements that leave a rank with no box of the whole tensor."""
    parts: dict[int, int] = {}
    strided = set()
    for dim, placement in enumerate(placements):
        if placement.is_replicate():
            continue
        if placement.is_partial():
            raise ValueError(f"DTensor with placement {placement}: its value is not reduced yet")
        parts[placement.dim] = parts.get(placement.dim, 1) * mesh.size(dim)
        if type(placement).__name__ == "_StridedShard":
            strided.add(placement.dim)
    for dim in strided:
        # Only an even split leaves each rank with one contiguous range of the dimension.
        if shape[dim] % parts[dim]:
            raise ValueError(f"DTensor of {list(shape)} with uneven placements {list(placements)}")


def _find_replica_holders(
    mesh: Any, dims: list[int], here: list[int], submeshes: SubMeshes, ranks: Ranks
) -> tuple[tuple[int, int], tuple[int, ...], dist.ProcessGroup | None]:
    """Return ((this rank's index, how many), their ranks, their group) of the ranks that differ from
    this one in `dims` only, or in the sub-mesh."""
    at = tuple(slice(None) if dim in dims else here[dim] for dim in range(mesh.ndim))
    holders = tuple(_cached_mesh_rank_grid(mesh)[at].reshape(-1).tolist())
    if submeshes:
        places = [_mesh_ranks(mesh).index(rank) for rank in holders]
        holders = tuple(sorted(submesh[index] for submesh in submeshes for index in places))
    if len(holders) == 1:
        return (0, 1), holders, None
    if len(holders) == ranks.world:
        return (ranks.rank, ranks.world), (), None
    wide = [dim for dim in dims if mesh.size(dim) > 1]
    group = None
    if len(wide) == 1 and not submeshes:
        group = mesh.get_group(wide[0])
    return (holders.index(dist.get_rank()), len(holders)), holders, group


def _locate_sharded_tensor_part_on_rank(
    path: str, tensor: Any, ranks: Ranks, *, rank_zero_writes_all: bool
) -> LocalPart | None:
    """Return this rank's part of a ShardedTensor; None when no part of it lies here.
    `rank_zero_writes_all`: it does not matter who else has this part."""
    shards = tensor.local_shards()
    among = dist.get_world_size(tensor._process_group)
    if among != ranks.world and not rank_zero_writes_all:
        # It does not say which other ranks hold the same part; a DTensor does.
        raise StateNotSerializable(
            path,
            f"ShardedTensor over {among} of {ranks.world} ranks (FSDP1's hybrid sharding "
            "must be given `device_mesh`, not process groups, or State(full=True))",
        )
    if not shards or shards[0].tensor.numel() == 0:
        return None
    if len(shards) > 1:
        raise StateNotSerializable(path, f"ShardedTensor with {len(shards)} shards on one rank")
    shape, extents = tuple(tensor.shape), tuple(shards[0].metadata.shard_sizes)
    offsets, full = tuple(shards[0].metadata.shard_offsets), shape
    if extents == shape:
        offsets, full = (), ()
    return LocalPart(
        shards[0].tensor.detach(),
        offsets,
        full,
        (0, 1),
        (),
        None,
        describe_layout(path, tensor, ranks),
        temporary=True,
    )


# Whole tensors of sharded ones, for `State(full=True)`: one after the other, so that each device holds one at a time.
#
# Collectives. What rank 0 gets lies in host memory: a device has room for its shards, not for a model.


def gather_dtensor(tensor: Any, *, is_requested: bool) -> torch.Tensor | None:
    """Gather a DTensor (a collective) and return the whole tensor in host memory where it
    `is_requested`, else None."""
    with torch.no_grad():
        full_tensor: torch.Tensor = tensor.full_tensor()
    if is_requested:
        return full_tensor.detach().cpu()
    return None


def gather_sharded_tensor_to_rank_zero(tensor: Any, *, is_requested: bool) -> torch.Tensor | None:
    """The same of a ShardedTensor (FSDP1), on the first rank of all. It may be over some of the ranks only, and others
    have the same of it (hybrid sharding by process groups): those with the first rank give it."""
    group = tensor._process_group
    if 0 not in dist.get_process_group_ranks(group):
        return None
    full_tensor: torch.Tensor | None = None
    if dist.get_rank() == 0:
        full_tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device=_device_of_local_shards(tensor))
    tensor.gather(dst=0, out=full_tensor, dtype=tensor.dtype)
    if full_tensor is not None and is_requested:
        return full_tensor.cpu()
    return None


def _device_of_local_shards(tensor: Any) -> torch.device:
    """Return the device to which the pieces are sent: NCCL has no host memory."""
    shards = tensor.local_shards()
    device = torch.device("cpu")
    if shards:
        device = shards[0].tensor.device
    return device
