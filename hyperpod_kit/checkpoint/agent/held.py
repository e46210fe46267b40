"""Ranks that do not hold the same names: whether what they hold together is in the shards, and of one kind.

Each rank's page has the plan of what that rank holds. Where the plans differ, each capture's tree lists under HELD what
its rank holds of what ranks share, and a commit compares the lists of one rank a plan with the shards.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository import digest
from hyperpod_kit.errors import CheckpointError

HELD = "held"
"""The key of a capture's tree: [name, layout] of each tensor that is not this rank's own. Absent where all ranks hold
the same names."""

OWN = "rank."
"""How the names of tensors begin that are one rank's own."""

Names = Sequence[Sequence[str]]


def plan_of(plans: Sequence[str]) -> str:
    """The plan of a checkpoint, from those of its ranks in order: theirs, where they have one."""
    return plans[0] if len(set(plans)) == 1 else digest.small("\n".join(plans).encode())


def clash(names: Mapping[int, Iterable[Sequence[str]]]) -> Optional[str]:
    """Why ranks cannot hold these (name, layout) together; None when they can."""
    seen: Dict[str, Tuple[int, str]] = {}
    for rank in sorted(names):
        for name, layout in names[rank]:
            first, found = seen.setdefault(name, (rank, layout))
            if found != layout:
                return (
                    f"{name} is {found} on rank {first} and {layout} on rank {rank}; if each rank has its own: "
                    f"State(own=[{name!r}]), or a name per rank"
                )
    return None


def check(trees: Mapping[int, Mapping[str, Any]], shards: Iterable[str]) -> int:
    """How many tensors the ranks hold together. `trees`: of one rank a plan; `shards`: the names of all pieces.

    Raises CheckpointError when one is in no shard, or has other layouts on different ranks.
    """
    lists: Dict[int, Names] = {}
    for rank, tree in trees.items():
        found = tree.get(HELD)
        if not isinstance(found, list):
            raise CheckpointError(
                f"{_difference(trees)}: who holds what is agreed in restore(), which has not seen "
                "it; call it before the first save, and start again when that changes"
            )
        if not all(_is_pair(one) for one in found):
            raise CheckpointError(f"rank {rank}'s list of what it holds has what is no name and layout")
        lists[rank] = found
    problem = clash(lists)
    if problem is not None:
        raise CheckpointError(problem)
    there = {name for name in shards if not name.startswith(OWN)}
    for rank, names in sorted(lists.items()):
        missing = sorted({name for name, _ in names} - there)
        if missing:
            raise CheckpointError(
                f"{missing[0]}, which rank {rank} holds, is in no shard: who holds what has changed "
                "since restore(); start again"
            )
    return len({name for names in lists.values() for name, _ in names})


def _is_pair(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and all(isinstance(word, str) for word in one)


def _difference(trees: Mapping[int, Mapping[str, Any]]) -> str:
    """In words, for two ranks at least."""
    (first, one), (second, other) = [(rank, set(shared_names(trees[rank]))) for rank in sorted(trees)[:2]]
    found = sorted(one ^ other)
    if not found:
        return f"rank {second} holds tensors of other types, shapes or placements than rank {first}"
    has, lacks = (first, second) if found[0] in one else (second, first)
    return f"rank {has} holds {found[0]} and rank {lacks} does not"


def shared_names(body: Any) -> Iterator[str]:
    """The names of the tensors of an encoded tree that are not one rank's own."""
    todo: List[Any] = [body]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            if one.get("$") == "tensor":
                # One of another's checkpoint may have no name, which is damage that others report.
                name = str(one.get("name"))
                if not name.startswith(OWN):
                    yield name
            else:
                todo += one.values()
