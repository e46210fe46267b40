"""From the ranks' reports to one commit: the shared extra.json and the manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

from hyperpod_kit.errors import CheckpointError

from . import commit, control, digest, layout, manifest
from .control import Page


@dataclass(frozen=True)
class Report:
    """What one rank's agent says about its persisted shard."""

    page: Page
    record: manifest.FileRecord
    extra: str

    def to_json(self) -> Dict[str, Any]:
        return {"page": dict(self.page.__dict__), "record": self.record.to_json(), "extra": self.extra}

    @staticmethod
    def from_json(body: Dict[str, Any]) -> Report:
        page = dict(body["page"])
        page["owner"] = tuple(page["owner"])
        return Report(Page(**page), manifest.FileRecord(**body["record"]), str(body["extra"]))


def _extra(reports: Mapping[int, Report]) -> bytes:
    """Rank 0's tree is shared; each rank adds only what it has differently."""
    trees = {rank: json.loads(report.extra) for rank, report in reports.items()}
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


def assemble(reports: Mapping[int, Report], versions: Dict[str, str]) -> Tuple[manifest.Manifest, bytes]:
    """(manifest, extra.json) of one capture that every rank has persisted.

    Raises CheckpointError when the reports do not make one whole checkpoint: a rank or a tensor is missing, or the
    ranks disagree about what they save.
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
    extra = _extra(reports)
    shards = tuple(reports[rank].record for rank in sorted(reports))
    made = manifest.Manifest(
        run=first.run, run_id=first.run_id, epoch=first.epoch, seq=first.seq, step=first.step, world=first.world,
        plan=first.plan, digest=first.digest, chunk=first.chunk, total_bytes=sum(s.size for s in shards),
        tensors=first.plan_tensors, time=commit.now(), shards=shards,
        extra=manifest.FileRecord(layout.EXTRA_FILE, len(extra), digest.small(extra)), job=first.job,
        versions=versions)
    return made, extra
