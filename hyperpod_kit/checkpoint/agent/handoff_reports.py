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


def put(store: Store, attempt: str, rank: int, report: Report) -> None:
    """Hand in the report of a rank, its texts first. Raises CheckpointError when it is not about what was captured,
    FileExistsError when the rank has handed in, OSError."""
    teller = report_texts.ReportTeller()
    said = teller.said(report)
    for wanted in report_texts.named(said):
        _put_text(store, f"{attempt}/{layout.text_file(wanted)}", (teller.text(wanted) or "").encode())
    store.create(f"{attempt}/{layout.report_file(rank)}", manifest.seal_json(said))


def _put_text(store: Store, name: str, text: bytes) -> None:
    try:
        store.create(name, text)
    except FileExistsError:
        if store.read(name, layout.LARGEST_REPORT) != text:
            # Torn: of a node that was killed. Whoever still writes it writes the same.
            store.delete(name)
            store.create(name, text)


def read(store: Store, attempt: str, world: int) -> Optional[Dict[int, ShardReport]]:
    """All ranks' reports; None while one has not handed in, and then none is read.

    Raises CheckpointError when one is damaged or is none, OSError.
    """
    there = set(store.list(attempt))
    if not all(layout.report_file(rank) in there for rank in range(world)):
        return None
    texts = report_texts.Texts()
    whole: Dict[int, ShardReport] = {}
    for rank in range(world):
        name = layout.report_file(rank)
        body = manifest.open_json(store.read(f"{attempt}/{name}", layout.LARGEST_REPORT), name)
        try:
            heard = [texts.heard(rank, control_page.page_of(dict(body["page"])).key, body)]
            for wanted in [ask.digest for ask in heard[0].asks]:
                heard.append(_told(store, attempt, texts, heard[0].asks[0], wanted))
        except (TypeError, KeyError, ValueError) as err:
            raise CheckpointError(f"{name} lacks a field: {err}") from None
        _take(heard, whole)
    return whole


def _told(
    store: Store, attempt: str, texts: report_texts.Texts, ask: report_texts.Ask, wanted: str
) -> report_texts.Heard:
    data = store.read(f"{attempt}/{layout.text_file(wanted)}", layout.LARGEST_REPORT)
    return texts.told(ask.rank, ask.key, wanted, data.decode("utf-8", "replace"))


def _take(heard: List[report_texts.Heard], whole: Dict[int, ShardReport]) -> None:
    for one in heard:
        for rank, _, why in one.failed:
            raise CheckpointError(f"{layout.report_file(rank)}: a text of it is damaged: {why}")
        whole.update({rank: report for rank, _, report in one.reports})
