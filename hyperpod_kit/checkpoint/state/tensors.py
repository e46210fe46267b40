"""One rank's state, flat: the tensors that it holds as pieces, and everything else as a tree of JSON."""

from __future__ import annotations

import enum
import itertools
import json
import operator
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.agent.reports import name_coverage
from hyperpod_kit.checkpoint.codec import codec, sharding, subclasses, unsavable
from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.submeshes import TensorLayout
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.errors import StateNotSerializable


class TensorUse(enum.Enum):
    """What a tensor of the state is for, which decides when it is copied, who writes it and what is compared."""

    WEIGHT = "only an optimizer's step changes it"
    VALUE = "other code may change it too"
    BUFFER = "forward may change it, and replica 0's counts"
    SENT_BUFFER = "the same, and DDP sends replica 0's to the others before it is used"
    PER_RANK = "a value of this rank alone"

    @property
    def is_copied_before_save_returns(self) -> bool:
        return self is not TensorUse.WEIGHT

    @property
    def is_written_by_replica_zero(self) -> bool:
        return self in (TensorUse.BUFFER, TensorUse.SENT_BUFFER)


@dataclass(frozen=True)
class TensorPiece:
    """The part of one tensor that this rank holds.

    `tensor` is the live local tensor, never a DTensor and not a copy: it may be non-contiguous or on a device.
    `replica` is (this rank's index, how many ranks hold exactly this piece); (0, 1) is only mine. `group` are the ranks
    that hold it, for sharing at restore; None stands for all ranks, or for this rank alone. `early` says that something
    else than an optimizer's step may change it: copied before `save` returns. `pinned`: replica 0 writes it. `loose`:
    replicas may differ, because replica 0's bytes are sent to the others before they are used. `source` is the tensor
    that the program has, where `tensor` is not all of it: a DTensor, a subclass.
    """

    spec: TensorSpec
    tensor: torch.Tensor
    replica: tuple[int, int]
    group: dist.ProcessGroup | None
    early: bool
    pinned: bool = False
    holders: tuple[int, ...] = ()  # global ranks; empty for all
    layout: str = ""  # type, full shape, mesh and placements; empty for plain tensors
    temporary: bool = False  # `tensor` was made for this walk
    loose: bool = False
    source: torch.Tensor | None = None

    @property
    def is_compared_with_replicas(self) -> bool:
        """Return whether other ranks hold the same piece and it is compared with theirs."""
        return self.replica[1] > 1 and not self.loose and not self.temporary

    @property
    def is_per_rank(self) -> bool:
        """Whether the tensor is this rank's alone."""
        return is_per_rank(self.spec.name)

    @property
    def type_and_shape(self) -> str:
        """Return type and shape as text; of a sharded tensor its mesh and placements too."""
        return self.layout or f"{self.spec.dtype} {list(self.spec.full_shape)}"


# What decides whether the tensors of two walks have the same plan: each piece's spec and layout.
Outline = tuple[tuple[TensorSpec, str], ...]


class StateTensors(NamedTuple):
    """`plan` is a digest over world, names, types, full shapes and placements of what the ranks share: equal on all
    ranks, and equal between two runs exactly when topology and state are the same. `shared` is how many tensors the
    ranks share, those included of which no part lies here."""

    tree: dict[str, Any]
    pieces: tuple[TensorPiece, ...]
    plan: str
    shared: int
    outline: Outline
    absent: tuple[str, ...] = ()  # sharded tensors of which no part lies here
    shard_keys: tuple[str, ...] = ()  # the keys of the tree whose values lie in this rank's shard


class CachedTensor(NamedTuple):
    """A tensor as a walk found it. While these are as they were, so is its piece: a walk over thousands of tensors is
    a part of each save's stall."""

    tensor: torch.Tensor
    address: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    use: TensorUse
    piece: TensorPiece
    identity: tuple[object, ...]


class CachedSubclass(NamedTuple):
    """A tensor subclass as a walk took it apart."""

    tensor: torch.Tensor
    parts: subclasses.TakenApart
    head: dict[str, Any]


class PlannedWalk(NamedTuple):
    """What follows from the pieces of a walk. `pieces`: those; none where one of them was made for the walk alone."""

    pieces: tuple[TensorPiece, ...]
    outline: Outline
    absent: tuple[tuple[str, str], ...]
    plan: str
    shared: int

    def is_of(self, pieces: tuple[TensorPiece, ...]) -> bool:
        """Return whether these are the same objects: as nearly always, and sooner known than outlines are compared."""
        return len(pieces) == len(self.pieces) and all(map(operator.is_, pieces, self.pieces))


class WalkCache:
    """What the walks before this one have computed; holds no tensor that was made for a walk."""

    def __init__(self) -> None:
        self.pieces: dict[str, CachedTensor] = {}
        self.apart: dict[str, CachedSubclass] = {}
        self.specs: dict[str, TensorSpec] = {}
        self.last: PlannedWalk | None = None


class Collector:
    """Turns the tensors of one walk over a state into pieces; what is as it was in the last walk is not made again."""

    def __init__(
        self,
        ranks: Ranks,
        cache: WalkCache,
        *,
        full: bool = False,
        gather: bool = True,
        owned: Container[str] = (),
        ties: bool = True,
    ) -> None:
        """`full`: rank 0 writes everything that is shared; sharded tensors are gathered for it if `gather`. Of the
        paths in `owned` the tensors are each rank's own. Without `ties` two names of one memory are two tensors."""
        self._ranks = ranks
        self._cache = cache
        self._full = full
        self._owned = owned or ()  # nearly always, and then no call for each tensor
        self._places = sharding.Full(full, full and gather)
        self._tied = ties
        self._pieces: dict[str, TensorPiece] = {}
        self._sources: dict[str, torch.Tensor] = {}
        self.wholes: dict[str, CachedSubclass] = {}
        """The subclasses that were taken, by the names that their parts begin with."""
        self._records: dict[int, dict[str, Any]] = {}
        self._ties: dict[tuple[object, ...], str] = {}
        self._absent: list[tuple[str, str]] = []

    def source(self, name: str) -> torch.Tensor:
        """Return the object that was recorded under that name: a DTensor where the piece is its local
        part."""
        return self._sources[name]

    def find(self, name: str) -> torch.Tensor | None:
        """Return the object that was recorded under that name; None where none was."""
        return self._sources.get(name)

    def has(self, name: str) -> bool:
        """Return whether a tensor was recorded under that name."""
        return name in self._sources

    def is_source(self, name: str, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is the one that was recorded under that name, or another view of exactly
        its memory."""
        taken = self._sources[name]
        if taken is tensor or sharding.is_sharded(taken) or sharding.is_sharded(tensor):
            return taken is tensor
        return _memory_identity(taken) == _memory_identity(tensor)

    @property
    def names(self) -> list[str]:
        """Return the names of all tensors that were recorded."""
        return [*self._pieces, *(name for name, _ in self._absent)]

    def layouts(self) -> dict[str, TensorLayout]:
        """Return the layouts of all recorded tensors that ranks share, as this rank sees them by itself."""
        of_pieces = {piece.spec.name: self._layout(piece.spec.name, piece.type_and_shape) for piece in self._shared()}
        return of_pieces | {name: self._layout(name, layout) for name, layout in self._absent}

    def _shared(self) -> list[TensorPiece]:
        return [piece for piece in self._pieces.values() if not piece.is_per_rank]

    def _layout(self, name: str, kind: str) -> TensorLayout:
        source = self._sources[name]
        if sharding.is_sharded(source):
            return sharding.layout_of(source)
        return TensorLayout(kind)

    def drop(self, names: Iterable[str]) -> None:
        """Forget tensors that were recorded: the checkpoint that is to be restored has none of these
        names."""
        for name in names:
            self._pieces.pop(name, None)
            self._sources.pop(name, None)
        self._absent = [(name, layout) for name, layout in self._absent if name in self._sources]

    def add_tensor(
        self,
        path: str,
        tensor: torch.Tensor,
        use: TensorUse = TensorUse.WEIGHT,
        *,
        subclass: torch.Tensor | None = None,
    ) -> str | dict[str, Any]:
        """Record a tensor under its path and return the name under which it is stored, that of the tensor
        it is tied to; of a subclass that is made of several tensors return its record. `subclass`: the
        one of which it is a part.

        Of one that is not this rank's own, the ranks hold the same (plain tensors) or its parts
        (DTensor, ShardedTensor). Raises StateNotSerializable for a kind of tensor that cannot be held.
        """
        per_rank = use is TensorUse.PER_RANK
        if path in self._owned:
            per_rank, path = True, per_rank_name(self._ranks.rank, path)
        if path in self._sources:
            path = self._name_for_second_tensor(path)
        cached = self._cache.pieces.get(path)
        piece: TensorPiece | None
        if cached is not None and cached.tensor is tensor and cached.use is use and _is_unchanged(cached):
            self._sources[path] = tensor
            piece, identity = cached.piece, cached.identity
        else:
            tensor = sharding.wait_for_collective(tensor)
            apart = self._take_apart_or_reuse_cached(path, tensor)
            if apart is not None:
                return self._add_subclass_parts(path, tensor, apart, TensorUse.PER_RANK if per_rank else use)
            self._sources[path] = tensor
            piece = self._make_piece_or_none_if_absent(path, tensor, use, per_rank, subclass)
            identity = self._identity_for_ties(path, tensor, piece, per_rank)
            if piece is not None and not piece.temporary:
                now = sharding.undetached_local_tensor(tensor)
                self._cache.pieces[path] = CachedTensor(
                    tensor, now.data_ptr(), now.dtype, now.shape, now.stride(), use, piece, identity
                )
        first = self._ties.setdefault(identity, path)
        if first is not path and first != path:
            return first
        if piece is None:
            self._absent.append((path, sharding.describe_layout(path, tensor, self._ranks)))
        else:
            self._pieces[path] = piece
        return path

    def _name_for_second_tensor(self, path: str) -> str:
        """Return a free name for a second tensor of that path: `{1: …, "1": …}`, a parameter whose name is
        a number."""
        if not self._tied:
            raise StateNotSerializable(path, "second tensor of that name")
        return next(name for number in itertools.count(2) if (name := f"{path}~{number}") not in self._sources)

    def _take_apart_or_reuse_cached(self, path: str, tensor: torch.Tensor) -> CachedSubclass | None:
        cached = self._cache.apart.get(path)
        if cached is not None and cached.tensor is tensor and cached.parts.has_same_parts(tensor):
            return cached
        parts = subclasses.take_apart(path, tensor)
        if parts is None:
            return None
        cached = self._cache.apart[path] = CachedSubclass(tensor, parts, codec.subclass_record_without_parts(parts))
        return cached

    def _add_subclass_parts(
        self, path: str, tensor: torch.Tensor, apart: CachedSubclass, use: TensorUse
    ) -> dict[str, Any]:
        tied = None
        if self._tied:
            tied = self._records.get(id(tensor))
        if tied is not None:
            return tied
        self.wholes[path] = apart
        record = {**apart.head, "name": path, "parts": {}}
        self._records[id(tensor)] = record
        for part in apart.parts.parts:
            taken = self.add_tensor(f"{path}.{part.name}", part.tensor, use, subclass=tensor)
            record["parts"][part.name] = subclasses.part_record(taken, part) if isinstance(taken, str) else taken
        return record

    def _identity_for_ties(
        self, path: str, tensor: torch.Tensor, piece: TensorPiece | None, per_rank: bool
    ) -> tuple[object, ...]:
        """Return what is equal for two names of the same tensor. Must come out alike on all ranks, also
        where no part lies."""
        if not self._tied:
            return (path,)
        if piece is None or piece.layout or piece.temporary:
            return (id(tensor),)
        local = piece.tensor
        if not local.numel():
            return (path,)
        return (per_rank, *_memory_identity(local))

    def _make_piece_or_none_if_absent(
        self, path: str, tensor: torch.Tensor, use: TensorUse, per_rank: bool, subclass: torch.Tensor | None
    ) -> TensorPiece | None:
        part = sharding.locate_local_part(path, tensor, self._ranks, per_rank=per_rank, full=self._places)
        if part is None:
            return None
        local = part.local
        # What was gathered has memory on rank 0 alone; elsewhere its type is looked at.
        unsavable.require_savable(
            path, torch.empty(0, dtype=local.dtype, device="cpu") if part.temporary and local.is_meta else local
        )
        if any(step == 0 and extent > 1 for step, extent in zip(local.stride(), local.shape, strict=True)):
            # It could be saved, but nothing could fill it again: its items are one in memory.
            raise StateNotSerializable(
                path,
                f"tensor of {list(local.shape)} that was expanded: several of its items are one in memory",
                hint=f"{path}: use expand(...).clone()",
            )
        spec = TensorSpec(path, NAMES[local.dtype], tuple(local.shape), part.offsets, part.full)
        # The same object again makes comparing two walks cheap.
        if self._cache.specs.get(path) == spec:
            spec = self._cache.specs.setdefault(path, spec)
        self._cache.specs[path] = spec
        piece = TensorPiece(
            spec,
            local,
            part.replica,
            part.group,
            use.is_copied_before_save_returns or part.temporary,
            use.is_written_by_replica_zero or self._full,
            part.holders,
            part.layout,
            part.temporary,
            use is TensorUse.SENT_BUFFER,
            tensor if subclass is None and sharding.is_dtensor(tensor) else subclass,
        )
        return piece

    def finish_and_add_shared_names(self, tree: dict[str, Any], shard_keys: Sequence[str] = ()) -> StateTensors:
        """Return everything that was recorded, and add the shared names to the tree where ranks hold
        different ones. `shard_keys`: the keys of the tree whose values lie in this rank's shard."""
        pieces = tuple(self._pieces.values())
        absent = tuple(self._absent)
        planned = self._cache.last
        if planned is None or planned.absent != absent or not planned.is_of(pieces):
            planned = self._cache.last = self._plan_walk(pieces, absent, planned)
        if self._ranks.placement.ranks_by_name:
            tree[name_coverage.SHARED_NAMES] = [[piece.spec.name, piece.type_and_shape] for piece in self._shared()]
            tree[name_coverage.SHARED_NAMES] += map(list, absent)
        names_of_absent = tuple(name for name, _ in absent)
        return StateTensors(
            tree, pieces, planned.plan, planned.shared, planned.outline, names_of_absent, tuple(shard_keys)
        )

    def _plan_walk(
        self, pieces: tuple[TensorPiece, ...], absent: tuple[tuple[str, str], ...], before: PlannedWalk | None
    ) -> PlannedWalk:
        """Return what follows from these pieces; from `before` where its outline is the same."""
        outline = tuple((piece.spec, piece.layout) for piece in pieces)
        kept = pieces
        if any(piece.temporary for piece in pieces):
            kept = ()
        if before is not None and before.outline == outline and before.absent == absent:
            return before._replace(pieces=kept)
        shared = sum(not piece.is_per_rank for piece in pieces) + len(absent)
        plan = state_plan_digest(pieces, absent, self._ranks.world, full=self._full)
        return PlannedWalk(kept, outline, absent, plan, shared)


def _is_unchanged(cached: CachedTensor) -> bool:
    now = sharding.undetached_local_tensor(cached.tensor)
    return (
        now.data_ptr() == cached.address
        and now.dtype is cached.dtype
        and now.shape == cached.shape
        and now.stride() == cached.stride
    )


def _memory_identity(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what is equal for two views of exactly the same numbers in the same memory: a conjugate
    is another."""
    flags = tensor.is_conj(), tensor.is_neg()
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, flags)


def state_plan_digest(
    pieces: Iterable[TensorPiece], absent: Iterable[tuple[str, str]], world: int, *, full: bool = False
) -> str:
    """Return the digest that is the plan of these pieces; `absent` are sharded tensors of which no
    part lies here, with their layout.

    With `full` other ranks write other pieces than without, so the plan is another one too.
    """
    # Where not all ranks hold a plain tensor, those that do divide the writing of theirs among themselves.
    body = [_plan_row(piece) for piece in pieces if not piece.is_per_rank]
    body += [[name, layout] for name, layout in absent]
    return digest.small_object_digest(
        json.dumps([world, sorted(body), *(["full"] if full else [])], separators=(",", ":")).encode()
    )


def _plan_row(piece: TensorPiece) -> list[Any]:
    """Return what of a piece decides the plan."""
    if piece.holders and not piece.layout:
        return [piece.spec.name, piece.type_and_shape, list(piece.holders)]
    return [piece.spec.name, piece.type_and_shape]


def is_per_rank(name: str) -> bool:
    """Return whether a tensor of that name is one rank's alone."""
    return name.startswith(name_coverage.RANK_PREFIX)


def per_rank_name(rank: int, path: str) -> str:
    """The name under which a rank's own tensor is stored."""
    return f"{name_coverage.RANK_PREFIX}{rank:05d}.{path}"
