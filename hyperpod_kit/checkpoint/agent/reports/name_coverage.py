"""Ranks that do not hold the same names: whether what they hold together is in the shards, and of one kind.

Each rank's page has the plan of what that rank holds. Where the plans differ, each capture's tree lists under HELD what
its rank holds of what ranks share, and a commit compares the lists of one rank a plan with the shards.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.errors import CheckpointError

SHARED_NAMES = "held"
"""The key of a capture's tree: [name, layout] of each tensor that is not this rank's own. Absent where all ranks hold
the same names."""

RANK_PREFIX = "rank."
"""How the names of tensors begin that are one rank's own."""

Names = Sequence[Sequence[str]]


def combine_plans(plans: Sequence[str]) -> str:
    """The plan of a checkpoint, from those of its ranks in order: theirs, where they have one."""
    if len(set(plans)) == 1:
        return plans[0]
    return digest.small_object_digest("\n".join(plans).encode())


def describe_layout_conflict(names: Mapping[int, Iterable[Sequence[str]]]) -> Optional[str]:
    """Why ranks cannot hold these (name, layout) together; None when they can."""
    first_layouts: Dict[str, Tuple[int, str]] = {}
    for rank in sorted(names):
        for name, layout in names[rank]:
            first, first_layout = first_layouts.setdefault(name, (rank, layout))
            if first_layout != layout:
                return (
                    f"{name} is {first_layout} on rank {first} and {layout} on rank {rank}; if each rank has its own: "
                    f"State(own=[{name!r}]), or a name per rank"
                )
    return None


def check_coverage_and_count_tensors(trees: Mapping[int, Mapping[str, Any]], stored_names: Iterable[str]) -> int:
    """Return how many tensors the ranks hold together. `trees`: of one rank a plan; `stored_names`: the names
    of all pieces.

    Raises CheckpointError when one is in no shard, or has other layouts on different ranks.
    """
    lists: Dict[int, Names] = {}
    for rank, tree in trees.items():
        listed_names = tree.get(SHARED_NAMES)
        if not isinstance(listed_names, list):
            raise CheckpointError(
                f"{_describe_difference(trees)}: the ranks agree in restore() which rank holds which tensor, and "
                "restore() has not seen this tensor; call restore() before the first save, and restart the run when "
                "the tensors change"
            )
        if not all(_is_pair(pair) for pair in listed_names):
            raise CheckpointError(f"rank {rank}'s list of its tensors has an entry that is not a name and a layout")
        lists[rank] = listed_names
    problem = describe_layout_conflict(lists)
    if problem is not None:
        raise CheckpointError(problem)
    present_names = {name for name in stored_names if not name.startswith(RANK_PREFIX)}
    for rank, names in sorted(lists.items()):
        missing = sorted({name for name, _ in names} - present_names)
        if missing:
            raise CheckpointError(
                f"{missing[0]}, which rank {rank} holds, is in no shard: the tensors of the ranks have changed since "
                "restore(); restart the run"
            )
    return len({name for names in lists.values() for name, _ in names})


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(word, str) for word in pair)


def _describe_difference(trees: Mapping[int, Mapping[str, Any]]) -> str:
    """In words, for two ranks at least."""
    (first, first_names), (second, second_names) = [
        (rank, set(shared_names(trees[rank]))) for rank in sorted(trees)[:2]
    ]
    differing = sorted(first_names ^ second_names)
    if not differing:
        return f"rank {second} holds tensors of other types, shapes or placements than rank {first}"
    has, lacks = (first, second) if differing[0] in first_names else (second, first)
    return f"rank {has} holds {differing[0]} and rank {lacks} does not"


def shared_names(body: Any) -> Iterator[str]:
    """The names of the tensors of an encoded tree that are not one rank's own."""
    todo: List[Any] = [body]
    while todo:
        element = todo.pop()
        if isinstance(element, list):
            todo += element
        elif isinstance(element, dict):
            if element.get("$") == "tensor":
                # One of another's checkpoint may have no name, which is damage that others report.
                name = str(element.get("name"))
                if not name.startswith(RANK_PREFIX):
                    yield name
            else:
                todo += element.values()
