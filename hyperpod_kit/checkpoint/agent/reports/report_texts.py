"""How a rank's report comes to rank 0's agent: long texts by their digests, each of which is asked for once.

Names of a model's tensors are alike on thousands of ranks. Each says what its texts are by their digests; rank 0's
agent asks one of those that have a text which it does not know, and the others' reports wait until it is told.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from hyperpod_kit.checkpoint.agent.reports import shard_report
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report, ShardReport
from hyperpod_kit.checkpoint.agent.shm import control_page
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.read import rank_extra_state

_LONG = 1024
"""Bytes from which on a text is said by its digest."""

_EACH = frozenset({"rng"})
"""Parts of a tree that no two ranks have alike."""

_KEPT = 64
"""Texts that an agent can still be asked for: those of the last few reports."""

_LAYOUT = ("own", "pattern", "pieces")
"""What a report says of its layout."""

_CAPTURES = 3
"""Captures of which the leader keeps the texts."""


def _is_worth_deduplicating(key: str, text: str) -> bool:
    """Whether other ranks may well have the same, and it is worth asking."""
    return len(text) >= _LONG and key not in _EACH


class ReportEncoder:
    """What an agent says of its rank's shards, save after save. `inline_texts`: with all texts, as rank 0's own
    does."""

    def __init__(self, *, inline_texts: bool = False) -> None:
        self._inline_texts = inline_texts
        self._layout = ""
        self._texts: Dict[str, Tuple[str, str]] = {}
        self._requested: Set[str] = set()

    def forget_sent_layout(self) -> None:
        """Make the next report contain its layout again: the receiver knows nothing of what was sent before."""
        self._layout = ""

    def encode(self, report: Report) -> Dict[str, Any]:
        """What is said of a shard that is on storage; of a layout only when it is another one than at the last time.

        Raises CheckpointError when the report's text is not what was captured.
        """
        shard_report.require_report_matches_capture(report)
        parts = [self._encode_part(key, text) for key, text in shard_report.parts_outside_shard(report)]
        body: Dict[str, Any] = {"page": report.page.to_json(), "record": report.record.to_json(), "parts": parts}
        if report.rank_state is not None:
            body["tree"] = list(report.rank_state.location)
        if report.page.shard.layout != self._layout:
            self._layout = report.page.shard.layout
            pattern, table_text, pieces = shard_report.table_texts_or_pieces(report.pieces)
            if pieces is None:
                body.update(own=table_text, pattern=self._encode_part("", pattern))
            else:
                body["pieces"] = shard_report.pieces_to_json(pieces)
        return body

    def _encode_part(self, key: str, text: str) -> List[Optional[str]]:
        """[key, text], or [key, None, digest]."""
        if self._inline_texts or key in self._requested or not _is_worth_deduplicating(key, text):
            return [key, text]
        text_digest = digest.small_object_digest(text.encode())
        self._texts[text_digest] = (key, text)
        while len(self._texts) > _KEPT:
            del self._texts[next(iter(self._texts))]
        return [key, None, text_digest]

    def look_up_text_and_inline_from_now(self, text_digest: str) -> Optional[str]:
        """Return the text of that digest, None when it is not known any more.

        Its part of the tree is sent as text from now on: where it changes, this rank would be asked for it at
        every save.
        """
        key, text = self._texts.get(text_digest, ("", None))
        if key:
            self._requested.add(key)
        return text


class TextRequest(NamedTuple):
    """The agent of `rank` is to tell a text of its report about `key`."""

    rank: int
    key: Key
    digest: str


class ReportUpdate(NamedTuple):
    """What follows from what was told: reports that are whole now or never will be, and texts to ask for."""

    reports: Tuple[Tuple[int, Key, ShardReport], ...] = ()
    requests: Tuple[TextRequest, ...] = ()
    failed: Tuple[Tuple[int, Key, str], ...] = ()


class _Waiting(NamedTuple):
    """A report, and the digests of the texts that it names."""

    body: Dict[str, Any]
    named: Tuple[str, ...]


class ReportDecoder:
    """Rank 0's side: which texts are known, and whose reports wait for others."""

    def __init__(self) -> None:
        self._texts: Dict[str, str] = {}
        self._last_used: Dict[str, Key] = {}
        self._keys: List[Key] = []
        self._waiting: Dict[Tuple[int, Key], _Waiting] = {}
        self._requested: Dict[str, int] = {}
        self._layouts: Dict[int, Tuple[str, Dict[str, Any]]] = {}

    def add_report(self, rank: int, key: Key, body: Dict[str, Any]) -> ReportUpdate:
        """Add a report; return the reports that are complete now and the texts to request.

        Raises KeyError, ValueError, TypeError when it is none.
        """
        body = self._store_or_add_layout(rank, body)
        parts = _parse_parts(body)
        self._forget_texts_of_old_captures(key)
        named = []
        for part in parts:
            name, text = part[0], part[1]
            if text is None:
                named.append(str(part[2]))
            elif _is_worth_deduplicating(name, text):
                self._store_text(digest.small_object_digest(text.encode()), text, key)
        self._waiting[rank, key] = _Waiting(body, tuple(named))
        return self._build_complete_and_request_missing([(rank, key)])

    def add_text(self, rank: int, key: Key, text_digest: str, text: Optional[str]) -> ReportUpdate:
        """Add a text that was requested; None where that rank does not have it any more, whose report then fails."""
        self._requested.pop(text_digest, None)
        waiting = [
            pending
            for pending in sorted(self._waiting)
            if text_digest in self._missing_digests(pending, include_known=True)
        ]
        failed = []
        if text is not None and digest.small_object_digest(text.encode()) == text_digest:
            self._store_text(text_digest, text, key)
        else:
            for pending in [pending for pending in waiting if pending[0] == rank]:
                del self._waiting[pending]
                failed.append((*pending, "its report is no longer known there"))
        update = self._build_complete_and_request_missing([pending for pending in waiting if pending in self._waiting])
        return update._replace(failed=(*failed, *update.failed))

    def remove_rank(self, rank: int) -> ReportUpdate:
        """Forget the reports and the layout of a rank whose agent is lost or replaced, and request from others
        what it was asked for."""
        for pending in [pending for pending in self._waiting if pending[0] == rank]:
            del self._waiting[pending]
        self._layouts.pop(rank, None)
        requested = [text_digest for text_digest, requested_rank in self._requested.items() if requested_rank == rank]
        for text_digest in requested:
            del self._requested[text_digest]
        if requested:
            return self._build_complete_and_request_missing(sorted(self._waiting))
        return ReportUpdate()

    def _store_or_add_layout(self, rank: int, report: Dict[str, Any]) -> Dict[str, Any]:
        """A report with its layout, which an agent says only when it is another one than at the last time."""
        layout, body = str(report["page"]["layout"]), {name: report[name] for name in _LAYOUT if name in report}
        if body:
            self._layouts[rank] = (layout, body)
        recorded_layout, body = self._layouts.get(rank, ("", {}))
        if recorded_layout == layout:
            return {**report, **body}
        return report

    def _forget_texts_of_old_captures(self, key: Key) -> None:
        """Texts of the last few captures are kept; what is forgotten too early is asked for once more."""
        if key not in self._keys:
            self._keys = sorted([*self._keys, key])[-_CAPTURES:]
            for text_digest in [text_digest for text_digest, used in self._last_used.items() if used not in self._keys]:
                del self._texts[text_digest], self._last_used[text_digest]

    def _store_text(self, text_digest: str, text: str, key: Key) -> None:
        self._texts.setdefault(text_digest, text)
        self._last_used[text_digest] = max(key, self._last_used.get(text_digest, key))

    def _missing_digests(self, pending: Tuple[int, Key], *, include_known: bool = False) -> List[str]:
        """The digests of a report whose texts are not known; with `every` all of its digests."""
        named = self._waiting[pending].named
        if include_known:
            return list(named)
        return [text_digest for text_digest in named if text_digest not in self._texts]

    def _build_complete_and_request_missing(self, waiting: Iterable[Tuple[int, Key]]) -> ReportUpdate:
        reports, asks, failed = [], [], []
        for rank, key in waiting:
            missing = self._missing_digests((rank, key))
            for text_digest in missing:
                if text_digest not in self._requested:
                    self._requested[text_digest] = rank
                    asks.append(TextRequest(rank, key, text_digest))
            if not missing:
                made = self._build_report(rank, key, self._waiting.pop((rank, key)).body)
                if made is None:
                    failed.append((rank, key, "it did not report its tensors"))
                else:
                    reports.append((rank, key, made))
        return ReportUpdate(tuple(reports), tuple(asks), tuple(failed))

    def _build_report(self, rank: int, key: Key, body: Dict[str, Any]) -> Optional[ShardReport]:
        page, record = control_page.parse_page(dict(body["page"])), shard_report.parse_record(body["record"])
        pattern, table_text, pieces = "", "", None
        if "pieces" in body:
            pieces = shard_report.parse_pieces(body["pieces"])
        elif "own" in body:
            pattern, table_text = self._resolve_text(body["pattern"], key), str(body["own"])
        else:
            return None
        parts = tuple((str(part[0]), self._resolve_text(part, key)) for part in body["parts"])
        tree = None
        if "tree" in body:
            tree = rank_extra_state.parse_location(body["tree"])
        return ShardReport(page, record, parts, pattern, table_text, pieces, tree)

    def _resolve_text(self, part: List[Any], key: Key) -> str:
        if part[1] is None:
            self._last_used[part[2]] = max(key, self._last_used[part[2]])
            return self._texts[part[2]]
        text = str(part[1])
        # One object for what all have alike.
        if _is_worth_deduplicating(str(part[0]), text):
            return self._texts.get(digest.small_object_digest(text.encode()), text)
        return text


def digests_of_omitted_texts(body: Dict[str, Any]) -> List[str]:
    """The digests of the texts that a report names. Raises as `ReportDecoder.add_report`."""
    return [str(part[2]) for part in _parse_parts(body) if part[1] is None]


def _parse_parts(body: Dict[str, Any]) -> List[List[Any]]:
    """Every text of a report, said or named. Raises ValueError, KeyError, TypeError."""
    parts = [*body["parts"], *([body["pattern"]] if "pattern" in body else [])]
    for part in parts:
        if not isinstance(part, list) or len(part) not in (2, 3) or not isinstance(part[0], str):
            raise ValueError("a part of a report is invalid")
        if not isinstance(part[1] if len(part) == 2 else part[2], str) or (len(part) == 3 and part[1] is not None):
            raise ValueError("a part of a report has neither text nor digest")
    texts = [str(body.get("own", ""))]
    for part in parts:
        texts += [text for text in part if text is not None]
    for text in texts:
        if not text.isascii():
            text.encode()  # half of a surrogate pair is no text
    return parts
