"""Which ranks hold the tensors of a name, where not all hold the same names: pipeline stages, an optimizer for some of
the parameters, an average of the weights on rank 0 only.

It is agreed at restore(), once, by a collective; a save asks nobody. What an optimizer makes later is held by the ranks
that have its parameter, and any other new name by those that have its neighbours. Whether that was right is seen
before a commit (`agent.reports.name_coverage`): a wrong guess is a save that fails, never a hole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hyperpod_kit.checkpoint.agent.reports import name_coverage
from hyperpod_kit.checkpoint.ranks import submeshes
from hyperpod_kit.checkpoint.ranks.submeshes import SubMeshes, TensorLayout
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.errors import CheckpointError

_MODEL = "model."

Names = Mapping[str, TensorLayout]
"""What one rank holds. The kind is "" for the name of what has yet to be made."""


@dataclass(frozen=True)
class NamePlacement:
    """`ranks_by_name`: ranks by name and by the beginning of names; all ranks hold what is not there. `divided`: by
    name, the sub-meshes of a tensor that has several; `meshes`: the same by a mesh that all its tensors here have
    alike."""

    rank: int
    ranks_by_name: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    divided: Mapping[str, SubMeshes] = field(default_factory=dict)
    meshes: Mapping[tuple[int, ...], SubMeshes] = field(default_factory=dict)

    def replica_and_holders(self, path: str) -> tuple[tuple[int, int], tuple[int, ...]] | None:
        """Return ((this rank's index among the holders, how many), the holders' ranks) of a name; None
        when all ranks hold it."""
        ranks = None
        while ranks is None and path:
            ranks = self.ranks_by_name.get(path)
            path = path.rpartition(".")[0]
        if not ranks:
            return None
        if self.rank not in ranks:
            ranks = (self.rank,)
        return (ranks.index(self.rank), len(ranks)), ranks

    def submeshes_if_several(self, path: str, mesh: tuple[int, ...]) -> SubMeshes:
        """Return all sub-meshes that hold a DTensor of that name; () where its own mesh, of these global
        ranks, is the only one.

        What an optimizer makes is where its parameter is, another new name where all others of its mesh
        are.
        """
        while path:
            agreed = self.divided.get(path, ())
            if mesh in agreed:
                return agreed
            path = path.rpartition(".")[0]
        return self.meshes.get(mesh, ())


class GatheringRanks(Protocol):
    """What is needed of Ranks."""

    rank: int
    placement: NamePlacement

    def gather(self, value: Any) -> list[Any]: ...

    def global_rank(self, rank: int) -> int: ...


def gather_and_set_placement(ranks: GatheringRanks, names: Names) -> bool:
    """Gather which ranks hold which names, set it as `ranks.placement` and return whether it has
    changed. A collective.

    Raises CheckpointError, the same on all ranks, for a name with other types or shapes on
    different ranks.
    """
    local_digest = digest.small_object_digest(repr(sorted(names.items())).encode())
    digests: list[str] = ranks.gather(local_digest)
    ranks_by_name: dict[str, tuple[int, ...]] = {}
    divided: dict[str, SubMeshes] = {}
    if len(set(digests)) > 1:
        # Of ranks that hold the same one speaks.
        is_speaker = digests.index(local_digest) == ranks.rank
        spoken: dict[str, TensorLayout] | None = None
        if is_speaker:
            spoken = dict(names)
        names_of_ranks: list[dict[str, TensorLayout] | None] = ranks.gather(spoken)
        by_rank = [names_of_ranks[digests.index(rank_digest)] or {} for rank_digest in digests]
        divided = _equivalent_submeshes_by_name(by_rank, [ranks.global_rank(rank) for rank in range(len(by_rank))])
        lists = {
            rank: [(name, layout.text()) for name, layout in rank_names.items() if name not in divided and layout.kind]
            for rank, rank_names in enumerate(names_of_ranks)
            if rank_names is not None
        }
        problem = name_coverage.describe_layout_conflict(lists)
        if problem is not None:
            raise CheckpointError(problem)
        ranks_by_name = _ranks_by_name_and_prefix(by_rank)
    before, ranks.placement = (
        ranks.placement,
        NamePlacement(ranks.rank, ranks_by_name, divided, _agreed_submeshes_by_mesh(names, divided)),
    )
    return ranks.placement != before


def _equivalent_submeshes_by_name(by_rank: Sequence[Names], global_ranks: Sequence[int]) -> dict[str, SubMeshes]:
    """Return the sub-meshes of the tensors that several sub-meshes hold alike. Raises CheckpointError
    for one of which a sub-mesh holds only a part."""
    several: dict[str, dict[int, TensorLayout]] = {}
    for rank, names in enumerate(by_rank):
        for name, layout in names.items():
            several.setdefault(name, {})[rank] = layout
    divided: dict[str, SubMeshes] = {}
    for name, layouts in several.items():
        if not submeshes.are_equivalent_submeshes(layouts):
            continue
        lacking = submeshes.find_incomplete_submesh(layouts, global_ranks)
        if lacking is None:
            divided[name] = tuple(sorted({layout.ranks for layout in layouts.values()}))
        elif layouts[min(layouts)].kind:
            layout, rank = lacking
            raise CheckpointError(
                f"{name} is {layout.text()} but rank {rank} holds no part of it: each sub-mesh must hold the whole "
                f"tensor; if each rank has its own: State(own=[{name!r}]), or a name per rank"
            )
    for name in [name for name in divided if name.startswith(_MODEL)]:
        divided.setdefault(_optimizer_state_path(name), divided[name])
    return divided


def _agreed_submeshes_by_mesh(names: Names, divided: Mapping[str, SubMeshes]) -> dict[tuple[int, ...], SubMeshes]:
    """Return the sub-meshes by the mesh that this rank is in, where all tensors that it has there
    agree."""
    agreed_by_mesh: dict[tuple[int, ...], set[SubMeshes]] = {}
    for name, layout in names.items():
        if layout.kind:
            agreed_by_mesh.setdefault(layout.ranks, set()).add(divided.get(name, ()))
    return {ranks: agreed.pop() for ranks, agreed in agreed_by_mesh.items() if len(agreed) == 1 and ranks and divided}


def _optimizer_state_path(name: str) -> str:
    """Return the path of the optimizer's state of a parameter of the model."""
    return f"optimizer.state.{name[len(_MODEL) :]}"


def _ranks_by_name_and_prefix(by_rank: Sequence[Names]) -> dict[str, tuple[int, ...]]:
    """Return every name and every prefix of one with the ranks that hold it, () for all ranks; {}
    where all ranks hold all names."""
    ranks_of: dict[str, set[int]] = {}
    for rank, names in enumerate(by_rank):
        visited: set[str] = set()
        for name in names:
            while name and name not in visited:
                visited.add(name)
                ranks_of.setdefault(name, set()).add(rank)
                name = name.rpartition(".")[0]
    for name in [name for name in ranks_of if name.startswith(_MODEL)]:
        # A parameter that no optimizer has yet: its state will be with it.
        ranks_of.setdefault(_optimizer_state_path(name), ranks_of[name])
    if all(len(ranks) == len(by_rank) for ranks in ranks_of.values()):
        return {}
    by_name: dict[str, tuple[int, ...]] = dict.fromkeys(ranks_of, ())
    by_name.update({name: tuple(sorted(ranks)) for name, ranks in ranks_of.items() if len(ranks) != len(by_rank)})
    return by_name
