"""How a rank's report comes to rank 0's agent: long texts by their digests, each of which is asked for once.

Names of a model's tensors are alike on thousands of ranks. Each says what its texts are by their digests; rank 0's
agent asks one of those that have a text which it does not know, and the others' reports wait until it is told.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from hyperpod_kit.checkpoint.agent import control_page, shard_report
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.shard_report import Report, ShardReport
from hyperpod_kit.checkpoint.repository import digest, own_tree

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


def _is_alike(key: str, text: str) -> bool:
    """Whether other ranks may well have the same, and it is worth asking."""
    return len(text) >= _LONG and key not in _EACH


class ReportTeller:
    """What an agent says of its rank's shards, save after save. `outright`: with all texts, as rank 0's own does."""

    def __init__(self, *, outright: bool = False) -> None:
        self._outright = outright
        self._layout = ""
        self._texts: Dict[str, Tuple[str, str]] = {}
        self._asked: Set[str] = set()

    def forget(self) -> None:
        """Whoever is told knows nothing of what was said before."""
        self._layout = ""

    def said(self, report: Report) -> Dict[str, Any]:
        """What is said of a shard that is on storage; of a layout only when it is another one than at the last time.

        Raises CheckpointError when the report's text is not what was captured.
        """
        shard_report.check(report)
        parts = [self._part(key, text) for key, text in shard_report.told_parts(report)]
        body: Dict[str, Any] = {"page": report.page.to_json(), "record": report.record.to_json(), "parts": parts}
        if report.own is not None:
            body["tree"] = list(report.own.place)
        if report.page.shard.layout != self._layout:
            self._layout = report.page.shard.layout
            pattern, own, pieces = shard_report.texts_of(report.pieces)
            if pieces is None:
                body.update(own=own, pattern=self._part("", pattern))
            else:
                body["pieces"] = shard_report.pieces_to_json(pieces)
        return body

    def _part(self, key: str, text: str) -> List[Optional[str]]:
        """[key, text], or [key, None, digest]."""
        if self._outright or key in self._asked or not _is_alike(key, text):
            return [key, text]
        found = digest.small(text.encode())
        self._texts[found] = (key, text)
        while len(self._texts) > _KEPT:
            del self._texts[next(iter(self._texts))]
        return [key, None, found]

    def text(self, wanted: str) -> Optional[str]:
        """The text of that digest; None when it is not known any more. A part that changes is said outright from now
        on: this rank would be asked for it at every save."""
        key, text = self._texts.get(wanted, ("", None))
        if key:
            self._asked.add(key)
        return text


class Ask(NamedTuple):
    """The agent of `rank` is to tell a text of its report about `key`."""

    rank: int
    key: Key
    digest: str


class Heard(NamedTuple):
    """What follows from what was told: reports that are whole now or never will be, and texts to ask for."""

    reports: Tuple[Tuple[int, Key, ShardReport], ...] = ()
    asks: Tuple[Ask, ...] = ()
    failed: Tuple[Tuple[int, Key, str], ...] = ()


class _Waiting(NamedTuple):
    """A report, and the digests of the texts that it names."""

    said: Dict[str, Any]
    named: Tuple[str, ...]


class Texts:
    """Rank 0's side: which texts are known, and whose reports wait for others."""

    def __init__(self) -> None:
        self._known: Dict[str, str] = {}
        self._used: Dict[str, Key] = {}
        self._keys: List[Key] = []
        self._waiting: Dict[Tuple[int, Key], _Waiting] = {}
        self._asked: Dict[str, int] = {}
        self._layouts: Dict[int, Tuple[str, Dict[str, Any]]] = {}

    def heard(self, rank: int, key: Key, said: Dict[str, Any]) -> Heard:
        """A report. Raises KeyError, ValueError, TypeError when it is none."""
        said = self._with_layout(rank, said)
        parts = _parts(said)
        self._turn(key)
        named = []
        for part in parts:
            name, text = part[0], part[1]
            if text is None:
                named.append(str(part[2]))
            elif _is_alike(name, text):
                self._know(digest.small(text.encode()), text, key)
        self._waiting[rank, key] = _Waiting(said, tuple(named))
        return self._settled([(rank, key)])

    def told(self, rank: int, key: Key, wanted: str, text: Optional[str]) -> Heard:
        """The answer to an Ask; None where that rank does not have the text any more."""
        self._asked.pop(wanted, None)
        wait = [one for one in sorted(self._waiting) if wanted in self._missing(one, every=True)]
        failed = []
        if text is not None and digest.small(text.encode()) == wanted:
            self._know(wanted, text, key)
        else:
            for one in [one for one in wait if one[0] == rank]:
                del self._waiting[one]
                failed.append((*one, "what it reported is not known there any more"))
        found = self._settled([one for one in wait if one in self._waiting])
        return found._replace(failed=(*failed, *found.failed))

    def gone(self, rank: int) -> Heard:
        """The agent of `rank` is lost, or another one: what it was asked for others must tell."""
        for one in [one for one in self._waiting if one[0] == rank]:
            del self._waiting[one]
        self._layouts.pop(rank, None)
        open_ = [wanted for wanted, whom in self._asked.items() if whom == rank]
        for wanted in open_:
            del self._asked[wanted]
        return self._settled(sorted(self._waiting)) if open_ else Heard()

    def _with_layout(self, rank: int, said: Dict[str, Any]) -> Dict[str, Any]:
        """A report with its layout, which an agent says only when it is another one than at the last time."""
        layout, body = str(said["page"]["layout"]), {name: said[name] for name in _LAYOUT if name in said}
        if body:
            self._layouts[rank] = (layout, body)
        known, body = self._layouts.get(rank, ("", {}))
        return {**said, **body} if known == layout else said

    def _turn(self, key: Key) -> None:
        """Texts of the last few captures are kept; what is forgotten too early is asked for once more."""
        if key not in self._keys:
            self._keys = sorted([*self._keys, key])[-_CAPTURES:]
            for wanted in [wanted for wanted, used in self._used.items() if used not in self._keys]:
                del self._known[wanted], self._used[wanted]

    def _know(self, wanted: str, text: str, key: Key) -> None:
        self._known.setdefault(wanted, text)
        self._used[wanted] = max(key, self._used.get(wanted, key))

    def _missing(self, one: Tuple[int, Key], *, every: bool = False) -> List[str]:
        """The digests of a report whose texts are not known; with `every` all of its digests."""
        named = self._waiting[one].named
        return list(named) if every else [wanted for wanted in named if wanted not in self._known]

    def _settled(self, waiting: Iterable[Tuple[int, Key]]) -> Heard:
        reports, asks, failed = [], [], []
        for rank, key in waiting:
            missing = self._missing((rank, key))
            for wanted in missing:
                if wanted not in self._asked:
                    self._asked[wanted] = rank
                    asks.append(Ask(rank, key, wanted))
            if not missing:
                made = self._made(rank, key, self._waiting.pop((rank, key)).said)
                if made is None:
                    failed.append((rank, key, "it did not say which tensors it has"))
                else:
                    reports.append((rank, key, made))
        return Heard(tuple(reports), tuple(asks), tuple(failed))

    def _made(self, rank: int, key: Key, said: Dict[str, Any]) -> Optional[ShardReport]:
        page, record = control_page.page_of(dict(said["page"])), shard_report.record_of(said["record"])
        pattern, own, pieces = "", "", None
        if "pieces" in said:
            pieces = shard_report.pieces_of(said["pieces"])
        elif "own" in said:
            pattern, own = self._text(said["pattern"], key), str(said["own"])
        else:
            return None
        parts = tuple((str(part[0]), self._text(part, key)) for part in said["parts"])
        tree = own_tree.place_of(said["tree"]) if "tree" in said else None
        return ShardReport(page, record, parts, pattern, own, pieces, tree)

    def _text(self, part: List[Any], key: Key) -> str:
        if part[1] is None:
            self._used[part[2]] = max(key, self._used[part[2]])
            return self._known[part[2]]
        text = str(part[1])
        # One object for what all have alike.
        return self._known.get(digest.small(text.encode()), text) if _is_alike(str(part[0]), text) else text


def named(said: Dict[str, Any]) -> List[str]:
    """The digests of the texts that a report names. Raises as `Texts.heard`."""
    return [str(part[2]) for part in _parts(said) if part[1] is None]


def _parts(said: Dict[str, Any]) -> List[List[Any]]:
    """Every text of a report, said or named. Raises ValueError, KeyError, TypeError."""
    found = [*said["parts"], *([said["pattern"]] if "pattern" in said else [])]
    for part in found:
        if not isinstance(part, list) or len(part) not in (2, 3) or not isinstance(part[0], str):
            raise ValueError("a part of a report is none")
        if not isinstance(part[1] if len(part) == 2 else part[2], str) or (len(part) == 3 and part[1] is not None):
            raise ValueError("a part of a report has neither text nor digest")
    for text in [str(said.get("own", "")), *(word for part in found for word in part if word is not None)]:
        if not text.isascii():
            text.encode()  # half of a surrogate pair is no text
    return found
