"""The process that looks at files: tasks come in on standard input, sums go out on standard output, one JSON a line.

It is run by its path (`python -I -S scan.py`) and imports nothing of ours, so that it starts in 20 ms and stays small:
a walk has several of it, because one interpreter spends as long on its own loop as the kernel does on a stat.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from typing import Any, Iterator, NamedTuple

RUN_FILE = "RUN.json"
"""A directory that has it is the root of a run's checkpoints (checkpoint/repository/layout.py)."""

CHUNK = 2000
"""Directories, or files with several names, that are told at once: what is kept in memory is bounded by that."""


class WalkDirectory(NamedTuple):
    """One to look at. `level`: how far below the root; `place`: the directory that it is counted for; `run`: the root
    of the run it belongs to, or nothing."""

    path: str
    level: int
    place: str
    run: str


class Sums:
    """(place, run, uid, gid) -> [inodes, bytes, bytes allocated]."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int, int], list[int]] = {}

    def add(self, one: WalkDirectory, uid: int, gid: int, count: int, size: int, blocks: int) -> None:
        row = self.rows.setdefault((one.place, one.run, uid, gid), [0, 0, 0])
        row[0] += count
        row[1] += size
        row[2] += blocks * 512


class TreeScan:
    """`depth`: levels that are counted for themselves; `marks`: path -> name of directories that are so at any level;
    `elsewhere`: mount points, which are not entered."""

    def __init__(self, depth: int, marks: dict[str, str], elsewhere: list[str]) -> None:
        self._depth = depth
        self._marks = marks
        self._elsewhere = frozenset(elsewhere)

    def task(self, first: list[WalkDirectory], limit: int) -> Iterator[dict[str, Any]]:
        """Look at `first` and what is below, until `limit` entries were seen: what is left then is told in `left`.

        Parts of an answer; the last one has `end`.
        """
        sums = Sums()
        stack, unread, seen = list(first), [], 0
        while stack and seen < limit:
            here = stack.pop()
            try:
                handle = os.open(here.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as err:
                unread.append((here.path, err.strerror or str(err)))
                self._unopened(here, sums)
                continue
            try:
                for part in self._one(handle, here, sums, stack):
                    if isinstance(part, int):
                        seen += part
                    else:
                        yield part
            except OSError as err:
                unread.append((here.path, err.strerror or str(err)))
            finally:
                os.close(handle)
        yield {
            "end": True,
            "left": stack,
            "unread": unread,
            "seen": seen,
            "sums": [(*key, *row) for key, row in sums.rows.items()],
        }

    def _one(
        self, handle: int, here: WalkDirectory, sums: Sums, stack: list[WalkDirectory]
    ) -> Iterator[int | dict[str, Any]]:
        own = os.fstat(handle)
        if _has(handle, RUN_FILE):
            here = here._replace(run=here.path)
        sums.add(here, own.st_uid, own.st_gid, 1, own.st_size, own.st_blocks)
        links: list[tuple[int, int, str, str, int, int, int, int]] = []
        base = len(stack)
        # Most files of a directory have one owner: his sums are kept at hand.
        uid, gid, files, size, blocks = -1, -1, 0, 0, 0
        with os.scandir(handle) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found = self._below(here, entry.name)
                    if found is None:
                        yield {"elsewhere": f"{here.path.rstrip('/')}/{entry.name}"}
                        continue
                    stack.append(found)
                    if len(stack) - base >= CHUNK:
                        yield {"left": stack[base:]}
                        del stack[base:]
                    continue
                try:
                    file = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if file[3] > 1:
                    key = (own.st_dev, file[1], here.place, here.run)
                    links.append((*key, file[4], file[5], file[6], file.st_blocks * 512))
                    if len(links) >= CHUNK:
                        yield {"links": links}
                        links = []
                    continue
                if file[4] != uid or file[5] != gid:
                    yield self._counted(here, sums, uid, gid, files, size, blocks)
                    uid, gid, files, size, blocks = file[4], file[5], 0, 0, 0
                files += 1
                size += file[6]
                blocks += file.st_blocks
        yield self._counted(here, sums, uid, gid, files, size, blocks)
        if links:
            yield {"links": links}
        yield 1

    @staticmethod
    def _counted(here: WalkDirectory, sums: Sums, uid: int, gid: int, files: int, size: int, blocks: int) -> int:
        if files:
            sums.add(here, uid, gid, files, size, blocks)
        return files

    def _below(self, here: WalkDirectory, name: str) -> WalkDirectory | None:
        """A directory in `here`; None when another file system is mounted on it."""
        path = f"{here.path.rstrip('/')}/{name}"
        if path in self._elsewhere:
            return None
        if path in self._marks:
            return WalkDirectory(path, self._depth + 1, self._marks[path], here.run)
        level = here.level + 1
        return WalkDirectory(path, level, path if level <= self._depth else here.place, here.run)

    def _unopened(self, here: WalkDirectory, sums: Sums) -> None:
        """What cannot be read still takes an inode."""
        try:
            own = os.lstat(here.path)
        except OSError:
            return
        if stat.S_ISDIR(own.st_mode):
            sums.add(here, own.st_uid, own.st_gid, 1, own.st_size, own.st_blocks)


def _has(handle: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except OSError:
        return False


def main() -> None:
    """First line: what TreeScan takes. Then {"id", "directories", "limit"} each, answered by parts with the same id."""
    # Who asked may have been killed: then nobody is told, least of all the terminal.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    lines, answers = iter(sys.stdin), os.fdopen(1, "w")
    scan = TreeScan(**json.loads(next(lines)))
    for line in lines:
        task = json.loads(line)
        for part in scan.task([WalkDirectory(*one) for one in task["directories"]], task["limit"]):
            answers.write(json.dumps({"id": task["id"], **part}) + "\n")
            if "end" in part:
                answers.flush()


if __name__ == "__main__":
    main()
