"""From the ranks' reports to one commit: the shared extra.json, index.bin and the manifest."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from hyperpod_kit.checkpoint.agent import held, replicas, trees
from hyperpod_kit.checkpoint.agent.control_page import SEALED_AT, Page, SlotState
from hyperpod_kit.checkpoint.agent.shard_report import Report, ShardReport, of
from hyperpod_kit.checkpoint.repository import compact_index, coverage, index, layout, manifest, shard_table
from hyperpod_kit.checkpoint.repository.shard import Placed
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean


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
        return held.check({rank: reports[rank].told() for rank in plans.values()}, _names(list(reports.values())))
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


def _save_of(report: ShardReport) -> Tuple[Dict[str, Any], Dict[str, float]]:
    """What rank 0's tree says about its save, and the metrics of that. Raises CheckpointError."""
    said = report.value("save") or {}
    measured = said.get("metrics") or {} if isinstance(said, dict) else None
    if not isinstance(measured, dict):
        raise CheckpointError(f"rank 0's words about its save are {clean(said)}")
    try:
        return said, manifest.numbers(measured)
    except ValueError:
        raise CheckpointError(f"rank 0's metrics are {clean(measured)}") from None


def assemble(
    reports: Mapping[int, Union[Report, ShardReport]], versions: Dict[str, str], columns: Optional[Columns] = None
) -> Assembled:
    """One capture that every rank has persisted. `columns`: whoever commits save after save keeps them.

    Raises CheckpointError when the reports do not make one whole checkpoint: a rank, a tensor or a part of one is
    missing, or the ranks disagree about what they save.
    """
    first = reports[0].page
    if len(reports) != first.origin.world or sorted(reports) != list(range(len(reports))):
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
    extra = trees.encode(
        {rank: one.parts for rank, one in found.items()},
        {rank: one.tree for rank, one in found.items()},
        stages=len(set(plans)) > 1,
        attempt=(first.epoch, first.seq, first.step),
    )
    said, metrics = _save_of(found[0])
    job = {word: value for word, value in first.origin.job.items() if word != SEALED_AT}
    if said.get("mesh"):
        job["mesh"] = said["mesh"]
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
        line=said.get("line"),
        metrics=metrics,
        job=job,
        versions=versions,
    )
    # A report may be another's words, and what no reader takes is no checkpoint.
    manifest.check(made)
    return Assembled(made, extra, table)
