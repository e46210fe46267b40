"""From the ranks' reports to one commit: the shared extra.json, index.bin and the manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from hyperpod_kit.errors import CheckpointError

from . import control, coverage, digest, index, layout, manifest, replicas, shard
from .arena import Slot
from .control import Page
from .shard import Placed, TensorSpec


@dataclass(frozen=True)
class Report:
    """What one rank's agent says about its persisted shard; `pieces` are the tensors in it and their places."""

    page: Page
    record: manifest.FileRecord
    extra: str
    pieces: Tuple[Placed, ...] = ()

    def to_json(self, *, pieces: bool = True) -> Dict[str, Any]:
        """Without `pieces` for a receiver that knows them already: they follow from `page.layout`."""
        body: Dict[str, Any] = {"page": dict(self.page.__dict__), "record": self.record.to_json(), "extra": self.extra}
        if pieces:
            body["pieces"] = [[*placed.spec, placed.begin, placed.end] for placed in self.pieces]
        return body

    @staticmethod
    def from_json(body: Dict[str, Any]) -> Report:
        """Raises KeyError, TypeError, ValueError when it is none."""
        page = dict(body["page"])
        page["owner"] = tuple(page["owner"])
        pieces = tuple(Placed(TensorSpec(name, dtype, tuple(shape), tuple(offsets), tuple(full)), begin, end)
                       for name, dtype, shape, offsets, full, begin, end in body.get("pieces", ()))
        return Report(Page(**page), manifest.FileRecord(**body["record"]), str(body["extra"]), pieces)


def report_of(slot: Slot, record: manifest.FileRecord, parser: Optional[shard.Parser] = None) -> Report:
    """The report about a sealed slot that was written as `record`. Raises CheckpointError when it is damaged.

    `parser`: whoever reports save after save keeps one.
    """
    page = slot.page
    if page is None or page.state != control.SEALED:
        raise CheckpointError(f"{slot.name.file('ctl')} is damaged, or not sealed any more")
    return Report(page, record, slot.extra(page.extra_size).decode(),
                  (parser or shard.Parser()).tensors(slot.image[:page.size]))


def _extra(trees: Mapping[int, Dict[str, Any]]) -> bytes:
    """Rank 0's tree is shared; each rank adds only what it has differently."""
    trees = {rank: {key: value for key, value in tree.items() if key != replicas.REPLICAS}
             for rank, tree in trees.items()}
    shared = trees[0]
    ranks = [{key: value for key, value in trees[rank].items() if key not in shared or shared[key] != value}
             for rank in sorted(trees)]
    body = {"format": layout.EXTRA_FORMAT, "shared": shared, "ranks": ranks}
    # Not sorted: dicts come back in the order in which they were saved.
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def tree_of(extra: bytes, rank: int) -> Dict[str, Any]:
    """The tree that `rank` saved; rank 0's for a rank that the saving run did not have. Raises CheckpointError."""
    body = json.loads(extra)
    if body.get("format") != layout.EXTRA_FORMAT:
        raise CheckpointError(f"{layout.EXTRA_FILE} has format {body.get('format')!r}")
    own = body["ranks"][rank] if rank < len(body["ranks"]) else {}
    return {**body["shared"], **own}


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
    if sorted(reports) != list(range(first.world)):
        raise CheckpointError(f"shards of ranks {sorted(reports)} of {first.world} are there")
    for rank, report in reports.items():
        page = report.page
        same = (page.key, page.world, page.plan, page.step, page.run_id, page.digest, page.chunk)
        if same != (first.key, first.world, first.plan, first.step, first.run_id, first.digest, first.chunk):
            raise CheckpointError(f"rank {rank} saved something else than rank 0")
        if (report.record.rank, report.record.size, report.record.root) != (rank, page.size, page.shard_root):
            raise CheckpointError(f"rank {rank} reported a file that is not its capture")
        if digest.small(report.extra.encode()) != page.extra_root or page.state != control.SEALED:
            raise CheckpointError(f"rank {rank}'s non-tensor state is not what it captured")
    if sum(report.page.tensors for report in reports.values()) != first.plan_tensors:
        raise CheckpointError("some tensors are in no shard")
    trees = {rank: json.loads(report.extra) for rank, report in reports.items()}
    differ = replicas.difference({rank: replicas.of_tree(tree) for rank, tree in trees.items()})
    if differ is not None:
        raise CheckpointError(replicas.explain(differ))
    table, extra = (columns or Columns()).of(reports), _extra(trees)
    said = trees[0].get("save") or {}
    job = {**first.job, "mesh": said["mesh"]} if said.get("mesh") else first.job
    shards = tuple(reports[rank].record for rank in sorted(reports))
    made = manifest.Manifest(
        run=first.run, run_id=first.run_id, epoch=first.epoch, seq=first.seq, step=first.step, world=first.world,
        plan=first.plan, digest=first.digest, chunk=first.chunk, total_bytes=sum(s.size for s in shards),
        tensors=first.plan_tensors, time=manifest.now(), shards=shards,
        extra=manifest.FileRecord.of(layout.EXTRA_FILE, extra),
        index=manifest.FileRecord.of(layout.INDEX_FILE, table),
        parent=said.get("parent"), metrics=manifest.numbers(said.get("metrics") or {}), job=job, versions=versions)
    return Assembled(made, extra, table)
