"""What a walk knows so far, in one SQLite file: it goes on from there after whatever ended it.

A task is some directories that nobody has looked at. What came of it is written in one transaction, at its end; what it
tells before (more directories, files with several names) belongs to it and counts only then.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

from hyperpod_kit.storage import private_database
from hyperpod_kit.storage.usage.scan import WalkDirectory

FORMAT = "hpk-usage/2"
AGELESS = "hpk-usage/1"
"""Of builds that did not count ages: a walk that was begun with it begins anew."""
MAX_BYTES = (1 << 63) - 1
"""The largest number that SQLite has. One file may have that size and no byte on disk: a sum stays at it."""
MAX_NAMED = 1000
"""Directories that could not be read, or are mounts, that are kept by name."""

_TABLES = """
create table about (name text primary key, value text) without rowid;
create table todo (
  id integer primary key, path blob, level integer, place blob, run blob, of_task integer, taken integer default 0
);
create index todo_of on todo (of_task, taken);
create table sums (
  kind text, place blob, run blob, uid integer, gid integer, count integer, size integer, allocated integer,
  primary key (kind, place, run, uid, gid)
) without rowid;
create table links (
  device integer, inode integer, place blob, run blob, uid integer, gid integer, size integer, allocated integer,
  of_task integer, primary key (device, inode)
) without rowid;
create table ages (
  what text, age integer, count integer, allocated integer, primary key (what, age)
) without rowid;
create table unread (path blob, why text);
create table elsewhere (path blob);
"""


class UsageRow(NamedTuple):
    """One sum. `kind`: nothing for files, else what S3 keeps beside its objects; `entries`: inodes or objects; `size`:
    as `ls` says; `allocated`: as `du` says; uid and gid are -1 where there are none."""

    kind: str
    counted_path: str
    run: str
    uid: int
    gid: int
    entries: int
    size: int
    allocated: int


class UsageLedger:
    """`about` must be the same for a walk to go on: what it is of, and how it is counted; and it was not begun before
    `earliest`, in Unix seconds. Raises sqlite3.Error."""

    def __init__(
        self, path: Path, about: dict[str, Any], *, fresh: bool = False, earliest: float = 0.0, now: float = 0.0
    ) -> None:
        self._db = private_database.open_private_database(path, timeout=0.2)
        # Of two walks with one file the second is told so, at once.
        self._db.execute("pragma locking_mode = exclusive")
        # A power cut may cost a walk its last second, never its sense.
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = normal")
        self._db.execute("pragma cache_size = -4000")
        self._db.execute("begin immediate")
        expected = json.dumps({"format": FORMAT, **about}, sort_keys=True)
        self.started_at = float(self._read_metadata("begun") or now)
        self.resumed = self._read_metadata("about") == expected and not fresh and self.started_at >= earliest
        if not self.resumed:
            self.started_at = now
            self._recreate_tables(expected)
        # Tasks that somebody had when he was killed are done from their beginning.
        self._db.execute("delete from todo where of_task is not null")
        self._db.execute("delete from links where of_task is not null")
        self._db.execute("update todo set taken = 0 where taken <> 0")

    def _recreate_tables(self, about: str) -> None:
        for (name,) in self._db.execute("select name from sqlite_master where type = 'table'").fetchall():
            self._db.execute(f'drop table "{name}"')
        for statement in _TABLES.split(";"):
            self._db.execute(statement)
        self.store_note("about", about)
        self.store_note("begun", str(self.started_at))

    def _read_metadata(self, name: str) -> str | None:
        if not self._db.execute("select 1 from sqlite_master where name = 'about'").fetchone():
            return None
        row = self._db.execute("select value from about where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def store_note(self, name: str, value: str) -> None:
        """Store a value with the next commit."""
        self._db.execute("insert or replace into about values (?, ?)", (name, value))

    def read_note(self, name: str) -> str | None:
        """Read what `store_note` stored."""
        return self._read_metadata(name)

    def commit(self) -> None:
        """Commit: a killed walk goes on from here."""
        self._db.execute("commit")
        self._db.execute("begin")

    def close(self) -> None:
        """Close the file; the sums so far stay in it."""
        self._db.execute("commit")
        self._db.close()

    def add_task(self, directory: WalkDirectory) -> None:
        """Add a task that belongs to no other."""
        self._insert_tasks([directory], None)

    def _insert_tasks(self, directories: Sequence[WalkDirectory], of_task: int | None) -> None:
        rows = [
            (
                _path_to_bytes(directory.path),
                directory.level,
                _path_to_bytes(directory.counted_path),
                _path_to_bytes(directory.run),
                of_task,
            )
            for directory in directories
        ]
        self._db.executemany("insert into todo (path, level, place, run, of_task) values (?, ?, ?, ?, ?)", rows)

    def claim_task(self, max_directories: int, processes: int) -> tuple[int, list[WalkDirectory]] | None:
        """Claim a task: directories that no process has, the newest first, so that few wait.
        There are `max_directories` of them, or so many that `processes` processes get as many.
        None when there is none."""
        query = (
            "select id, path, level, place, run from todo where of_task is null and taken = 0 order by id desc limit ?"
        )
        rows = self._db.execute(query, (max_directories * processes,)).fetchall()
        if not rows:
            return None
        task_rows = rows[: -(-len(rows) // processes)]
        number = int(task_rows[0][0])
        self._db.executemany("update todo set taken = ? where id = ?", [(number, row[0]) for row in task_rows])
        return number, [
            WalkDirectory(_path_from_bytes(path), level, _path_from_bytes(counted_path), _path_from_bytes(run))
            for _, path, level, counted_path, run in task_rows
        ]

    def requeue_task_and_discard_parts(self, number: int) -> None:
        """Put back the task of a process that is dead, and delete what it reported of it."""
        self._db.execute("delete from todo where of_task = ?", (number,))
        self._db.execute("delete from links where of_task = ?", (number,))
        self._db.execute("update todo set taken = 0 where of_task is null and taken = ?", (number,))

    def record_task_part(self, number: int, part: dict[str, Any]) -> None:
        """Record a part of what a task reports, see TreeScan; the part with `end` makes all of it count."""
        if part.get("left"):
            self._insert_tasks([WalkDirectory(*fields) for fields in part["left"]], number)
        for device, inode, counted_path, run, *amounts in part.get("links", ()):
            uid, gid, size, allocated = amounts
            row = (
                _to_signed_64_bit(device),
                _to_signed_64_bit(inode),
                _path_to_bytes(counted_path),
                _path_to_bytes(run),
                uid,
                gid,
                _clamp_to_sqlite_max(size),
                _clamp_to_sqlite_max(allocated),
            )
            self._db.execute("insert or ignore into links values (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, number))
        if "elsewhere" in part:
            self._db.execute("insert into elsewhere values (?)", (_path_to_bytes(part["elsewhere"]),))
        if "end" in part:
            self.add_sums("", part["sums"])
            self.add_ages(part["ages"])
            for path, reason in part["unread"]:
                self._db.execute("insert into unread values (?, ?)", (_path_to_bytes(path), reason))
            self._db.execute("update links set of_task = null where of_task = ?", (number,))
            self._db.execute("delete from todo where of_task is null and taken = ?", (number,))
            self._db.execute("update todo set of_task = null where of_task = ?", (number,))

    def add_sums(self, kind: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add sums: (place, run, uid, gid, count, size, allocated) each."""
        self._db.executemany(
            "insert into sums values (?, ?, ?, ?, ?, ?, ?, ?) on conflict do update set count = count + excluded.count,"
            f" size = {_saturating_add_sql('size')}, allocated = {_saturating_add_sql('allocated')}",
            [
                (
                    kind,
                    _path_to_bytes(counted_path),
                    _path_to_bytes(run),
                    uid,
                    gid,
                    entries,
                    _clamp_to_sqlite_max(size),
                    _clamp_to_sqlite_max(allocated),
                )
                for counted_path, run, uid, gid, entries, size, allocated in rows
            ],
        )

    def add_ages(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add ages: (written or read, class of age, count, allocated) each; see scan.Ages."""
        self._db.executemany(
            "insert into ages values (?, ?, ?, ?) on conflict do update set count = count + excluded.count,"
            f" allocated = {_saturating_add_sql('allocated')}",
            [(what, age, entries, _clamp_to_sqlite_max(allocated)) for what, age, entries, allocated in rows],
        )

    def iterate_age_classes(self) -> Iterator[tuple[str, int, int, int]]:
        """Read the ages, the oldest class first."""
        yield from self._db.execute("select what, age, count, allocated from ages order by what, age")

    def iterate_sums(self) -> Iterator[UsageRow]:
        """Yield all sums; files with several names are counted where they were met first, as `du` does."""
        query = (
            f"select kind, place, run, uid, gid, sum(count), {_overflow_safe_sum_sql('size')}, "
            f"{_overflow_safe_sum_sql('allocated')} from ("
            " select * from sums union all"
            " select '', place, run, uid, gid, 1, size, allocated from links"
            ") group by 1, 2, 3, 4, 5"
        )
        for kind, counted_path, run, uid, gid, entries, *parts in self._db.execute(query):
            size, allocated = parts[0] * _PART + parts[1], parts[2] * _PART + parts[3]
            yield UsageRow(
                kind, _path_from_bytes(counted_path), _path_from_bytes(run), uid, gid, entries, size, allocated
            )

    def count_entries(self) -> int:
        """Count the inodes or objects so far."""
        (files,) = self._db.execute("select coalesce(sum(count), 0) from sums").fetchone()
        (links,) = self._db.execute("select count(*) from links").fetchone()
        return int(files) + int(links)

    def unread_directories(self) -> list[tuple[str, str]]:
        """List (path, why) of directories that could not be read, MAX_NAMED at most."""
        cursor = self._db.execute("select path, why from unread order by path limit ?", (MAX_NAMED,))
        return [(_path_from_bytes(path), reason) for path, reason in cursor]

    def unread_count(self) -> int:
        return int(self._db.execute("select count(*) from unread").fetchone()[0])

    def skipped_mount_points(self) -> list[str]:
        """List the mount points that were not entered."""
        query = "select distinct path from elsewhere order by path limit ?"
        return [_path_from_bytes(path) for (path,) in self._db.execute(query, (MAX_NAMED,))]


_PART = 1 << 30
"""SQLite refuses a sum beyond its largest number: upper and lower parts of numbers are summed apart."""


def _overflow_safe_sum_sql(column: str) -> str:
    return f"sum({column} / {_PART}), sum({column} % {_PART})"


def _saturating_add_sql(column: str) -> str:
    return f"min({column}, {MAX_BYTES} - excluded.{column}) + excluded.{column}"


def _clamp_to_sqlite_max(number: int) -> int:
    return min(number, MAX_BYTES)


def _path_to_bytes(path: str) -> bytes:
    return os.fsencode(path)


def _path_from_bytes(path: bytes) -> str:
    return os.fsdecode(path)


def _to_signed_64_bit(number: int) -> int:
    """Convert to SQLite's integers, which are signed, while some file systems use all 64 bits of an inode's number."""
    if number >= 2**63:
        return number - 2**64
    return number
