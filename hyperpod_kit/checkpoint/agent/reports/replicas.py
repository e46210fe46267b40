"""Whether ranks that hold the same tensors hold the same bytes.

A piece that several ranks hold is written by one of them. That all hold the same is compared: at some saves each rank
digests what it holds together with others, at the moment of the copy, and its capture carries one digest for each set
of holders under REPLICAS. So whoever meets the captures of all ranks can compare them: rank 0's agent before anything
is written, a commit of whatever kind, a start that finds them in memory. Only of two ranks that differ is it asked in
which tensor.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent.shm.shm_slots import Slot
from hyperpod_kit.checkpoint.repository.format import digest

REPLICAS = "replicas"
"""The key of a capture's tree: set of holders -> digest. Absent where a save does not compare."""

Replicas = Mapping[str, str]

Tensors = Optional[Sequence[Tuple[str, str, str]]]
"""Name, layout and digest of each tensor that a rank holds together with others; None when it cannot be asked."""


class Difference(NamedTuple):
    """Two ranks of one set of holders that differ; `differing` of the `total` ranks differ from the first."""

    holders: str
    ranks: Tuple[int, int]
    differing: int
    total: int


def combine_digests(tensors: Sequence[Tuple[str, str, str]]) -> str:
    """One digest for all tensors of a set of holders, whatever their order."""
    return digest.small_object_digest(json.dumps(sorted(tensors), separators=(",", ":")).encode())


def digests_by_holders_in_tree(tree: Mapping[str, Any]) -> Dict[str, str]:
    """Return the replica digests of a capture's tree by set of holders; {} where nothing was compared."""
    recorded = tree.get(REPLICAS)
    if isinstance(recorded, dict):
        return {str(holders): str(value) for holders, value in recorded.items()}
    return {}


def digests_by_holders_in_extra(extra: bytes) -> Dict[str, str]:
    """As `digests_by_holders_in_tree`, of a capture's text, where they come last: names before them are not parsed.

    Raises ValueError when it is no JSON.
    """
    at = extra.rfind(b',"%s":' % REPLICAS.encode())
    if at < 0:
        return {}
    try:
        return digests_by_holders_in_tree(json.loads(b"{" + extra[at + 1 :]))
    except ValueError:  # somebody's own key of that name, further up
        return digests_by_holders_in_tree(json.loads(extra))


def digests_by_holders_in_slot(slot: Slot) -> Dict[str, str]:
    """As `digests_by_holders_in_tree`, of a capture in memory.

    Returns {} where its text is damaged, which whoever uses it finds out.
    """
    page = slot.page
    try:
        if page is not None:
            return digests_by_holders_in_extra(slot.read_extra(page.shard.extra_size))
        return {}
    except ValueError:
        return {}


def append_replica_digests(extra: bytes, digests: Replicas) -> bytes:
    """A capture's text with them; unchanged where there are none."""
    if not digests:
        return extra
    return extra[:-1] + b"," + json.dumps({REPLICAS: digests}, separators=(",", ":")).encode()[1:]


def find_difference(by_rank: Mapping[int, Replicas]) -> Optional[Difference]:
    """The first set of holders whose ranks differ; a rank that did not compare is no argument."""
    sets: Dict[str, Dict[int, str]] = {}
    for rank in sorted(by_rank):
        for holders, value in by_rank[rank].items():
            sets.setdefault(holders, {})[rank] = value
    for holders, rank_digests in sorted(sets.items()):
        first = min(rank_digests)
        apart = [rank for rank in sorted(rank_digests) if rank_digests[rank] != rank_digests[first]]
        if apart:
            return Difference(holders, (first, apart[0]), len(apart), len(rank_digests))
    return None


def explain_difference(difference: Difference, first: Tensors = None, second: Tensors = None) -> str:
    """What differs between the two ranks, and the way out. Without their tensors, that something does."""
    first_rank, second_rank = difference.ranks
    if first is None or second is None:
        return (
            f"tensors that rank {first_rank} and rank {second_rank} both hold differ (which tensors is no longer "
            f"known); {_describe_differing_count(difference)}"
        )
    first_tensors = {name: (layout, value) for name, layout, value in first}
    second_tensors = {name: (layout, value) for name, layout, value in second}

    def order(name: str) -> Tuple[int, str]:
        if name not in first_tensors or name not in second_tensors:
            return (1, name)
        if first_tensors[name][0] == second_tensors[name][0]:
            return (2, name)
        return (0, name)

    names = sorted(
        (name for name in {*first_tensors, *second_tensors} if first_tensors.get(name) != second_tensors.get(name)),
        key=order,
    )
    if not names:
        count = _describe_differing_count(difference)
        return f"tensors that rank {first_rank} and rank {second_rank} both hold differ; {count}"
    name = names[0]
    way_out = f"if each rank has its own: State(own=[{name!r}]), or a name per rank"
    if order(name)[0] == 0:
        first_layout, second_layout = first_tensors[name][0], second_tensors[name][0]
        what = f"{name} is {first_layout} on rank {first_rank} and {second_layout} on rank {second_rank}"
    elif order(name)[0] == 2:
        what = f"{name} has other bytes on rank {first_rank} than on rank {second_rank}"
    else:
        has, lacks = (first_rank, second_rank) if name in first_tensors else (second_rank, first_rank)
        what = f"{name} is on rank {has} and not on rank {lacks}"
        way_out = (
            "the ranks agree in restore() which rank holds which tensor: call it before the first save, and restart "
            "the run when the tensors change"
        )
    more = ""
    if len(names) > 1:
        more = f" (and {len(names) - 1} more)"
    return f"{what}{more}; {_describe_differing_count(difference)}; {way_out}"


def _describe_differing_count(difference: Difference) -> str:
    return f"{difference.differing} of {difference.total} ranks differ from rank {difference.ranks[0]}"
