"""The reports of a commit without agents: one small file a rank, and each text that ranks have alike once.

Names of a model's tensors are 700 kB a rank and the same on thousands. A report names them by their digests, as agents
tell it (see report_texts); beside it lies the text itself, in a file that has the digest in its name.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from hyperpod_kit.checkpoint.agent import control_page, report_texts
from hyperpod_kit.checkpoint.agent.shard_report import Report, ShardReport
from hyperpod_kit.checkpoint.repository import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError


def write_report(store: Store, checkpoint_id: str, rank: int, report: Report) -> None:
    """Hand in the report of a rank, its texts first. Raises CheckpointError when it is not about what was captured,
    FileExistsError when the rank has handed in, OSError."""
    teller = report_texts.ReportEncoder()
    body = teller.encode(report)
    for text_digest in report_texts.digests_of_omitted_texts(body):
        _create_text_replacing_torn(
            store,
            f"{checkpoint_id}/{layout.report_text_file(text_digest)}",
            (teller.look_up_text_and_inline_from_now(text_digest) or "").encode(),
        )
    store.create(f"{checkpoint_id}/{layout.report_file(rank)}", manifest.seal_json(body))


def _create_text_replacing_torn(store: Store, name: str, text: bytes) -> None:
    try:
        store.create(name, text)
    except FileExistsError:
        if store.read(name, layout.LARGEST_REPORT) != text:
            # Torn: of a node that was killed. Whoever still writes it writes the same.
            store.delete(name)
            store.create(name, text)


def read_reports(store: Store, checkpoint_id: str, world: int) -> Optional[Dict[int, ShardReport]]:
    """All ranks' reports; None while one has not handed in, and then none is read.

    Raises CheckpointError when one is damaged or is none, OSError.
    """
    present_names = set(store.list(checkpoint_id))
    if not all(layout.report_file(rank) in present_names for rank in range(world)):
        return None
    texts = report_texts.ReportDecoder()
    complete_reports: Dict[int, ShardReport] = {}
    for rank in range(world):
        name = layout.report_file(rank)
        body = manifest.parse_sealed_json(store.read(f"{checkpoint_id}/{name}", layout.LARGEST_REPORT), name)
        try:
            updates = [texts.add_report(rank, control_page.parse_page(dict(body["page"])).key, body)]
            for text_digest in [request.digest for request in updates[0].requests]:
                updates.append(
                    _read_text_into_decoder(store, checkpoint_id, texts, updates[0].requests[0], text_digest)
                )
        except (TypeError, KeyError, ValueError) as err:
            raise CheckpointError(f"{name} lacks a field: {err}") from None
        _collect_complete_or_raise(updates, complete_reports)
    return complete_reports


def _read_text_into_decoder(
    store: Store,
    checkpoint_id: str,
    texts: report_texts.ReportDecoder,
    request: report_texts.TextRequest,
    text_digest: str,
) -> report_texts.ReportUpdate:
    data = store.read(f"{checkpoint_id}/{layout.report_text_file(text_digest)}", layout.LARGEST_REPORT)
    return texts.add_text(request.rank, request.key, text_digest, data.decode("utf-8", "replace"))


def _collect_complete_or_raise(
    updates: List[report_texts.ReportUpdate], complete_reports: Dict[int, ShardReport]
) -> None:
    for update in updates:
        for rank, _, failure in update.failed:
            raise CheckpointError(f"{layout.report_file(rank)}: a text of it is damaged: {failure}")
        complete_reports.update({rank: report for rank, _, report in update.reports})
