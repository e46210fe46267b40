"""One rank's state, flat: the tensors that it holds as pieces, and everything else as a tree of JSON."""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import codec, sharding, subclasses, unsavable
from hyperpod_kit.checkpoint.agent import name_coverage
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dtypes import NAMES
from hyperpod_kit.checkpoint.repository import digest
from hyperpod_kit.checkpoint.repository.shard import TensorSpec
from hyperpod_kit.checkpoint.submeshes import TensorLayout
from hyperpod_kit.errors import StateNotSerializable


class TensorUse(enum.Enum):
    """What a tensor of the state is for, which decides when it is copied, who writes it and what is compared."""

    WEIGHT = "only an optimizer's step changes it"
    VALUE = "other code may change it too"
    BUFFER = "forward may change it, and replica 0's counts"
    SENT_BUFFER = "the same, and DDP sends replica 0's to the others before it is used"
    OWN = "a value of this rank alone"

    @property
    def early(self) -> bool:
        return self is not TensorUse.WEIGHT

    @property
    def pinned(self) -> bool:
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
    def compared(self) -> bool:
        """Whether others hold the same, and are to be asked if they do."""
        return self.replica[1] > 1 and not self.loose and not self.temporary

    @property
    def own(self) -> bool:
        """Whether the tensor is this rank's alone."""
        return is_own(self.spec.name)

    @property
    def kind(self) -> str:
        """Type and shape in words; a sharded tensor's mesh and placements too."""
        return self.layout or f"{self.spec.dtype} {list(self.spec.full_shape)}"


# What decides whether the tensors of two walks have the same plan: each piece's spec and layout.
Outline = tuple[tuple[TensorSpec, str], ...]


@dataclass(frozen=True)
class StateTensors:
    """`plan` is a digest over world, names, types, full shapes and placements of what the ranks share: equal on all
    ranks, and equal between two runs exactly when topology and state are the same. `shared` is how many tensors the
    ranks share, those included of which no part lies here."""

    tree: dict[str, Any]
    pieces: tuple[TensorPiece, ...]
    plan: str
    shared: int
    outline: Outline
    absent: tuple[str, ...] = ()  # sharded tensors of which no part lies here
    own: tuple[str, ...] = ()  # the keys of the tree whose values are each rank's own


class SeenTensor(NamedTuple):
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


class SeenSubclass(NamedTuple):
    """A tensor subclass as a walk took it apart."""

    tensor: torch.Tensor
    parts: subclasses.TakenApart
    head: dict[str, Any]


class Known:
    """What the walks before this one have computed; holds no tensor that was made for a walk."""

    def __init__(self) -> None:
        self.pieces: dict[str, SeenTensor] = {}
        self.apart: dict[str, SeenSubclass] = {}
        self.specs: dict[str, TensorSpec] = {}
        self.last: tuple[Outline, tuple[tuple[str, str], ...], str, int] | None = None


class Collector:
    """Turns the tensors of one walk over a state into pieces; what is as it was in the last walk is not made again."""

    def __init__(
        self,
        ranks: Ranks,
        known: Known,
        *,
        full: bool = False,
        gather: bool = True,
        owned: Container[str] = (),
        ties: bool = True,
    ) -> None:
        """`full`: rank 0 writes everything that is shared; sharded tensors are gathered for it if `gather`. Of the
        paths in `owned` the tensors are each rank's own. Without `ties` two names of one memory are two tensors."""
        self._ranks = ranks
        self._known = known
        self._full = full
        self._owned = owned
        self._places = sharding.Full(full, full and gather)
        self._tied = ties
        self._pieces: dict[str, TensorPiece] = {}
        self._sources: dict[str, torch.Tensor] = {}
        self.wholes: dict[str, SeenSubclass] = {}
        """The subclasses that were taken, by the names that their parts begin with."""
        self._records: dict[int, dict[str, Any]] = {}
        self._ties: dict[tuple[object, ...], str] = {}
        self._absent: list[tuple[str, str]] = []

    def source(self, name: str) -> torch.Tensor:
        """The object that was taken under that name: a DTensor where the piece is its local part."""
        return self._sources[name]

    def find(self, name: str) -> torch.Tensor | None:
        """The same, None where none was taken."""
        return self._sources.get(name)

    def has(self, name: str) -> bool:
        """Whether a tensor was taken under that name."""
        return name in self._sources

    def is_source(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is the one that was taken under that name, or another view of exactly its memory."""
        taken = self._sources[name]
        if taken is tensor or sharding.is_sharded(taken) or sharding.is_sharded(tensor):
            return taken is tensor
        return _memory(taken) == _memory(tensor)

    @property
    def names(self) -> list[str]:
        """Of all that was taken."""
        return [*self._pieces, *(name for name, _ in self._absent)]

    def layouts(self) -> dict[str, TensorLayout]:
        """Of all that was taken and that ranks share, as this rank knows it by itself."""
        found = {piece.spec.name: self._layout(piece.spec.name, piece.kind) for piece in self._shared()}
        return found | {name: self._layout(name, layout) for name, layout in self._absent}

    def _shared(self) -> list[TensorPiece]:
        return [piece for piece in self._pieces.values() if not piece.own]

    def _layout(self, name: str, kind: str) -> TensorLayout:
        source = self._sources[name]
        return sharding.layout_of(source) if sharding.is_sharded(source) else TensorLayout(kind)

    def drop(self, names: Iterable[str]) -> None:
        """Forget tensors that were taken: the checkpoint that is to be restored has none of these names."""
        for name in names:
            self._pieces.pop(name, None)
            self._sources.pop(name, None)
        self._absent = [(name, layout) for name, layout in self._absent if name in self._sources]

    def take(
        self,
        path: str,
        tensor: torch.Tensor,
        use: TensorUse = TensorUse.WEIGHT,
        *,
        whole: torch.Tensor | None = None,
    ) -> str | dict[str, Any]:
        """Note a tensor under its path. Returns the name under which it is stored: that of the tensor it is tied to.
        Of a subclass that is made of several tensors, its record. `whole`: the subclass of which it is a part.

        Of one that is not this rank's own, the ranks hold the same (plain tensors) or its parts (DTensor,
        ShardedTensor).
        Raises StateNotSerializable for a kind of tensor that cannot be held.
        """
        own = use is TensorUse.OWN
        if path in self._owned:
            own, path = True, own_name(self._ranks.rank, path)
        if path in self._sources:
            path = self._other_name(path)
        seen = self._known.pieces.get(path)
        piece: TensorPiece | None
        if seen is not None and seen.use is use and _is_as_seen(tensor, seen):
            self._sources[path] = tensor
            piece, identity = seen.piece, seen.identity
        else:
            tensor = sharding.settled(tensor)
            apart = self._apart(path, tensor)
            if apart is not None:
                return self._taken_apart(path, tensor, apart, TensorUse.OWN if own else use)
            self._sources[path] = tensor
            piece = self._make(path, tensor, use, own, whole)
            identity = self._identity(path, tensor, piece, own)
            if piece is not None and not piece.temporary:
                now = sharding.live(tensor)
                self._known.pieces[path] = SeenTensor(
                    tensor, now.data_ptr(), now.dtype, now.shape, now.stride(), use, piece, identity
                )
        first = self._ties.setdefault(identity, path)
        if first is not path and first != path:
            return first
        if piece is None:
            self._absent.append((path, sharding.describe(path, tensor, self._ranks)))
        else:
            self._pieces[path] = piece
        return path

    def _other_name(self, path: str) -> str:
        """A name for a second tensor of that path: `{1: …, "1": …}`, a parameter whose name is a number."""
        if not self._tied:
            raise StateNotSerializable(path, "second tensor of that name")
        return next(name for number in itertools.count(2) if (name := f"{path}~{number}") not in self._sources)

    def _apart(self, path: str, tensor: torch.Tensor) -> SeenSubclass | None:
        seen = self._known.apart.get(path)
        if seen is not None and seen.tensor is tensor and seen.parts.is_as_it_was(tensor):
            return seen
        parts = subclasses.apart(path, tensor)
        if parts is None:
            return None
        seen = self._known.apart[path] = SeenSubclass(tensor, parts, codec.head_of_subclass(parts))
        return seen

    def _taken_apart(self, path: str, tensor: torch.Tensor, apart: SeenSubclass, use: TensorUse) -> dict[str, Any]:
        tied = self._records.get(id(tensor)) if self._tied else None
        if tied is not None:
            return tied
        self.wholes[path] = apart
        record = {**apart.head, "name": path, "parts": {}}
        self._records[id(tensor)] = record
        for part in apart.parts.parts:
            taken = self.take(f"{path}.{part.name}", part.tensor, use, whole=tensor)
            record["parts"][part.name] = subclasses.part_record(taken, part) if isinstance(taken, str) else taken
        return record

    def _identity(self, path: str, tensor: torch.Tensor, piece: TensorPiece | None, own: bool) -> tuple[object, ...]:
        """Equal for two names of the same tensor. Must come out alike on all ranks, also where no part lies."""
        if not self._tied:
            return (path,)
        if piece is None or piece.layout or piece.temporary:
            return (id(tensor),)
        local = piece.tensor
        if not local.numel():
            return (path,)
        return (own, *_memory(local))

    def _make(
        self, path: str, tensor: torch.Tensor, use: TensorUse, own: bool, whole: torch.Tensor | None
    ) -> TensorPiece | None:
        place = sharding.place(path, tensor, self._ranks, own=own, full=self._places)
        if place is None:
            return None
        local = place.local
        # What was gathered has memory on rank 0 alone; elsewhere its type is looked at.
        unsavable.refuse(
            path, torch.empty(0, dtype=local.dtype, device="cpu") if place.temporary and local.is_meta else local
        )
        if any(step == 0 and extent > 1 for step, extent in zip(local.stride(), local.shape, strict=True)):
            # It could be saved, but nothing could fill it again: its items are one in memory.
            raise StateNotSerializable(
                path,
                f"tensor of {list(local.shape)} that was expanded: several of its items are one in memory",
                hint=f"{path}: use expand(...).clone()",
            )
        spec = TensorSpec(path, NAMES[local.dtype], tuple(local.shape), place.offsets, place.full)
        # The same object again makes comparing two walks cheap.
        spec = self._known.specs.setdefault(path, spec) if self._known.specs.get(path) == spec else spec
        self._known.specs[path] = spec
        piece = TensorPiece(
            spec,
            local,
            place.replica,
            place.group,
            use.early or place.temporary,
            use.pinned or self._full,
            place.holders,
            place.layout,
            place.temporary,
            use is TensorUse.SENT_BUFFER,
            tensor if whole is None and sharding.is_dtensor(tensor) else whole,
        )
        return piece

    def finish(self, tree: dict[str, Any], own: Sequence[str] = ()) -> StateTensors:
        """Everything that was taken. `own`: the keys of the tree whose values are each rank's own."""
        pieces = tuple(self._pieces.values())
        outline = tuple((piece.spec, piece.layout) for piece in pieces)
        absent = tuple(self._absent)
        last = self._known.last
        if last is None or last[0] != outline or last[1] != absent:
            shared = sum(not piece.own for piece in pieces) + len(absent)
            plan = fingerprint(pieces, absent, self._ranks.world, full=self._full)
            last = self._known.last = outline, absent, plan, shared
        if self._ranks.holders.known:
            tree[name_coverage.SHARED_NAMES] = [[piece.spec.name, piece.kind] for piece in self._shared()]
            tree[name_coverage.SHARED_NAMES] += map(list, absent)
        return StateTensors(tree, pieces, last[2], last[3], last[0], tuple(name for name, _ in absent), tuple(own))


def _is_as_seen(tensor: torch.Tensor, seen: SeenTensor) -> bool:
    if tensor is not seen.tensor:
        return False
    now = sharding.live(tensor)
    return (
        now.data_ptr() == seen.address
        and now.dtype is seen.dtype
        and now.shape == seen.shape
        and now.stride() == seen.stride
    )


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for two views of exactly the same numbers in the same memory: a conjugate is another."""
    flags = tensor.is_conj(), tensor.is_neg()
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, flags)


def fingerprint(
    pieces: Iterable[TensorPiece], absent: Iterable[tuple[str, str]], world: int, *, full: bool = False
) -> str:
    """The plan of these pieces; `absent` are sharded tensors of which no part lies here, with their layout.

    With `full` other ranks write other pieces than without, so the plan is another one too.
    """
    # Where not all ranks hold a plain tensor, those that do divide the writing of theirs among themselves.
    body = [
        [p.spec.name, p.kind, *([list(p.holders)] if p.holders and not p.layout else [])] for p in pieces if not p.own
    ]
    body += [[name, layout] for name, layout in absent]
    return digest.small(json.dumps([world, sorted(body), *(["full"] if full else [])], separators=(",", ":")).encode())


def is_own(name: str) -> bool:
    """Whether a tensor of that name is one rank's alone."""
    return name.startswith(name_coverage.RANK_PREFIX)


def own_name(rank: int, path: str) -> str:
    """The name under which a rank's own tensor is stored."""
    return f"{name_coverage.RANK_PREFIX}{rank:05d}.{path}"
