"""Which ranks hold the tensors of a name, where not all hold the same names: pipeline stages, an optimizer for some of
the parameters, an average of the weights on rank 0 only.

It is agreed at restore(), once, by a collective; a save asks nobody. What an optimizer makes later is held by the ranks
that have its parameter, and any other new name by those that have its neighbours. Whether that was right is seen
before a commit (`agent.held`): a wrong guess is a save that fails, never a hole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hyperpod_kit.checkpoint.agent import held
from hyperpod_kit.checkpoint.repository import digest
from hyperpod_kit.errors import CheckpointError

_MODEL = "model."

Names = Mapping[str, str]
"""What one rank holds: name -> layout, "" for the name of what has yet to be made."""


@dataclass(frozen=True)
class Holders:
    """`known`: ranks by name and by the beginning of names; all ranks hold what is not there."""

    rank: int
    known: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def of(self, path: str) -> tuple[tuple[int, int], tuple[int, ...]] | None:
        """((this rank's index, how many), ranks); None for all ranks."""
        found = None
        while found is None and path:
            found = self.known.get(path)
            path = path.rpartition(".")[0]
        if not found:
            return None
        found = found if self.rank in found else (self.rank,)
        return (found.index(self.rank), len(found)), found


class Gathering(Protocol):
    """What is needed of Ranks."""

    rank: int
    holders: Holders

    def gather(self, value: Any) -> list[Any]: ...


def agree(ranks: Gathering, names: Names) -> bool:
    """Let `ranks` know who holds what; whether that has changed. A collective.

    Raises CheckpointError, the same on all ranks, for a name with other types or shapes on different ranks.
    """
    mine = digest.small(repr(sorted(names.items())).encode())
    everybody: list[str] = ranks.gather(mine)
    known: dict[str, tuple[int, ...]] = {}
    if len(set(everybody)) > 1:
        # Of ranks that hold the same one speaks.
        speaks = everybody.index(mine) == ranks.rank
        told: list[dict[str, str] | None] = ranks.gather(dict(names) if speaks else None)
        by_rank = [told[everybody.index(one)] or {} for one in everybody]
        problem = held.clash({rank: list(one.items()) for rank, one in enumerate(told) if one is not None})
        if problem is not None:
            raise CheckpointError(problem)
        known = _known(by_rank)
    changed = known != ranks.holders.known
    ranks.holders = Holders(ranks.rank, known)
    return changed


def _known(by_rank: Sequence[Names]) -> dict[str, tuple[int, ...]]:
    """Every name and every beginning of one, with the ranks that have it. All ranks are ()."""
    found: dict[str, set[int]] = {}
    for rank, names in enumerate(by_rank):
        seen: set[str] = set()
        for name in names:
            while name and name not in seen:
                seen.add(name)
                found.setdefault(name, set()).add(rank)
                name = name.rpartition(".")[0]
    for name in [name for name in found if name.startswith(_MODEL)]:
        # A parameter that no optimizer has yet: its state will be with it.
        found.setdefault(f"optimizer.state.{name[len(_MODEL) :]}", found[name])
    return {name: () if len(who) == len(by_rank) else tuple(sorted(who)) for name, who in found.items()}
