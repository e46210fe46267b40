"""Tensors that several sub-meshes of the ranks hold alike: each sub-mesh divides all of the tensor among its ranks.

So FSDP2 leaves the layers outside of a tensor parallel plan: every rank of the TP dimension is in another sub-mesh of
the other dimension. A DTensor knows its own sub-mesh alone, so the ranks tell each other theirs in restore().
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint.ranks import wire_values

SubMeshes = tuple[tuple[int, ...], ...]
"""The global ranks of each sub-mesh in the order of its grid; () where the tensor has one mesh or none."""


@wire_values.register_type
class TensorLayout(NamedTuple):
    """How a rank sees a tensor. Of one that is divided, the mesh: its extents and its global ranks in their order."""

    kind: str
    extents: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    placements: str = ""

    def text(self, submeshes: SubMeshes = ()) -> str:
        """Describe the layout, of the mesh or of all sub-meshes that hold the tensor alike."""
        if not self.extents:
            return f"{self.kind}{self.placements}"
        grids = [str(_nest_ranks_by_extents(self.extents, ranks)) for ranks in submeshes or (self.ranks,)]
        return f"{self.kind} {' and '.join(grids)} {self.placements}"


def _nest_ranks_by_extents(extents: tuple[int, ...], ranks: tuple[int, ...]) -> Any:
    """Return the ranks as nested lists of these extents."""
    if len(extents) == 1:
        return list(ranks)
    size = len(ranks) // extents[0]
    return [_nest_ranks_by_extents(extents[1:], ranks[at : at + size]) for at in range(0, len(ranks), size)]


def are_equivalent_submeshes(layouts: Mapping[int, TensorLayout]) -> bool:
    """Return whether ranks with these layouts of one tensor can hold it on sub-meshes: no rank is in
    two of them, and type, shape, placements and the extents of the mesh agree."""
    distinct = set(layouts.values())
    if len({layout._replace(ranks=()) for layout in distinct}) > 1 or not all(layout.extents for layout in distinct):
        return False
    ranks = [rank for layout in distinct for rank in layout.ranks]
    return len(distinct) > 1 and len(ranks) == len(set(ranks))


def find_incomplete_submesh(
    layouts: Mapping[int, TensorLayout], global_ranks: Sequence[int]
) -> tuple[TensorLayout, int] | None:
    """Return the first sub-mesh that does not hold the whole tensor: its layout, and the global rank
    that has no part of it; None where all do. `global_ranks`: of all ranks."""
    holding = {global_ranks[rank]: layout for rank, layout in layouts.items()}
    for layout in sorted(set(layouts.values())):
        for rank in layout.ranks:
            if holding.get(rank) != layout:
                return layout, rank
    return None
