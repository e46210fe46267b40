"""From the ranks' reports to one commit: the shared extra.json, index.bin and the manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.agent import control_page, held, replicas
from hyperpod_kit.checkpoint.agent.control_page import Page, SlotState
from hyperpod_kit.checkpoint.agent.shm_slots import Slot
from hyperpod_kit.checkpoint.repository import coverage, digest, index, layout, manifest, shard
from hyperpod_kit.checkpoint.repository.shard import Placed
from hyperpod_kit.errors import CheckpointError


@dataclass(frozen=True)
class Report:
    """What one rank's agent says about its persisted shard; `pieces` are the tensors in it and their places."""

    page: Page
    record: manifest.FileRecord
    extra: str
    pieces: Tuple[Placed, ...] = ()

    def to_json(self, *, pieces: bool = True) -> Dict[str, Any]:
        """Without `pieces` for a receiver that knows them already: they follow from `page.shard.layout`."""
        body: Dict[str, Any] = {"page": self.page.to_json(), "record": self.record.to_json(), "extra": self.extra}
        if pieces:
            body["pieces"] = [[*placed.spec, placed.begin, placed.end] for placed in self.pieces]
        return body

    @staticmethod
    def from_json(body: Dict[str, Any]) -> Report:
        """Raises KeyError, TypeError, ValueError when it is none."""
        page = control_page.page_of(dict(body["page"]))
        record = manifest.FileRecord(**body["record"])
        texts = (record.file, record.root, body["extra"])
        if not all(isinstance(text, str) for text in texts) or not manifest.is_count(record.size):
            raise ValueError("its record is of wrong types")
        pieces = tuple(
            Placed(shard.spec_of(name, dtype, shape, offsets, full), *shard.place_of(begin, end))
            for name, dtype, shape, offsets, full, begin, end in body.get("pieces", ())
        )
        return Report(page, record, body["extra"], pieces)


def report_of(slot: Slot, record: manifest.FileRecord, parser: Optional[shard.Parser] = None) -> Report:
    """The report about a sealed slot that was written as `record`. Raises CheckpointError when it is damaged.

    `parser`: whoever reports save after save keeps one.
    """
    page = slot.page
    if page is None or page.state != SlotState.SEALED:
        raise CheckpointError(f"{slot.name.file('ctl')} is damaged, or not sealed any more")
    return Report(
        page,
        record,
        slot.extra(page.shard.extra_size).decode(),
        (parser or shard.Parser()).tensors(slot.image[: page.shard.size]),
    )


def _extra(trees: Mapping[int, Dict[str, Any]], *, stages: bool) -> bytes:
    """Rank 0's tree is shared; each rank adds only what it has differently.

    `stages`: not all ranks hold the same names. Then what a rank has as an earlier one has it is said so: the ranks of
    one pipeline stage would each repeat its names.
    """
    trees = {
        rank: {key: value for key, value in tree.items() if key not in (replicas.REPLICAS, held.HELD)}
        for rank, tree in trees.items()
    }
    shared = trees[0]
    ranks = [
        {key: value for key, value in trees[rank].items() if key not in shared or shared[key] != value}
        for rank in sorted(trees)
    ]
    body: Dict[str, Any] = {"format": layout.EXTRA_FORMAT, "shared": shared, "ranks": ranks}
    if stages:
        body.update(format=layout.EXTRA_FORMAT_OF_STAGES, like=_like(ranks))
    # Not sorted: dicts come back in the order in which they were saved.
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _like(ranks: List[Dict[str, Any]]) -> List[Dict[str, int]]:
    """Take out of each rank what an earlier one has too; that rank by key."""
    first: Dict[Tuple[str, str], int] = {}
    like: List[Dict[str, int]] = []
    for rank, own in enumerate(ranks):
        like.append({})
        for key in list(own):
            found = first.setdefault((key, digest.small(json.dumps(own[key]).encode())), rank)
            if found != rank:
                like[rank][key] = found
                del own[key]
    return like


def tree_of(extra: bytes, rank: int) -> Dict[str, Any]:
    """The tree that `rank` saved; rank 0's for a rank that the saving run did not have. Raises CheckpointError."""
    body = json.loads(extra)
    if body.get("format") not in (layout.EXTRA_FORMAT, layout.EXTRA_FORMAT_OF_STAGES):
        raise CheckpointError(f"{layout.EXTRA_FILE} has format {body.get('format')!r}")
    if rank >= len(body["ranks"]):
        return dict(body["shared"])
    like = body["like"][rank] if "like" in body else {}
    return {**body["shared"], **body["ranks"][rank], **{key: body["ranks"][other][key] for key, other in like.items()}}


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
        self._pieces: Tuple[Tuple[Placed, ...], ...] = ()
        self._bytes = b""

    def of(self, reports: Mapping[int, Report]) -> bytes:
        """Raises CheckpointError when a tensor is not covered exactly once."""
        pieces = tuple(reports[rank].pieces for rank in sorted(reports))
        if pieces != self._pieces or not self._bytes:
            found = index.build(dict(enumerate(pieces)))
            coverage.check(found)
            self._pieces, self._bytes = pieces, index.encode(found)
        return self._bytes


def _count(reports: Mapping[int, Report], trees: Mapping[int, Dict[str, Any]]) -> int:
    """How many tensors the ranks hold together, each of which is in a shard. Raises CheckpointError."""
    plans: Dict[str, int] = {}
    for rank in sorted(reports):
        plans.setdefault(reports[rank].page.shard.plan, rank)
    first = reports[0].page
    if len(plans) > 1:
        return held.check(
            {rank: trees[rank] for rank in plans.values()},
            (placed.spec.name for report in reports.values() for placed in report.pieces),
        )
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


def assemble(reports: Mapping[int, Report], versions: Dict[str, str], columns: Optional[Columns] = None) -> Assembled:
    """One capture that every rank has persisted. `columns`: whoever commits save after save keeps them.

    Raises CheckpointError when the reports do not make one whole checkpoint: a rank, a tensor or a part of one is
    missing, or the ranks disagree about what they save.
    """
    first = reports[0].page
    if sorted(reports) != list(range(first.origin.world)):
        raise CheckpointError(f"shards of ranks {sorted(reports)} of {first.origin.world} are there")
    for rank, report in sorted(reports.items()):
        page = report.page
        for (what, here), there in zip(_alike(first).items(), _alike(page).values()):
            if here != there:
                raise CheckpointError(
                    f"{what} is {here} on rank 0 and {there} on rank {rank}: "
                    "all ranks save the same steps, in the same order"
                )
        if (report.record.rank, report.record.size, report.record.root) != (rank, page.shard.size, page.shard.root):
            raise CheckpointError(f"rank {rank} reported a file that is not its capture")
        if digest.small(report.extra.encode()) != page.shard.extra_root or page.state != SlotState.SEALED:
            raise CheckpointError(f"rank {rank}'s non-tensor state is not what it captured")
    trees = {rank: json.loads(report.extra) for rank, report in reports.items()}
    differ = replicas.difference({rank: replicas.of_tree(tree) for rank, tree in trees.items()})
    if differ is not None:
        raise CheckpointError(replicas.explain(differ))
    count = _count(reports, trees)
    plans = [reports[rank].page.shard.plan for rank in sorted(reports)]
    table, extra = (columns or Columns()).of(reports), _extra(trees, stages=len(set(plans)) > 1)
    said = trees[0].get("save") or {}
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
