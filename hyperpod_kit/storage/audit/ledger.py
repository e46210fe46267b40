"""All records in one SQLite file, in a chain: no row is changed or taken out unseen, and what a log could not say is a
row too.

Whoever may write the file can write a new chain: `verify` prints the last digest, and a copy of it that lies elsewhere
proves the rest. Rows that retention takes leave their last digest behind.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional

from hyperpod_kit.errors import Absent, UsageError
from hyperpod_kit.storage import private_database
from hyperpod_kit.storage.audit.accounting import SlurmJob
from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, Entry, to_storable_record_or_gap
from hyperpod_kit.system import hash_chain
from hyperpod_kit.untrusted.text import clean_one_line

FORMAT = "hpk-audit/1"
_FIELDS = tuple(AuditRecord.__dataclass_fields__)
_TABLES = f"""
create table about (name text primary key, value text) without rowid;
create table records (seq integer primary key autoincrement, {", ".join(_FIELDS)}, chain text, unique (source, id));
create index by_path on records (path);
create index by_time on records (time);
create table gaps (since real, until real, source text, id text, why text, host text, primary key (source, id));
create table jobs (
  job text, uid integer, user text, host text, start real, "end" real, primary key (job, host)
) without rowid;
create index jobs_of on jobs (uid, host);
"""


class ImportCounts(NamedTuple):
    """Counts of an import; `duplicates`: entries that were there already."""

    records: int
    gaps: int
    duplicates: int


class ChainVerdict(NamedTuple):
    """Whether the chain holds.

    `broken`: seq of the first row that does not follow, None for none; `last`: digest of the last row.
    """

    rows: int
    broken: Optional[int]
    last: str
    removed: int


class AuditLedger:
    """The audit's records in one file.

    `create`: make it where there is none. Raises UsageError for a file that is not ours, sqlite3.Error.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.exists():
            raise Absent(f"there is no {path}", hint="hyperpod-kit storage audit import … creates it")
        self._database = private_database.open_private_database(path, timeout=60.0)
        try:
            with self._transaction():
                tables = [
                    row[0] for row in self._database.execute("select name from sqlite_master where type = 'table'")
                ]
                if not tables:
                    for statement in _TABLES.split(";\n"):
                        self._database.execute(statement)
                    self._database.execute("insert into about values ('format', ?)", (FORMAT,))
                elif "about" not in tables or self._read_metadata("format") != FORMAT:
                    raise UsageError(f"{path} is not a ledger of audits ({FORMAT})")
        except sqlite3.DatabaseError as err:
            raise UsageError(f"{path}: {err}: not a ledger of audits ({FORMAT})") from err

    def close(self) -> None:
        self._database.close()

    def add_entries(self, entries: Iterable[Entry]) -> ImportCounts:
        """Add all entries or none. What is there already (source and id) is passed over."""
        records = gaps = again = 0
        with self._transaction():
            chain = self._last_digest()
            for entry in map(to_storable_record_or_gap, entries):
                if isinstance(entry, AuditGap):
                    cursor = self._database.execute(
                        "insert or ignore into gaps values (?, ?, ?, ?, ?, ?)", _gap_row(entry)
                    )
                    gaps, again = gaps + cursor.rowcount, again + 1 - cursor.rowcount
                    continue
                body = entry.to_dict()
                stored = self._database.execute(
                    f"select {', '.join(_FIELDS)} from records where source = ? and id = ?", (entry.source, entry.id)
                ).fetchone()
                if stored is not None and stored == tuple(body.values()):
                    again += 1
                    continue
                if stored is not None:
                    conflict = _gap_row(_conflict_gap(entry, dict(zip(_FIELDS, stored))))
                    cursor = self._database.execute("insert or ignore into gaps values (?, ?, ?, ?, ?, ?)", conflict)
                    gaps, again = gaps + cursor.rowcount, again + 1 - cursor.rowcount
                    continue
                chain = hash_chain.chain_digest(chain, body)
                placeholders = ", ".join("?" * (len(_FIELDS) + 1))
                self._database.execute(
                    f"insert into records ({', '.join(_FIELDS)}, chain) values ({placeholders})",
                    (*body.values(), chain),
                )
                records += 1
        return ImportCounts(records, gaps, again)

    def add_or_replace_jobs(self, jobs: Iterable[SlurmJob]) -> int:
        """Add jobs and return how many; a job that has ended since replaces itself."""
        with self._transaction():
            rows = [(job.job, job.uid, job.user, job.host, job.start, job.end) for job in jobs]
            self._database.executemany("insert or replace into jobs values (?, ?, ?, ?, ?, ?)", rows)
        return len(rows)

    def select_records(self, where: str, values: Iterable[Any], limit: int) -> Iterator[dict[str, Any]]:
        """Yield records in the order of their time. `where`: SQL of ours, never of a user."""
        cursor = self._database.execute(
            f"select seq, {', '.join(_FIELDS)} from records where {where} order by time, seq limit ?", (*values, limit)
        )
        for row in cursor:
            yield dict(zip(("seq", *_FIELDS), row))

    def gaps_overlapping_or_undated(self, since: float, until: float) -> list[AuditGap]:
        """Return the gaps that overlap the time."""
        cursor = self._database.execute(
            "select * from gaps where until >= ? and since <= ? or until = 0 order by since", (since, until)
        )
        return [AuditGap(*row) for row in cursor]

    def job_ids_and_user_names_at(self, uid: int, host: str, when: float) -> list[tuple[str, str]]:
        """Find (job, user) that this user had on this node then."""
        cursor = self._database.execute(
            'select job, user from jobs where uid = ? and host = ? and start <= ? and "end" >= ?',
            (uid, host, when, when),
        )
        return [(str(job), str(user)) for job, user in cursor]

    def verify_chain(self) -> ChainVerdict:
        """Verify every row against the one before it."""
        chain, count, previous_seq = self._read_metadata("kept from chain") or hash_chain.START, 0, None
        for row in self._database.execute(f"select seq, chain, {', '.join(_FIELDS)} from records order by seq"):
            # Numbers have no holes but those that retention made before the first row.
            follows = hash_chain.chain_digest(chain, dict(zip(_FIELDS, row[2:]))) == row[1]
            if not follows or (previous_seq is not None and row[0] != previous_seq + 1):
                return ChainVerdict(count, int(row[0]), chain, self._count_of_records_ever_removed())
            previous_seq, chain, count = row[0], row[1], count + 1
        return ChainVerdict(count, None, chain, self._count_of_records_ever_removed())

    def delete_older_records_gaps_and_jobs(self, earliest: float, *, dry_run: bool = False) -> int:
        """Remove the oldest rows, up to the first that is not older than `earliest`, and gaps and jobs; returns how
        many."""
        with self._transaction():
            bound = self._database.execute("select min(seq) from records where time >= ?", (earliest,)).fetchone()[0]
            if bound is None:
                bound = (self._database.execute("select max(seq) from records").fetchone()[0] or 0) + 1
            count = int(self._database.execute("select count(*) from records where seq < ?", (bound,)).fetchone()[0])
            if dry_run or not count:
                return count
            chain = self._database.execute(
                "select chain from records where seq < ? order by seq desc limit 1", (bound,)
            ).fetchone()[0]
            self._database.execute("delete from records where seq < ?", (bound,))
            self._database.execute("delete from gaps where until < ? and until > 0", (earliest,))
            self._database.execute('delete from jobs where "end" < ?', (earliest,))
            for name, value in (
                ("kept from chain", chain),
                ("removed", str(self._count_of_records_ever_removed() + count)),
            ):
                self._database.execute("insert or replace into about values (?, ?)", (name, value))
        return count

    def _last_digest(self) -> str:
        row = self._database.execute("select chain from records order by seq desc limit 1").fetchone()
        if row:
            return str(row[0])
        return self._read_metadata("kept from chain") or hash_chain.START

    def _count_of_records_ever_removed(self) -> int:
        return int(self._read_metadata("removed") or 0)

    def _read_metadata(self, name: str) -> Optional[str]:
        row = self._database.execute("select value from about where name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._database.execute("rollback")
            raise
        self._database.execute("commit")


def _conflict_gap(later: AuditRecord, stored: Mapping[str, Any]) -> AuditGap:
    """Make the gap for two different records of one number: nobody knows which is true, so the gap names both."""
    body = later.to_dict()
    differing = [name for name in _FIELDS if body[name] != stored[name]]
    first, second = ({name: value[name] for name in differing} for value in (stored, body))
    reason = (
        f"{later.id}: two different records: {clean_one_line(json.dumps(first))} | {clean_one_line(json.dumps(second))}"
    )
    digest = hashlib.blake2b(json.dumps(body).encode(), digest_size=8).hexdigest()
    since, until = sorted((float(stored["time"]), later.time))
    return AuditGap(since, until, later.source, f"{later.id}:{digest}", reason, later.host)


def _gap_row(gap: AuditGap) -> tuple[Any, ...]:
    return gap.since, gap.until, gap.source, gap.id, gap.why, gap.host
