"""One ledger: nothing twice, no row changed unseen, questions joined with accounting, gaps said."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import UsageError
from hyperpod_kit.storage.audit.accounting import SlurmJob
from hyperpod_kit.storage.audit.ledger import AuditLedger
from hyperpod_kit.storage.audit.query import AuditQuery, run_query
from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord
from tests.unit.storage.audit.test_importers import chained

ONE = AuditRecord(150.0, "node", "a", "write", "/fsx/a", host="n1", uid=2001, pid=7)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[AuditLedger]:
    made = AuditLedger(tmp_path / "audit.sqlite", create=True)
    yield made
    made.close()


def many(count: int) -> List[AuditRecord]:
    return [replace(ONE, id=str(n), time=100.0 + n, path=f"/fsx/d{n % 3}/f{n}") for n in range(count)]


def test_the_same_import_twice_adds_nothing(ledger: AuditLedger) -> None:
    gap = AuditGap(1.0, 2.0, "node", "g", "lost")
    assert ledger.add_entries([*many(5), gap]) == (5, 1, 0)
    assert ledger.add_entries([*many(6), gap]) == (1, 0, 6)
    assert ledger.verify_chain()[:2] == (6, None)


@pytest.mark.parametrize(
    "harm",
    [
        "update records set user = 'bob' where seq = 4",
        "update records set uid = '2001' where seq = 4",
        "delete from records where seq = 4",
        "update records set chain = 'x' where seq = 4",
    ],
)
def test_a_row_that_was_changed_is_found(ledger: AuditLedger, tmp_path: Path, harm: str) -> None:
    ledger.add_entries(many(9))
    with sqlite3.connect(tmp_path / "audit.sqlite") as base:
        base.execute(harm)
    base.close()
    broken = ledger.verify_chain().broken
    assert broken == (5 if harm.startswith("delete") else 4)


def test_what_retention_took_does_not_break_the_rest(ledger: AuditLedger) -> None:
    ledger.add_entries(many(10))
    last = ledger.verify_chain().last
    assert ledger.delete_older_records_gaps_and_jobs(104.0, dry_run=True) == 4 and ledger.verify_chain().rows == 10
    assert ledger.delete_older_records_gaps_and_jobs(104.0) == 4
    assert ledger.verify_chain() == (6, None, last, 4)
    ledger.add_entries([replace(ONE, id="new")])
    assert ledger.delete_older_records_gaps_and_jobs(1e6) == 7 and ledger.verify_chain().rows == 0
    ledger.add_entries([replace(ONE, id="newer")])
    assert ledger.verify_chain()[:2] == (1, None) and ledger.verify_chain().removed == 11


def test_a_killed_import_leaves_nothing_of_its_file(ledger: AuditLedger) -> None:
    def dies() -> Iterator[AuditRecord]:
        yield from many(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.add_entries(dies())
    assert ledger.verify_chain().rows == 0 and ledger.add_entries(many(3)).records == 3


def test_whose_job_it_was(ledger: AuditLedger) -> None:
    ledger.add_entries(
        [ONE, replace(ONE, id="b", time=250.0), replace(ONE, id="c", host="n2"), replace(ONE, id="d", uid=-1)]
    )
    ledger.add_or_replace_jobs(
        [SlurmJob("41", 2001, "alice", "n1", 100, 200), SlurmJob("42", 2001, "alice", "n1", 190, 300)]
    )
    by_job = run_query(ledger, AuditQuery(job="41")).rows
    assert [(row["id"], row["by"], row["user"]) for row in by_job] == [("a", "accounting", "alice")]
    assert [row["id"] for row in run_query(ledger, AuditQuery(user="alice")).rows] == ["a", "b"]
    ledger.add_or_replace_jobs([SlurmJob("43", 2001, "alice", "n1", 100, 400)])
    (first, *_) = run_query(ledger, AuditQuery(path="/fsx/a", limit=1)).rows
    assert first["job"] == "" and first["note"] == "one of 2 jobs of that user on that host"


def test_paths_are_whole_words(ledger: AuditLedger) -> None:
    paths = ["/fsx/a", "/fsx/ab", "/fsx/a/b", "/fsx/a%", "/fsx/a_b/c", "/fsx/A"]
    ledger.add_entries(replace(ONE, id=path, path=path) for path in paths)
    ledger.add_entries([replace(ONE, id="moved", path="/x", new_path="/fsx/a/new", op="rename")])
    assert {row["id"] for row in run_query(ledger, AuditQuery(path="/fsx/a/")).rows} == {"/fsx/a", "/fsx/a/b", "moved"}
    assert len(run_query(ledger, AuditQuery(path="/")).rows) == 7
    assert len(run_query(ledger, AuditQuery(limit=3)).rows) == 3 and run_query(ledger, AuditQuery(limit=3)).more


def test_hostile_values_are_kept_or_become_gaps(ledger: AuditLedger) -> None:
    hostile: Any = [
        replace(ONE, id="nan", time=float("nan")),
        replace(ONE, id="huge", uid=10**30),
        replace(ONE, id="half", path="/fsx/\udc80"),
        replace(ONE, id="'; drop table records; --", path="'\";\n"),
        AuditGap(float("inf"), 0.0, "node", "g", "\udfff"),
    ]
    assert ledger.add_entries(hostile) == (2, 3, 0) and ledger.verify_chain().broken is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        run_command_line(["storage", "audit", "query"]) == 3 and "there is no audit.sqlite" in capsys.readouterr().err
    )
    lines = chained({"op": "write", "path": "/fsx/a", "uid": 2001, "pid": 3}, {"op": "gap", "why": "queue full"})
    (tmp_path / "n1.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "sacct").write_text("41|2001|alice|n1|0|200\n")
    assert run_command_line(["storage", "audit", "import", "node", "n1.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "format": "hpk-storage-audit-import/1",
        "files": 1,
        "records": 1,
        "gaps": 1,
        "again": 0,
    }
    assert run_command_line(["storage", "audit", "jobs", "--from", "sacct"]) == 0
    capsys.readouterr()
    assert run_command_line(["storage", "audit", "query", "--user", "alice"]) == 0
    shown = capsys.readouterr()
    assert "41 (accounting)" in shown.out and "gap: n1: queue full" in shown.err
    assert run_command_line(["storage", "audit", "verify"]) == 0
    assert run_command_line(["storage", "audit", "retain", "--older-than", "1d"]) == 0
    (tmp_path / "other").write_text("no ledger")
    assert run_command_line(["storage", "audit", "verify", "--ledger", "other"]) == 2


def test_another_programs_file_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "theirs") as base:
        base.execute("create table about (name text, value text)")
    base.close()
    with pytest.raises(UsageError, match="not a ledger of audits"):
        AuditLedger(tmp_path / "theirs")
