"""Logs that others wrote into: a damaged one keeps what could be read, a name is no record, a bomb does not go off."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import resource
from pathlib import Path
from typing import Any, List, Tuple

import pytest

from hyperpod_kit.storage.audit import sources
from hyperpod_kit.storage.audit.ledger import AuditLedger
from hyperpod_kit.storage.audit.logs import changelog
from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord
from hyperpod_kit.system import hash_chain
from tests.hostile.fuzz.storage_parsers import TRAIL
from tests.support.rows import full

MEGABYTES = 300
LINE = (
    "{number} {kind} 17:52:{second:02}.1 2024.08.20 0x0 t=[0x2:0x{number}:0x0] u={uid}:{uid} p=[0x2:0x1:0x0] {name}\n"
)


def line(number: int, name: str, uid: int = 4001, kind: str = "01CREAT") -> str:
    return LINE.format(number=number, second=number % 60, kind=kind, uid=uid, name=name)


def read(kind: str, path: Path) -> Tuple[List[AuditRecord], List[AuditGap]]:
    entries = list(sources.read_entries_marking_damage(kind, path))
    records = [entry for entry in entries if isinstance(entry, AuditRecord)]
    return records, [entry for entry in entries if isinstance(entry, AuditGap)]


def forged(*numbers: int) -> str:
    """A name with lines in it that blame the victim."""
    return "x\n" + "".join(line(number, "bobs-file", uid=4002) for number in numbers).rstrip("\n")


@pytest.mark.parametrize("numbers", [(9,), (9, 10), (10,), (9, 10, 11, 12), (5000,), (8,), (3,)])
def test_a_name_is_never_a_record(numbers: Tuple[int, ...], tmp_path: Path) -> None:
    true = [line(number, f"file-{number}") for number in range(1, 60)]
    true[7] = line(8, forged(*numbers))
    true[8] = line(9, "evidence", kind="06UNLNK")
    log = tmp_path / "MDT0"
    log.write_text("".join(true))
    records, gaps = read("changelog", log)
    assert not [record for record in records if record.uid == 4002], "a deed of the victim's that never was"
    # Of two lines of one number neither is a record, and none is lost: what is no record is named in a gap.
    named = " ".join(gap.why for gap in gaps)
    kept = {record.id for record in records}
    assert kept >= {f"MDT0:{number}" for number in range(1, 60) if number not in (8, *numbers)}
    assert "bobs-file" in named
    for number in {9, *numbers} & set(range(1, 60)):
        assert f"MDT0:{number}" in kept or true[number - 1].split("\n")[0].split()[-1] in named


def test_two_records_of_one_number_in_two_files_are_a_gap_that_names_both(tmp_path: Path) -> None:
    ledger = AuditLedger(tmp_path / "audit.sqlite", create=True)
    first = ledger.add_entries(changelog.parse_entries_marking_sequence_gaps([line(1, "a"), line(2, "b")], "MDT0"))
    assert (first.records, first.gaps) == (2, 0)
    same = ledger.add_entries(changelog.parse_entries_marking_sequence_gaps([line(1, "a"), line(2, "b")], "MDT0"))
    assert (same.records, same.gaps, same.duplicates) == (0, 0, 2)
    for _ in range(2):
        other = ledger.add_entries(changelog.parse_entries_marking_sequence_gaps([line(2, "quite another")], "MDT0"))
        assert other.records == 0
    (gap,) = ledger.gaps_overlapping_or_undated(0.0, 4e9)
    assert "two different records" in gap.why and "/b" in gap.why and "quite another" in gap.why
    ledger.close()


def test_a_dump_that_follows_itself_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "MDT0"
    lines = [line(number, f"file-{number}") for number in range(1, 200)]
    log.write_text("".join(lines + lines[99:]))
    ledger = AuditLedger(tmp_path / "audit.sqlite", create=True)
    added = ledger.add_entries(sources.read_entries_marking_damage("changelog", log))
    assert (added.records, added.gaps) == (199, 0)
    ledger.close()


def node_log(path: Path, count: int) -> bytes:
    chain, made = hash_chain.START, b""
    for number in range(count):
        body = {"time": 1.7e9 + number, "host": "n1", "number": number, "op": "read", "path": f"/f{number}", "uid": 1}
        text, chain = hash_chain.encode_line(chain, body)
        made += text.encode() + b"\n"
    return made


@pytest.mark.parametrize(
    "odd",
    [
        {"time": "x"},
        {"time": None},
        {"time": 1e400},
        {"time": 10**400},
        {"uid": float("inf")},
        {"uid": "9" * 5000},
        {"pid": float("nan")},
        {"number": float("inf")},
        {"host": {"a": 1}},
        {"op": "gap", "time": []},
    ],
    ids=str,
)
def test_one_odd_line_is_a_gap_and_the_others_are_kept(odd: Any, tmp_path: Path) -> None:
    good = node_log(tmp_path, 4).splitlines(keepends=True)
    bad = json.dumps({**json.loads(good[1]), **odd}).encode() + b"\n"
    log = tmp_path / "log"
    log.write_bytes(b"".join([*good[:2], bad, *good[2:]]))
    ledger = AuditLedger(tmp_path / "audit.sqlite", create=True)
    added = ledger.add_entries(sources.read_entries_marking_damage("node", log))
    assert added.records >= 4 and added.gaps >= 1
    ledger.close()


def test_a_log_that_is_cut_keeps_what_came_before(tmp_path: Path) -> None:
    packed = gzip.compress(node_log(tmp_path, 5000))
    log = tmp_path / "log.gz"
    log.write_bytes(packed[: len(packed) // 2])
    records, gaps = read("node", log)
    assert len(records) > 1000 and "is damaged" in gaps[-1].why
    trail = json.dumps({"Records": [TRAIL] * 50}).encode()
    log.write_bytes(trail[: len(trail) // 2])
    records, gaps = read("cloudtrail", log)
    assert len(records) == 24 and "is truncated" in gaps[-1].why


def test_a_trail_of_many_pieces_is_read_whole(tmp_path: Path) -> None:
    trail = {**TRAIL, "requestParameters": {"bucketName": "corpus", "key": "größe-" * 300}}
    log = tmp_path / "trail.gz"
    log.write_bytes(gzip.compress(json.dumps({"Records": [trail] * 500}, ensure_ascii=False).encode()))
    records, gaps = read("cloudtrail", log)
    assert len(records) == 500 and not gaps
    assert {record.path for record in records} == {"s3://corpus/" + "größe-" * 300}


def _peak(kind: str, path: str, said: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    entries = sum(1 for _ in sources.read_entries_marking_damage(kind, Path(path)))
    said.put((entries, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024))


BOMBS = [
    *full(("node", b"x"), ("node", b"["), ("changelog", b"9")),
    ("s3-access-log", b'"'),
    *full(("cloudtrail", b"["), ("cloudtrail", b" ")),
]


@pytest.mark.parametrize(("kind", "piece"), BOMBS)
def test_a_bomb_takes_no_memory(kind: str, piece: bytes, tmp_path: Path) -> None:
    """400 MB of one line, or of nothing but lines, in half a megabyte."""
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", 1) as out:
        if kind == "cloudtrail":
            out.write(b'{"Records":[')
        block = piece * ((1 << 20) // len(piece))
        for _ in range(400):
            out.write(block)
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    child = context.Process(target=_peak, args=(kind, str(bomb), said))
    child.start()
    entries, megabytes = said.get(timeout=200)
    child.join(60)
    assert megabytes < MEGABYTES and entries < 10
