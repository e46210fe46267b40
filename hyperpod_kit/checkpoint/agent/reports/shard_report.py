"""What a commit needs of one rank: its page and file, its tree in parts, its tensors as a table.

Texts that thousands of ranks have alike (names, patterns) are one object in memory, so that to compare them costs
nothing; they are only parsed where somebody must know what they say.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent.shm import control_page
from hyperpod_kit.checkpoint.agent.shm.control_page import Page, SlotState
from hyperpod_kit.checkpoint.agent.shm.shm_slots import Slot
from hyperpod_kit.checkpoint.repository.format import digest, manifest, shard, shard_table
from hyperpod_kit.checkpoint.repository.format.shard import Placed
from hyperpod_kit.checkpoint.repository.read import rank_extra_state
from hyperpod_kit.checkpoint.repository.read.rank_extra_state import RankStateLocation
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import clean_one_line

Parts = Tuple[Tuple[str, str], ...]
"""Key of a tree, JSON of its value."""


class InShard(NamedTuple):
    """The part of a rank's tree that lies in its shard: where, and its keys."""

    location: RankStateLocation
    keys: Tuple[str, ...]

    def to_json(self) -> List[Any]:
        return [list(self.location), list(self.keys)]


def parse_in_shard(body: Any) -> Optional[InShard]:
    """Undo `InShard.to_json`; None for None. Raises ValueError, TypeError when it is none."""
    if body is None:
        return None
    location, keys = body
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("a rank's own tree has keys that are no texts")
    return InShard(rank_extra_state.parse_location(location), tuple(keys))


class Report(NamedTuple):
    """What one rank's agent says about its persisted shard; `pieces` are the tensors in it and their places, `extra` is
    all of its tree, `rank_state` what of that lies in the shard."""

    page: Page
    record: manifest.FileRecord
    extra: str
    pieces: Tuple[Placed, ...] = ()
    rank_state: Optional[InShard] = None

    def to_json(self) -> Dict[str, Any]:
        """As it is handed in and as it lies on a node's disk: all of it. See report_texts for how agents tell it."""
        return {
            "page": self.page.to_json(),
            "record": self.record.to_json(),
            "extra": self.extra,
            "pieces": pieces_to_json(self.pieces),
            **({"tree": self.rank_state.to_json()} if self.rank_state is not None else {}),
        }

    @staticmethod
    def from_json(body: Dict[str, Any]) -> Report:
        """Raises KeyError, TypeError, ValueError when it is none."""
        page, record = control_page.parse_page(dict(body["page"])), parse_record(body["record"])
        if not isinstance(body["extra"], str):
            raise ValueError("its tree is not a text")
        return Report(
            page, record, body["extra"], parse_pieces(body.get("pieces", ())), parse_in_shard(body.get("tree"))
        )


def parse_record(body: Dict[str, Any]) -> manifest.FileRecord:
    """Raises TypeError, ValueError when it is none."""
    record = manifest.FileRecord(**body)
    if not isinstance(record.file, str) or not isinstance(record.root, str) or not manifest.is_count(record.size):
        raise ValueError("its record is of wrong types")
    return record


def pieces_to_json(pieces: Sequence[Placed]) -> List[List[Any]]:
    return [[*placed.spec, placed.begin, placed.end] for placed in pieces]


def parse_pieces(rows: Any) -> Tuple[Placed, ...]:
    """Undo `pieces_to_json`. Raises TypeError, ValueError when it is none."""
    return tuple(
        Placed(shard.parse_spec(name, dtype, shape, offsets, full), *shard.parse_range(begin, end))
        for name, dtype, shape, offsets, full, begin, end in rows
    )


def report_of(slot: Slot, record: manifest.FileRecord, parser: Optional[shard.Parser] = None) -> Report:
    """The report about a sealed slot that was written as `record`. Raises CheckpointError when it is damaged.

    `parser`: whoever reports save after save keeps one.
    """
    page = slot.page
    if page is None or page.state != SlotState.SEALED:
        raise CheckpointError(f"{slot.name.file('ctl')} is damaged, or not sealed any more")
    extra = slot.read_extra(page.shard.extra_size).decode()
    image = slot.image[: page.shard.size]
    parsed = (parser or shard.Parser()).parse_or_reuse_last(image)
    return Report(
        page,
        record,
        extra,
        parsed.tensors,
        _locate_rank_state_in_shard(image, parsed.tree, extra) if parsed.tree else None,
    )


def _locate_rank_state_in_shard(image: memoryview, room: Tuple[int, int], extra: str) -> Optional[InShard]:
    """Raises CheckpointError when it is not a part of the tree."""
    location = rank_extra_state.locate_in_image(image, *room)
    if not location.size:
        return None
    try:
        parts = split_json_object(bytes(image[location.begin : location.begin + location.size]).decode())
        if not all(f"{json.dumps(key)}:{text}" in extra for key, text in parts):
            raise ValueError("it is no part of the capture's tree")
    except ValueError as err:
        raise CheckpointError(f"the own tree in the shard: {err}") from None
    return InShard(location, tuple(key for key, _ in parts))


class ShardReport(NamedTuple):
    """`parts`: of the tree, in its order. `pattern`, `table_text`: texts of the shard's table (see shard_table);
    `pieces` stand for both where the tensors do not lie one behind the other. `tree`: where the other parts of the tree
    are."""

    page: Page
    record: manifest.FileRecord
    parts: Parts
    pattern: str
    table_text: str
    pieces: Optional[Tuple[Placed, ...]] = None
    tree: Optional[RankStateLocation] = None

    def placed_tensors(self) -> Tuple[Placed, ...]:
        """Every tensor and its place. Raises ValueError, TypeError."""
        if self.pieces is not None:
            return self.pieces
        pattern = shard_table.parse_pattern(self.pattern.encode())
        return shard_table.place_tensors(shard_table.parse_table(pattern, self.table_text.encode()))

    def parse_parts(self) -> Dict[str, Any]:
        """All parts, parsed. Raises CheckpointError."""
        return {key: _parse_tree_part(key, text) for key, text in self.parts}

    def parse_part(self, key: str) -> Any:
        """One part, parsed; None where there is none. Raises CheckpointError."""
        return next((_parse_tree_part(key, text) for name, text in self.parts if name == key), None)


def _parse_tree_part(key: str, text: str) -> Any:
    """A part of a rank's tree, which no JSON may be where another had his hands on a report."""
    try:
        return parse.parse_json(text, len(text))
    except ValueError as err:
        raise CheckpointError(f"{clean_one_line(key)} of a rank's tree is no JSON: {clean_one_line(err)}") from None


def to_shard_report(report: Report) -> ShardReport:
    """Of all that a rank has. Raises CheckpointError when its text is not what it captured."""
    require_report_matches_capture(report)
    pattern, table_text, pieces = table_texts_or_pieces(report.pieces)
    location = None
    if report.rank_state is not None:
        location = report.rank_state.location
    return ShardReport(report.page, report.record, parts_outside_shard(report), pattern, table_text, pieces, location)


def parts_outside_shard(report: Report) -> Parts:
    """What of a rank's tree is told: all but what lies in its shard."""
    if report.rank_state is not None:
        keys = report.rank_state.keys
    else:
        keys = ()
    return tuple((key, text) for key, text in split_json_object(report.extra) if key not in keys)


def require_report_matches_capture(report: Report) -> None:
    """Raise CheckpointError unless the report is about a sealed capture and its text is what was captured."""
    page = report.page
    if digest.small_object_digest(report.extra.encode()) != page.shard.extra_root or page.state != SlotState.SEALED:
        raise CheckpointError(f"rank {page.origin.rank}'s non-tensor state is not what it captured")


def table_texts_or_pieces(pieces: Tuple[Placed, ...]) -> Tuple[str, str, Optional[Tuple[Placed, ...]]]:
    """(pattern, own, None) of a shard's tensors, ("", "", pieces) where no table says where they lie."""
    table = shard_table.build_table(pieces)
    if table is None:
        return "", "", pieces
    return table.pattern.to_json_bytes().decode(), shard_table.encode_table_without_pattern(table).decode(), None


def split_json_object(text: str) -> Parts:
    """A tree's text, part by part. Raises ValueError when it is no JSON object."""
    decoder = json.JSONDecoder()
    parts: List[Tuple[str, str]] = []
    at = _skip_required_sign(text, 0, "{")
    while text[at : at + 1] != "}":
        if parts:
            at = _skip_required_sign(text, at, ",")
        key, at = decoder.raw_decode(text, at)
        begin = _skip_required_sign(text, at, ":")
        _, at = decoder.raw_decode(text, begin)
        parts.append((str(key), text[begin:at]))
        at = _skip_blanks(text, at)
    return tuple(parts)


def _skip_required_sign(text: str, at: int, sign: str) -> int:
    at = _skip_blanks(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(f"a tree has {text[at : at + 20]!r} where {sign} belongs")
    return _skip_blanks(text, at + 1)


def _skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\t", "\r"):
        at += 1
    return at
