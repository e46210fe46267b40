"""extra.json: what the ranks have in common of their trees, what each has besides, and where its own part lies.

Rank 0's tree is the one that is shared. What is each rank's own (random generators, `extra`, a loader) lies in its
shard; here is only where (see repository/rank_extra_state).
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent.reports import name_coverage, replicas
from hyperpod_kit.checkpoint.agent.reports.shard_report import Parts
from hyperpod_kit.checkpoint.repository.format import layout, non_tensor_state, sealed_text
from hyperpod_kit.checkpoint.repository.read import rank_extra_state
from hyperpod_kit.checkpoint.repository.read.rank_extra_state import RankStateLocation
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import clean_one_line

RECORDS = "records"
"""Key of a tree: which kinds of records are in it; see `checkpoint/codec/codec.py`."""

TYPED = "3"
"""Its text where readers of builds before 0.1.0 do not know all of them."""


def encode(
    trees: Mapping[int, Parts],
    rank_states: Mapping[int, Optional[RankStateLocation]],
    *,
    has_pipeline_stages: bool,
    checkpoint_key: Tuple[int, int, int] = (0, 0, 0),
    has_typed_records: bool = False,
) -> bytes:
    """Return extra.json: rank 0's tree as the shared one, and of each other rank what differs from it.

    The texts are put together, not parsed. `checkpoint_key`: (epoch, seq, step) that it is of.
    `rank_states`: where the rest of a rank's tree lies, None where its parts are all there are.
    `has_pipeline_stages`: not all ranks hold the same names; then a part that an earlier rank has too is
    written as a reference to that rank. `has_typed_records`: there are typed records, although no tree says
    so.
    """
    by_rank = [
        {key: text for key, text in trees[rank] if key not in (replicas.REPLICAS, name_coverage.SHARED_NAMES)}
        for rank in sorted(trees)
    ]
    shared = by_rank[0]
    ranks = [{key: text for key, text in parts.items() if shared.get(key) != text} for parts in by_rank]
    locations = [rank_states.get(rank) for rank in sorted(trees)]
    if has_pipeline_stages:
        form = layout.EXTRA_FORMAT_OF_STAGES
    else:
        form = layout.EXTRA_FORMAT
    if any(location is not None for location in locations):
        form = layout.EXTRA_FORMAT_OF_SHARDS
        in_shards = f',"own":{json.dumps(locations, separators=(",", ":"))}'
    else:
        in_shards = ""
    if has_typed_records or any(parts.get(RECORDS) == TYPED for parts in by_rank):
        form = layout.EXTRA_FORMAT_OF_TYPED_RECORDS
    like = ""
    if has_pipeline_stages:
        like = f',"like":{json.dumps(_replace_repeats_by_references(ranks), separators=(",", ":"))}'
    # Not sorted: dicts come back in the order in which they were saved.
    rank_texts = ",".join(map(_json_object_text, ranks))
    return sealed_text.seal(
        f'{{"format":"{form}","shared":{_json_object_text(shared)},"ranks":[{rank_texts}]{like}{in_shards},'
        f'"attempt":{json.dumps(checkpoint_key, separators=(",", ":"))}}}'
    )


def _json_object_text(parts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in parts.items()) + "}"


def _replace_repeats_by_references(ranks: List[Dict[str, str]]) -> List[Dict[str, int]]:
    """Remove from each rank's parts those that an earlier rank has too, and return that rank by key for each
    rank."""
    first: Dict[Tuple[str, str], int] = {}
    like: List[Dict[str, int]] = []
    for rank, rank_parts in enumerate(ranks):
        like.append({})
        for key in list(rank_parts):
            first_rank = first.setdefault((key, rank_parts[key]), rank)
            if first_rank != rank:
                like[rank][key] = first_rank
                del rank_parts[key]
    return like


def parse_rank_tree_outside_shard(extra: bytes, rank: int) -> Dict[str, Any]:
    """The tree that `rank` saved, less what lies in its shard; rank 0's for a rank that the saving run did not have.
    Raises CheckpointError."""
    return _tree_in(_parse_extra(extra), rank)


def read(store: Store, checkpoint_id: str, extra: bytes, rank: int) -> Dict[str, Any]:
    """Return the tree that `rank` saved, with what is read from its shard, verified.

    Raises DigestMismatch, CheckpointError, OSError.
    """
    body = _parse_extra(extra)
    location = None
    if rank < len(body["ranks"]):
        location = _parse_locations(body)[rank]
    return {
        **_tree_in(body, rank),
        **(rank_extra_state.read(store, checkpoint_id, rank, location) if location is not None else {}),
    }


def _parse_extra(extra: bytes) -> Dict[str, Any]:
    """The document, of which every part has its type: whoever may write to a root may have written any other. Raises
    CheckpointError."""
    try:
        body = parse.parse_json_object(extra, len(extra))
    except ValueError as err:
        raise CheckpointError(f"{layout.EXTRA_FILE} is damaged: {err}") from None
    formats = (
        layout.EXTRA_FORMAT,
        layout.EXTRA_FORMAT_OF_STAGES,
        layout.EXTRA_FORMAT_OF_SHARDS,
        layout.EXTRA_FORMAT_OF_TYPED_RECORDS,
    )
    if body.get("format") not in formats:
        raise CheckpointError(f"{layout.EXTRA_FILE} has format {clean_one_line(body.get('format'))}")
    if not isinstance(body.get("shared"), dict) or not _are_objects(body.get("ranks")):
        raise CheckpointError(f"{layout.EXTRA_FILE} has no trees of ranks")
    if "like" in body and not _are_valid_references(body["like"], body["ranks"]):
        raise CheckpointError(f"{layout.EXTRA_FILE} names trees of ranks that it does not have")
    return body


def _are_objects(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


def _are_valid_references(like: Any, ranks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it says, for each rank, which other rank has a part of its tree."""
    if not _are_objects(like) or len(like) != len(ranks):
        return False
    pairs = [pair for parts in like for pair in parts.items()]
    return all(type(rank) is int and 0 <= rank < len(ranks) and key in ranks[rank] for key, rank in pairs)


def _parse_locations(body: Mapping[str, Any]) -> List[Optional[RankStateLocation]]:
    """Where each rank's own tree lies; None where its parts are all there are. Raises CheckpointError."""
    rank_states = body.get("own", [None] * len(body["ranks"]))
    try:
        locations = [None if value is None else rank_extra_state.parse_location(value) for value in rank_states]
    except (ValueError, TypeError) as err:
        raise CheckpointError(f"{layout.EXTRA_FILE}: {err}") from None
    if len(locations) != len(body["ranks"]):
        raise CheckpointError(
            f"{layout.EXTRA_FILE} has {len(locations)} places of own trees for {len(body['ranks'])} ranks"
        )
    return locations


def _tree_in(body: Mapping[str, Any], rank: int) -> Dict[str, Any]:
    if rank >= len(body["ranks"]):
        return dict(body["shared"])
    if "like" in body:
        like = body["like"][rank]
    else:
        like = {}
    return {**body["shared"], **body["ranks"][rank], **{key: body["ranks"][other][key] for key, other in like.items()}}


class RankParts(NamedTuple):
    """What one rank has besides what is shared, and where the rest is."""

    parts: Dict[str, Any]
    location: Optional[RankStateLocation]


def split_shared_and_rank_parts(extra: bytes, restoring_world: int) -> Tuple[bytes, List[RankParts]]:
    """Return what the trees of all ranks have in common, as text, and what each of the `world` ranks that
    restore it has besides: `{**json.loads(shared), **rank.parts}` and what lies at `rank.location` are its
    tree.

    Raises CheckpointError.
    """
    body = _parse_extra(extra)
    saved = min(restoring_world, len(body["ranks"]))
    shared, locations = body["shared"], _parse_locations(body)
    rank_parts = []
    for rank in range(saved):
        tree = _tree_in(body, rank)
        parts = {key: value for key, value in tree.items() if key not in shared or shared[key] is not value}
        rank_parts.append(RankParts(parts, locations[rank]))
    rank_parts += [RankParts({}, None) for _ in range(restoring_world - saved)]
    return json.dumps(shared, separators=(",", ":")).encode(), rank_parts


def merge_stage_trees(extra: bytes) -> Dict[str, Any]:
    """Rank 0's tree, with what other pipeline stages have of model, optimizer and the like. Raises CheckpointError."""
    body = _parse_extra(extra)
    try:
        merged = _merge_stages(body)
    except RecursionError:
        raise CheckpointError(f"{layout.EXTRA_FILE} has trees that are nested too deeply") from None
    non_tensor_state.require_known_records_well_formed(merged)
    return merged


def _merge_stages(body: Mapping[str, Any]) -> Dict[str, Any]:
    merged = _tree_in(body, 0)
    for rank in range(1, len(body["ranks"]) if "like" in body else 1):
        for key, value in _tree_in(body, rank).items():
            if key in ("model", "optimizer") or next(name_coverage.shared_names(value), None) is not None:
                merged[key] = _merge_preferring_first(merged[key], value) if key in merged else value
    return merged


def _merge_preferring_first(first: Any, second: Any) -> Any:
    """What either has; of a value that both have, `first`'s."""
    if isinstance(first, dict) and isinstance(second, dict) and "$" not in first:
        return {
            **first,
            **{
                key: _merge_preferring_first(first[key], value) if key in first else value
                for key, value in second.items()
            },
        }
    if isinstance(first, list) and isinstance(second, list):
        if all(isinstance(item, str) for item in first + second):  # the names of a group's parameters
            return list(dict.fromkeys(first + second))
        if len(first) == len(second):
            return [_merge_preferring_first(*pair) for pair in zip(first, second)]
    return first
