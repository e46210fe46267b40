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

from hyperpod_kit.checkpoint.agent.shm_slots import Slot
from hyperpod_kit.checkpoint.repository import digest

REPLICAS = "replicas"
"""The key of a capture's tree: set of holders -> digest. Absent where a save does not compare."""

Replicas = Mapping[str, str]

Tensors = Optional[Sequence[Tuple[str, str, str]]]
"""Name, layout and digest of each tensor that a rank holds together with others; None when it cannot be asked."""


class Difference(NamedTuple):
    """Two ranks of one set of holders that differ; `apart` of the `of` ranks differ from the first."""

    holders: str
    ranks: Tuple[int, int]
    apart: int
    of: int


def combined(tensors: Sequence[Tuple[str, str, str]]) -> str:
    """One digest for all tensors of a set of holders, whatever their order."""
    return digest.small(json.dumps(sorted(tensors), separators=(",", ":")).encode())


def of_tree(tree: Mapping[str, Any]) -> Dict[str, str]:
    """What a capture's tree says; {} where nothing was compared."""
    found = tree.get(REPLICAS)
    return {str(holders): str(value) for holders, value in found.items()} if isinstance(found, dict) else {}


def of_text(extra: bytes) -> Dict[str, str]:
    """As `of_tree`, of a capture's text, where they come last: thousands of names before them are not parsed.

    Raises ValueError when it is no JSON.
    """
    at = extra.rfind(b',"%s":' % REPLICAS.encode())
    if at < 0:
        return {}
    try:
        return of_tree(json.loads(b"{" + extra[at + 1 :]))
    except ValueError:  # somebody's own key of that name, further up
        return of_tree(json.loads(extra))


def of_slot(slot: Slot) -> Dict[str, str]:
    """As `of_tree`, of a capture in memory; {} where its text is damaged, which whoever uses it finds out."""
    page = slot.page
    try:
        return of_text(slot.extra(page.shard.extra_size)) if page is not None else {}
    except ValueError:
        return {}


def with_replicas(extra: bytes, held: Replicas) -> bytes:
    """A capture's text with them; unchanged where there are none."""
    if not held:
        return extra
    return extra[:-1] + b"," + json.dumps({REPLICAS: held}, separators=(",", ":")).encode()[1:]


def difference(by_rank: Mapping[int, Replicas]) -> Optional[Difference]:
    """The first set of holders whose ranks differ; a rank that did not compare is no argument."""
    sets: Dict[str, Dict[int, str]] = {}
    for rank in sorted(by_rank):
        for holders, value in by_rank[rank].items():
            sets.setdefault(holders, {})[rank] = value
    for holders, found in sorted(sets.items()):
        first = min(found)
        apart = [rank for rank in sorted(found) if found[rank] != found[first]]
        if apart:
            return Difference(holders, (first, apart[0]), len(apart), len(found))
    return None


def explain(found: Difference, first: Tensors = None, second: Tensors = None) -> str:
    """What differs between the two ranks, and the way out. Without their tensors, that something does."""
    one, other = found.ranks
    if first is None or second is None:
        return f"tensors that rank {one} and rank {other} both hold differ (which is not known any more); {_of(found)}"
    here = {name: (layout, value) for name, layout, value in first}
    there = {name: (layout, value) for name, layout, value in second}

    def order(name: str) -> Tuple[int, str]:
        both = name in here and name in there
        return (2 if both and here[name][0] == there[name][0] else 0 if both else 1, name)

    names = sorted((name for name in {*here, *there} if here.get(name) != there.get(name)), key=order)
    if not names:
        return f"tensors that rank {one} and rank {other} both hold differ; {_of(found)}"
    name = names[0]
    way_out = f"if each rank has its own: State(own=[{name!r}]), or a name per rank"
    if order(name)[0] == 0:
        what = f"{name} is {here[name][0]} on rank {one} and {there[name][0]} on rank {other}"
    elif order(name)[0] == 2:
        what = f"{name} has other bytes on rank {one} than on rank {other}"
    else:
        has, lacks = (one, other) if name in here else (other, one)
        what = f"{name} is on rank {has} and not on rank {lacks}"
        way_out = "who holds what is agreed in restore(): call it before the first save, start again when it changes"
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{what}{more}; {_of(found)}; {way_out}"


def _of(found: Difference) -> str:
    return f"{found.apart} of {found.of} ranks differ from rank {found.ranks[0]}"
