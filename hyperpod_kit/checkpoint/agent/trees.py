"""extra.json: what the ranks have in common of their trees, what each has besides, and where its own part lies.

Rank 0's tree is the one that is shared. What is each rank's own (random generators, `extra`, a loader) lies in its
shard; here is only where (see repository/own_tree).
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent import held, replicas
from hyperpod_kit.checkpoint.agent.shard_report import Parts
from hyperpod_kit.checkpoint.repository import layout, own_tree, saved_tree, sealed_text
from hyperpod_kit.checkpoint.repository.own_tree import OwnTree
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import clean

RECORDS = "records"
"""Key of a tree: which kinds of records are in it; see `checkpoint/codec.py`."""

TYPED = "3"
"""Its text where readers of builds before 0.1.0 do not know all of them."""


def encode(
    trees: Mapping[int, Parts],
    own: Mapping[int, Optional[OwnTree]],
    *,
    stages: bool,
    attempt: Tuple[int, int, int] = (0, 0, 0),
    typed: bool = False,
) -> bytes:
    """Rank 0's tree is shared; each rank adds only what it has differently. Texts are put together, not parsed.

    `attempt`: (epoch, seq, step) that it is of. `own`: where the rest of a rank's tree lies, None where its parts are
    all there are. `stages`: not all ranks hold the same names. Then what a rank has as an earlier one has it is said
    so: the ranks of one pipeline stage would each repeat its names. `typed`: there are typed records, although no tree
    says so.
    """
    by_rank = [
        {key: text for key, text in trees[rank] if key not in (replicas.REPLICAS, held.HELD)} for rank in sorted(trees)
    ]
    shared = by_rank[0]
    ranks = [{key: text for key, text in parts.items() if shared.get(key) != text} for parts in by_rank]
    places = [own.get(rank) for rank in sorted(trees)]
    form = layout.EXTRA_FORMAT_OF_STAGES if stages else layout.EXTRA_FORMAT
    if any(place is not None for place in places):
        form = layout.EXTRA_FORMAT_OF_SHARDS
        in_shards = f',"own":{json.dumps(places, separators=(",", ":"))}'
    else:
        in_shards = ""
    if typed or any(parts.get(RECORDS) == TYPED for parts in by_rank):
        form = layout.EXTRA_FORMAT_OF_TYPED_RECORDS
    like = f',"like":{json.dumps(_like(ranks), separators=(",", ":"))}' if stages else ""
    # Not sorted: dicts come back in the order in which they were saved.
    return sealed_text.seal(
        f'{{"format":"{form}","shared":{_object(shared)},"ranks":[{",".join(map(_object, ranks))}]{like}{in_shards},'
        f'"attempt":{json.dumps(attempt, separators=(",", ":"))}}}'
    )


def _object(parts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in parts.items()) + "}"


def _like(ranks: List[Dict[str, str]]) -> List[Dict[str, int]]:
    """Take out of each rank what an earlier one has too; that rank by key."""
    first: Dict[Tuple[str, str], int] = {}
    like: List[Dict[str, int]] = []
    for rank, own in enumerate(ranks):
        like.append({})
        for key in list(own):
            found = first.setdefault((key, own[key]), rank)
            if found != rank:
                like[rank][key] = found
                del own[key]
    return like


def tree_of(extra: bytes, rank: int) -> Dict[str, Any]:
    """The tree that `rank` saved, less what lies in its shard; rank 0's for a rank that the saving run did not have.
    Raises CheckpointError."""
    return _tree_in(_body(extra), rank)


def read(store: Store, attempt: str, extra: bytes, rank: int) -> Dict[str, Any]:
    """All of it, verified. Raises DigestMismatch, CheckpointError, OSError."""
    body = _body(extra)
    place = _places(body)[rank] if rank < len(body["ranks"]) else None
    return {**_tree_in(body, rank), **(own_tree.read(store, attempt, rank, place) if place is not None else {})}


def _body(extra: bytes) -> Dict[str, Any]:
    """The document, of which every part has its type: whoever may write to a root may have written any other. Raises
    CheckpointError."""
    try:
        body = parse.json_object(extra, len(extra))
    except ValueError as err:
        raise CheckpointError(f"{layout.EXTRA_FILE} is damaged: {err}") from None
    known = (
        layout.EXTRA_FORMAT,
        layout.EXTRA_FORMAT_OF_STAGES,
        layout.EXTRA_FORMAT_OF_SHARDS,
        layout.EXTRA_FORMAT_OF_TYPED_RECORDS,
    )
    if body.get("format") not in known:
        raise CheckpointError(f"{layout.EXTRA_FILE} has format {clean(body.get('format'))}")
    if not isinstance(body.get("shared"), dict) or not _are_objects(body.get("ranks")):
        raise CheckpointError(f"{layout.EXTRA_FILE} has no trees of ranks")
    if "like" in body and not _is_like(body["like"], body["ranks"]):
        raise CheckpointError(f"{layout.EXTRA_FILE} names trees of ranks that it does not have")
    return body


def _are_objects(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


def _is_like(like: Any, ranks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it says, for each rank, which other rank has a part of its tree."""
    if not _are_objects(like) or len(like) != len(ranks):
        return False
    pairs = [pair for parts in like for pair in parts.items()]
    return all(type(rank) is int and 0 <= rank < len(ranks) and key in ranks[rank] for key, rank in pairs)


def _places(body: Mapping[str, Any]) -> List[Optional[OwnTree]]:
    """Where each rank's own tree lies; None where its parts are all there are. Raises CheckpointError."""
    own = body.get("own", [None] * len(body["ranks"]))
    try:
        places = [None if value is None else own_tree.place_of(value) for value in own]
    except (ValueError, TypeError) as err:
        raise CheckpointError(f"{layout.EXTRA_FILE}: {err}") from None
    if len(places) != len(body["ranks"]):
        raise CheckpointError(
            f"{layout.EXTRA_FILE} has {len(places)} places of own trees for {len(body['ranks'])} ranks"
        )
    return places


def _tree_in(body: Mapping[str, Any], rank: int) -> Dict[str, Any]:
    if rank >= len(body["ranks"]):
        return dict(body["shared"])
    like = body["like"][rank] if "like" in body else {}
    return {**body["shared"], **body["ranks"][rank], **{key: body["ranks"][other][key] for key, other in like.items()}}


class RankParts(NamedTuple):
    """What one rank has besides what is shared, and where the rest is."""

    parts: Dict[str, Any]
    place: Optional[OwnTree]


def parts_of(extra: bytes, world: int) -> Tuple[bytes, List[RankParts]]:
    """What the trees of all ranks have in common, as text, and what each of the `world` ranks that restore it has
    besides: `{**json.loads(shared), **one.parts}` and what lies at `one.place` are its tree. Raises CheckpointError."""
    body = _body(extra)
    saved = min(world, len(body["ranks"]))
    shared, places = body["shared"], _places(body)
    own = []
    for rank in range(saved):
        tree = _tree_in(body, rank)
        parts = {key: value for key, value in tree.items() if key not in shared or shared[key] is not value}
        own.append(RankParts(parts, places[rank]))
    own += [RankParts({}, None) for _ in range(world - saved)]
    return json.dumps(shared, separators=(",", ":")).encode(), own


def whole_of(extra: bytes) -> Dict[str, Any]:
    """Rank 0's tree, with what other pipeline stages have of model, optimizer and the like. Raises CheckpointError."""
    body = _body(extra)
    try:
        whole = _whole_in(body)
    except RecursionError:
        raise CheckpointError(f"{layout.EXTRA_FILE} has trees that are nested too deeply") from None
    saved_tree.require_sound(whole)
    return whole


def _whole_in(body: Mapping[str, Any]) -> Dict[str, Any]:
    whole = _tree_in(body, 0)
    for rank in range(1, len(body["ranks"]) if "like" in body else 1):
        for key, value in _tree_in(body, rank).items():
            if key in ("model", "optimizer") or next(held.shared_names(value), None) is not None:
                whole[key] = _merged(whole[key], value) if key in whole else value
    return whole


def _merged(one: Any, other: Any) -> Any:
    """What either has; of a value that both have, `one`'s."""
    if isinstance(one, dict) and isinstance(other, dict) and "$" not in one:
        return {**one, **{key: _merged(one[key], value) if key in one else value for key, value in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        if all(isinstance(item, str) for item in one + other):  # the names of a group's parameters
            return list(dict.fromkeys(one + other))
        if len(one) == len(other):
            return [_merged(*pair) for pair in zip(one, other)]
    return one
