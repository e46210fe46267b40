"""From the ranks' reports to one commit: the shared extra.json, index.bin and the manifest."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from hyperpod_kit.checkpoint.agent.reports import extra_state, name_coverage, replicas
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report, ShardReport, to_shard_report
from hyperpod_kit.checkpoint.agent.shm.control_page import SEALED_AT, Page, SlotState
from hyperpod_kit.checkpoint.repository.format import compact_index, coverage, index, layout, manifest, shard_table
from hyperpod_kit.checkpoint.repository.format.shard import Placed
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean_one_line


class IndexCache:
    """index.bin, checked, which only changes when a rank's layout does: of the last commit it is kept."""

    def __init__(self) -> None:
        self._layouts: List[Tuple[str, str, Optional[Tuple[Placed, ...]]]] = []
        self._bytes = b""

    def check_coverage_and_encode_index(self, reports: Mapping[int, ShardReport]) -> bytes:
        """Raises CheckpointError when a tensor is not covered exactly once."""
        ordered_reports = [reports[rank] for rank in sorted(reports)]
        layouts = [(report.pattern, report.table_text, report.pieces) for report in ordered_reports]
        if layouts != self._layouts or not self._bytes:
            if any(report.pieces is not None for report in ordered_reports):
                # A shard has no table: the index names every piece.
                pieces = index.build(dict(enumerate(report.placed_tensors() for report in ordered_reports)))
                coverage.require_full_coverage(pieces)
                self._bytes = index.encode(pieces)
            else:
                coverage.table_rows_requiring_full_coverage(_parse_tables(ordered_reports))
                self._bytes = compact_index.encode([(report.pattern, report.table_text) for report in ordered_reports])
            self._layouts = layouts
        return self._bytes


def _parse_tables(reports: Sequence[ShardReport]) -> List[shard_table.ShardTable]:
    """Raises CheckpointError."""
    try:
        patterns = {text: shard_table.parse_pattern(text.encode()) for text in {report.pattern for report in reports}}
        return [shard_table.parse_table(patterns[report.pattern], report.table_text.encode()) for report in reports]
    except (ValueError, TypeError) as err:
        raise CheckpointError(f"a rank's table of tensors contradicts itself: {err}") from None


def _tensor_names(reports: Sequence[ShardReport]) -> Set[str]:
    """Those of all tensors that lie in shards. Raises CheckpointError."""
    names = {placed.spec.name for report in reports for placed in report.pieces or ()}
    tables = _parse_tables([report for report in reports if report.pieces is None])
    for table in tables:
        names.update(spec.name for _, spec in table.undivided)
    for pattern in {id(table.pattern): table.pattern for table in tables}.values():
        names.update(pattern.names)
    return names


def _check_coverage_and_count_tensors(reports: Mapping[int, ShardReport]) -> int:
    """How many tensors the ranks hold together, each of which is in a shard. Raises CheckpointError."""
    plans: Dict[str, int] = {}
    for rank in sorted(reports):
        plans.setdefault(reports[rank].page.shard.plan, rank)
    first = reports[0].page
    if len(plans) > 1:
        return name_coverage.check_coverage_and_count_tensors(
            {rank: reports[rank].parse_parts() for rank in plans.values()}, _tensor_names(list(reports.values()))
        )
    if sum(report.page.shard.tensors for report in reports.values()) != first.shard.plan_tensors:
        raise CheckpointError("some tensors are in no shard")
    return first.shard.plan_tensors


def _fields_required_equal_on_all_ranks(page: Page) -> Dict[str, object]:
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
    index_bytes: bytes


def _parse_save_info_and_metrics(report: ShardReport) -> Tuple[Dict[str, Any], Dict[str, float]]:
    """What rank 0's tree says about its save, and the metrics of that. Raises CheckpointError."""
    save_info = report.parse_part("save") or {}
    metrics = None
    if isinstance(save_info, dict):
        metrics = save_info.get("metrics") or {}
    if not isinstance(metrics, dict):
        raise CheckpointError(f"rank 0's words about its save are {clean_one_line(save_info)}")
    try:
        return save_info, manifest.decode_numbers(metrics)
    except ValueError:
        raise CheckpointError(f"rank 0's metrics are {clean_one_line(metrics)}") from None


def build_commit_files(
    reports: Mapping[int, Union[Report, ShardReport]],
    versions: Dict[str, str],
    index_cache: Optional[IndexCache] = None,
) -> Assembled:
    """Build the manifest, extra.json and index.bin of one capture that every rank has persisted.

    `index_cache`: whoever commits save after save keeps one. Raises CheckpointError when the reports do not
    make one complete checkpoint: a rank, a tensor or a part of one is missing, or the ranks disagree about
    what they save.
    """
    first = reports[0].page
    if len(reports) != first.origin.world or sorted(reports) != list(range(len(reports))):
        raise CheckpointError(f"only the shards of ranks {sorted(reports)} of {first.origin.world} exist")
    alike = _fields_required_equal_on_all_ranks(first)
    for rank, report in sorted(reports.items()):
        page = report.page
        for (field, expected), actual in zip(alike.items(), _fields_required_equal_on_all_ranks(page).values()):
            if expected != actual:
                raise CheckpointError(
                    f"{field} is {expected} on rank 0 and {actual} on rank {rank}: all ranks must save the same "
                    "steps, in the same order"
                )
        if (report.record.rank, report.record.size, report.record.root) != (rank, page.shard.size, page.shard.root):
            raise CheckpointError(f"rank {rank} reported a file that is not its capture")
        if page.state != SlotState.SEALED:
            raise CheckpointError(f"rank {rank}'s non-tensor state is not what it captured")
    shard_reports = {
        rank: report if isinstance(report, ShardReport) else to_shard_report(report) for rank, report in reports.items()
    }
    difference = replicas.find_difference(
        {
            rank: replicas.digests_by_holders_in_tree({replicas.REPLICAS: shard_report.parse_part(replicas.REPLICAS)})
            for rank, shard_report in shard_reports.items()
        }
    )
    if difference is not None:
        raise CheckpointError(replicas.explain_difference(difference))
    count = _check_coverage_and_count_tensors(shard_reports)
    plans = [shard_reports[rank].page.shard.plan for rank in sorted(shard_reports)]
    index_bytes = (index_cache or IndexCache()).check_coverage_and_encode_index(shard_reports)
    extra = extra_state.encode(
        {rank: shard_report.parts for rank, shard_report in shard_reports.items()},
        {rank: shard_report.tree for rank, shard_report in shard_reports.items()},
        has_pipeline_stages=len(set(plans)) > 1,
        checkpoint_key=(first.epoch, first.seq, first.step),
    )
    save_info, metrics = _parse_save_info_and_metrics(shard_reports[0])
    job = {word: value for word, value in first.origin.job.items() if word != SEALED_AT}
    if save_info.get("mesh"):
        job["mesh"] = save_info["mesh"]
    shards = tuple(reports[rank].record for rank in sorted(reports))
    new_manifest = manifest.Manifest(
        run=first.origin.run,
        run_id=first.origin.run_id,
        epoch=first.epoch,
        seq=first.seq,
        step=first.step,
        world=first.origin.world,
        plan=name_coverage.combine_plans(plans),
        digest=first.shard.digest,
        chunk=first.shard.chunk,
        total_bytes=sum(s.size for s in shards),
        tensors=count,
        time=manifest.now(),
        shards=shards,
        extra=manifest.FileRecord.of(layout.EXTRA_FILE, extra),
        index=manifest.FileRecord.of(layout.INDEX_FILE, index_bytes),
        parent=save_info.get("parent"),
        line=save_info.get("line"),
        metrics=metrics,
        job=job,
        versions=versions,
    )
    # A report may be another's words, and what no reader takes is no checkpoint.
    manifest.require_valid_fields(new_manifest)
    return Assembled(new_manifest, extra, index_bytes)
