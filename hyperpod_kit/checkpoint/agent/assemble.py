"""From the ranks' reports to one commit: the shared extra.json, index.bin and the manifest."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from hyperpod_kit.checkpoint.agent import held, replicas
from hyperpod_kit.checkpoint.agent.control_page import Page, SlotState
from hyperpod_kit.checkpoint.agent.shard_report import Parts, Report, ShardReport, of
from hyperpod_kit.checkpoint.repository import compact_index, coverage, index, layout, manifest, shard_table
from hyperpod_kit.checkpoint.repository.shard import Placed
from hyperpod_kit.errors import CheckpointError


def _extra(trees: Mapping[int, Parts], *, stages: bool) -> bytes:
    """Rank 0's tree is shared; each rank adds only what it has differently. Texts are put together, not parsed.

    `stages`: not all ranks hold the same names. Then what a rank has as an earlier one has it is said so: the ranks of
    one pipeline stage would each repeat its names.
    """
    by_rank = [
        {key: text for key, text in trees[rank] if key not in (replicas.REPLICAS, held.HELD)} for rank in sorted(trees)
    ]
    shared = by_rank[0]
    ranks = [{key: text for key, text in own.items() if shared.get(key) != text} for own in by_rank]
    form = layout.EXTRA_FORMAT_OF_STAGES if stages else layout.EXTRA_FORMAT
    like = f',"like":{json.dumps(_like(ranks), separators=(",", ":"))}' if stages else ""
    # Not sorted: dicts come back in the order in which they were saved.
    text = f'{{"format":"{form}","shared":{_object(shared)},"ranks":[{",".join(map(_object, ranks))}]{like}}}\n'
    return text.encode()


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
    """The tree that `rank` saved; rank 0's for a rank that the saving run did not have. Raises CheckpointError."""
    return _tree_in(json.loads(extra), rank)


def _tree_in(body: Dict[str, Any], rank: int) -> Dict[str, Any]:
    if body.get("format") not in (layout.EXTRA_FORMAT, layout.EXTRA_FORMAT_OF_STAGES):
        raise CheckpointError(f"{layout.EXTRA_FILE} has format {body.get('format')!r}")
    if rank >= len(body["ranks"]):
        return dict(body["shared"])
    like = body["like"][rank] if "like" in body else {}
    return {**body["shared"], **body["ranks"][rank], **{key: body["ranks"][other][key] for key, other in like.items()}}


def parts_of(extra: bytes, world: int) -> Tuple[bytes, List[Dict[str, Any]]]:
    """What the trees of all ranks have in common, as text, and what each of the `world` ranks that restore it has
    besides: `{**json.loads(shared), **parts[rank]}` is `tree_of(extra, rank)`. Raises CheckpointError."""
    body = json.loads(extra)
    trees = [_tree_in(body, rank) for rank in range(min(world, len(body["ranks"])))]
    shared = body["shared"]
    own = [
        {key: value for key, value in tree.items() if key not in shared or shared[key] is not value} for tree in trees
    ]
    return json.dumps(shared, separators=(",", ":")).encode(), own + [{} for _ in range(world - len(own))]


def whole_of(extra: bytes) -> Dict[str, Any]:
    """Rank 0's tree, with what other pipeline stages have of model, optimizer and the like. Raises CheckpointError."""
    whole = tree_of(extra, 0)
    body = json.loads(extra)
    for rank in range(1, len(body["ranks"]) if "like" in body else 1):
        for key, value in tree_of(extra, rank).items():
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


class Columns:
    """index.bin, checked, which only changes when a rank's layout does: of the last commit it is kept."""

    def __init__(self) -> None:
        self._said: List[Tuple[str, str, Optional[Tuple[Placed, ...]]]] = []
        self._bytes = b""

    def of(self, reports: Mapping[int, ShardReport]) -> bytes:
        """Raises CheckpointError when a tensor is not covered exactly once."""
        found = [reports[rank] for rank in sorted(reports)]
        said = [(one.pattern, one.own, one.pieces) for one in found]
        if said != self._said or not self._bytes:
            if any(one.pieces is not None for one in found):
                # A shard has no table: the index names every piece.
                pieces = index.build(dict(enumerate(one.placed() for one in found)))
                coverage.check(pieces)
                self._bytes = index.encode(pieces)
            else:
                coverage.check_tables(_tables(found))
                self._bytes = compact_index.encode([(one.pattern, one.own) for one in found])
            self._said = said
        return self._bytes


def _tables(reports: Sequence[ShardReport]) -> List[shard_table.ShardTable]:
    """Raises CheckpointError."""
    try:
        patterns = {text: shard_table.parse_pattern(text.encode()) for text in {one.pattern for one in reports}}
        return [shard_table.parse_table(patterns[one.pattern], one.own.encode()) for one in reports]
    except (ValueError, TypeError) as err:
        raise CheckpointError(f"a rank's table of tensors contradicts itself: {err}") from None


def _names(reports: Sequence[ShardReport]) -> Set[str]:
    """Those of all tensors that lie in shards. Raises CheckpointError."""
    found = {placed.spec.name for one in reports for placed in one.pieces or ()}
    tables = _tables([one for one in reports if one.pieces is None])
    for table in tables:
        found.update(spec.name for _, spec in table.whole)
    for pattern in {id(table.pattern): table.pattern for table in tables}.values():
        found.update(pattern.names)
    return found


def _count(reports: Mapping[int, ShardReport]) -> int:
    """How many tensors the ranks hold together, each of which is in a shard. Raises CheckpointError."""
    plans: Dict[str, int] = {}
    for rank in sorted(reports):
        plans.setdefault(reports[rank].page.shard.plan, rank)
    first = reports[0].page
    if len(plans) > 1:
        return held.check({rank: reports[rank].tree() for rank in plans.values()}, _names(list(reports.values())))
    if sum(report.page.shard.tensors for report in reports.values()) != first.shard.plan_tensors:
        raise CheckpointError("some tensors are in no shard")
    return first.shard.plan_tensors


def _alike(page: Page) -> Dict[str, object]:
    """What is the same on all ranks' pages of one capture."""
    return {
        "key": page.key,
        "world": page.origin.world,
        "step": page.step,
        "run_id": page.origin.run_id,
        "digest": page.shard.digest,
        "chunk": page.shard.chunk,
    }


class Assembled(NamedTuple):
    """The small files of an attempt, the manifest last."""

    manifest: manifest.Manifest
    extra: bytes
    columns: bytes


def assemble(
    reports: Mapping[int, Union[Report, ShardReport]], versions: Dict[str, str], columns: Optional[Columns] = None
) -> Assembled:
    """One capture that every rank has persisted. `columns`: whoever commits save after save keeps them.

    Raises CheckpointError when the reports do not make one whole checkpoint: a rank, a tensor or a part of one is
    missing, or the ranks disagree about what they save.
    """
    first = reports[0].page
    if sorted(reports) != list(range(first.origin.world)):
        raise CheckpointError(f"shards of ranks {sorted(reports)} of {first.origin.world} are there")
    alike = _alike(first)
    for rank, report in sorted(reports.items()):
        page = report.page
        for (what, here), there in zip(alike.items(), _alike(page).values()):
            if here != there:
                raise CheckpointError(
                    f"{what} is {here} on rank 0 and {there} on rank {rank}: "
                    "all ranks save the same steps, in the same order"
                )
        if (report.record.rank, report.record.size, report.record.root) != (rank, page.shard.size, page.shard.root):
            raise CheckpointError(f"rank {rank} reported a file that is not its capture")
        if page.state != SlotState.SEALED:
            raise CheckpointError(f"rank {rank}'s non-tensor state is not what it captured")
    found = {rank: report if isinstance(report, ShardReport) else of(report) for rank, report in reports.items()}
    differ = replicas.difference(
        {rank: replicas.of_tree({replicas.REPLICAS: one.value(replicas.REPLICAS)}) for rank, one in found.items()}
    )
    if differ is not None:
        raise CheckpointError(replicas.explain(differ))
    count = _count(found)
    plans = [found[rank].page.shard.plan for rank in sorted(found)]
    table = (columns or Columns()).of(found)
    extra = _extra({rank: one.parts for rank, one in found.items()}, stages=len(set(plans)) > 1)
    said = found[0].value("save") or {}
    job = {**first.origin.job, "mesh": said["mesh"]} if said.get("mesh") else first.origin.job
    shards = tuple(reports[rank].record for rank in sorted(reports))
    made = manifest.Manifest(
        run=first.origin.run,
        run_id=first.origin.run_id,
        epoch=first.epoch,
        seq=first.seq,
        step=first.step,
        world=first.origin.world,
        plan=held.plan_of(plans),
        digest=first.shard.digest,
        chunk=first.shard.chunk,
        total_bytes=sum(s.size for s in shards),
        tensors=count,
        time=manifest.now(),
        shards=shards,
        extra=manifest.FileRecord.of(layout.EXTRA_FILE, extra),
        index=manifest.FileRecord.of(layout.INDEX_FILE, table),
        parent=said.get("parent"),
        metrics=manifest.numbers(said.get("metrics") or {}),
        job=job,
        versions=versions,
    )
    return Assembled(made, extra, table)
