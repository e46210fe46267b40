"""The process that looks at files: tasks come in on standard input, sums go out on standard output, one JSON a line.

It is run by its path (`python -I -S scan.py`) and imports nothing of ours, so that it starts in 20 ms and stays small:
a walk has several of it, because one interpreter spends as long on its own loop as the kernel does on a stat.

As root it lists each directory with the rights of the directory's owner, and enters no file system that is mounted
below the root: a user may serve one (FUSE) that answers nothing.
"""

from __future__ import annotations

import functools
import grp
import json
import math
import mmap
import os
import pwd
import signal
import stat
import sys
from bisect import bisect
from typing import Any, Iterator, NamedTuple

RUN_FILE = "RUN.json"
"""A directory that has it is the root of a run's checkpoints (checkpoint/repository/format/layout.py)."""

CHUNK = 2000
"""Directories, or files with several names, that are told at once: what is kept in memory is bounded by that."""


AGES = (365, 90, 30, 7, 1)
"""Days that the classes of age are bounded by, the oldest first: there is one class more."""


class WalkDirectory(NamedTuple):
    """A directory to scan.

    `level`: how far below the root; `counted_path`: the directory that it is counted for; `run`: the root of the run
    it belongs to, or nothing.
    """

    path: str
    level: int
    counted_path: str
    run: str


class Sums:
    """(place, run, uid, gid) -> [inodes, bytes, bytes allocated]."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int, int], list[int]] = {}

    def add(self, directory: WalkDirectory, uid: int, gid: int, count: int, size: int, blocks: int) -> None:
        row = self.rows.setdefault((directory.counted_path, directory.run, uid, gid), [0, 0, 0])
        row[0] += count
        row[1] += size
        row[2] += blocks * 512


class Ages:
    """Files by when they were last written and last read: [files, blocks] for each class, the oldest first. A file with
    several names is not among them."""

    def __init__(self, now: float) -> None:
        self.bounds = [now - days * 86400 for days in AGES]
        self.written = [[0, 0] for _ in range(len(AGES) + 1)]
        self.read = [[0, 0] for _ in range(len(AGES) + 1)]

    def age_class_and_bounds(self, when: float) -> tuple[int, float, float]:
        """Return (class, lower bound, upper bound) of a time."""
        age = bisect(self.bounds, when)
        edges = (-math.inf, *self.bounds, math.inf)
        return age, edges[age], edges[age + 1]

    def add(self, written_class: int, read_class: int, files: int, blocks: int) -> None:
        """Count so many files, last written and read in these classes."""
        for row in (self.written[written_class], self.read[read_class]):
            row[0] += files
            row[1] += blocks

    def nonempty_rows(self) -> list[tuple[str, int, int, int]]:
        """Return (what, class, files, bytes allocated)."""
        rows = []
        for what, classes in (("written", self.written), ("read", self.read)):
            for age, (files, blocks) in enumerate(classes):
                if files:
                    rows.append((what, age, files, blocks * 512))
        return rows


PAGE = 1 << 14
"""Bytes in which it says where it is."""
UNANSWERED = "it does not answer; its owner may have mounted something there"
_NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class CurrentPath:
    """Memory shared with the parent: if this process hangs in the kernel, it can be read there at which directory."""

    def __init__(self, handle: int) -> None:
        self._page = mmap.mmap(handle, PAGE)

    def write(self, path: str) -> None:
        raw = os.fsencode(path)[: PAGE - 8]
        self._page[: 8 + len(raw)] = len(raw).to_bytes(8, "little") + raw

    def read(self) -> str:
        length = int.from_bytes(self._page[:8], "little")
        return os.fsdecode(self._page[8 : 8 + length])

    def close(self) -> None:
        self._page.close()


class TreeScan:
    """Scans the tree of a walk.

    `root`: of the walk; `depth`: levels that are counted for themselves; `marks`: path -> name of directories that are
    so at any level; `elsewhere`: mount points, which are not entered; `unanswered`: directories at which another
    process hung; `careful`: ask nothing of an entry before it is clear that nothing is mounted there; `now`: what ages
    are counted from.
    """

    def __init__(
        self,
        root: str,
        depth: int,
        marks: dict[str, str],
        elsewhere: list[str],
        unanswered: list[str],
        careful: bool,
        where: CurrentPath | None = None,
        now: float = 0.0,
    ) -> None:
        self._now = now
        self._ages = Ages(now)
        self._depth = depth
        self._marks = marks
        self._elsewhere = frozenset(elsewhere)
        self._folders = frozenset(os.path.dirname(path) for path in elsewhere)
        self._unanswered = frozenset(unanswered)
        self._careful = careful
        self._where = where
        self._root = root
        handle = os.open(root, os.O_PATH | os.O_CLOEXEC)
        self._mount = _read_mount_id(handle)
        os.close(handle)

    def scan_until_limit(self, directories: list[WalkDirectory], max_entries: int) -> Iterator[dict[str, Any]]:
        """Scan `directories` and what is below, until `max_entries` were counted; what is left then is in `left`.
        Yields parts of the report; the last one has `end`."""
        sums = Sums()
        self._ages = Ages(self._now)
        stack, unread, seen_entries = list(directories), [], 0
        while stack and seen_entries < max_entries:
            directory = stack.pop()
            if directory.path in self._unanswered:
                unread.append((directory.path, UNANSWERED))
                continue
            if self._where is not None:
                self._where.write(directory.path)
            try:
                handle = self._become_owner_and_open_directory(directory.path)
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as err:
                unread.append((directory.path, err.strerror or str(err)))
                self._count_unopened(directory, sums)
                continue
            if handle is None:
                yield {"elsewhere": directory.path}
                continue
            try:
                for part in self._count_entries(handle, directory, sums, stack):
                    if isinstance(part, int):
                        seen_entries += part
                    else:
                        yield part
            except OSError as err:
                unread.append((directory.path, err.strerror or str(err)))
            finally:
                os.close(handle)
        yield {
            "end": True,
            "left": stack,
            "unread": unread,
            "seen": seen_entries,
            "sums": [(*key, *row) for key, row in sums.rows.items()],
            "ages": self._ages.nonempty_rows(),
        }

    def _become_owner_and_open_directory(self, path: str) -> int | None:
        """Open a descriptor to list it by, with its owner's rights for this process; None where another file system
        is."""
        _set_effective_user(0)
        named = self._open_path_fd(path)
        if named is None:
            return None
        try:
            if _read_mount_id(named) != self._mount:
                return None
            status = os.fstat(named)
            if status.st_mode & 0o500 == 0o500:
                _set_effective_user(status.st_uid)
            return os.open(".", _LIST, dir_fd=named)
        finally:
            os.close(named)

    def _open_path_fd(self, path: str) -> int | None:
        """Open an O_PATH descriptor of a directory; None where a careful walk meets another file system."""
        if self._careful:
            return self._open_path_fd_unless_mount_on_way(path)
        return _open_path_fd_as_parent_owner_if_denied(path)

    def _open_path_fd_unless_mount_on_way(self, path: str) -> int | None:
        """Open the same place step by step, with nothing asked of a file system that is mounted on the way; None where
        one is."""
        descriptor = os.open(self._root, os.O_PATH | os.O_CLOEXEC)
        for name in os.path.relpath(path, self._root).split("/"):
            try:
                child = os.open(name, _NAME, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = child
            if _read_mount_id(descriptor) != self._mount:
                os.close(descriptor)
                return None
        return descriptor

    def _count_entries(
        self, handle: int, directory: WalkDirectory, sums: Sums, stack: list[WalkDirectory]
    ) -> Iterator[int | dict[str, Any]]:
        status = os.fstat(handle)
        directory = _assign_to_own_run(handle, directory)
        sums.add(directory, status.st_uid, status.st_gid, 1, status.st_size, status.st_blocks)
        links: list[tuple[int, int, str, str, int, int, int, int]] = []
        base = len(stack)
        # Most files of a directory have one owner: his sums are kept at hand.
        uid, gid, files, size, blocks = -1, -1, 0, 0, 0
        ages = self._ages
        # So have most files of a directory one age.
        written, low, high = read, read_low, read_high = 0, math.inf, -math.inf
        with os.scandir(handle) as entries:
            for entry, file in self._entries_with_status(entries, handle, directory):
                if isinstance(file, str):
                    yield {"elsewhere": file}
                    continue
                if entry.is_dir(follow_symlinks=False) if file is None else stat.S_ISDIR(file.st_mode):
                    child = self._child_directory(directory, entry.name)
                    stack.append(child)
                    if len(stack) - base >= CHUNK:
                        yield {"left": stack[base:]}
                        del stack[base:]
                    continue
                try:
                    file = file or entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if file[3] > 1:
                    key = (status.st_dev, file[1], directory.counted_path, directory.run)
                    links.append((*key, file[4], file[5], file[6], file.st_blocks * 512))
                    if len(links) >= CHUNK:
                        yield {"links": links}
                        links = []
                    continue
                changed = file[8]
                read_at = file[7] if file[7] > changed else changed
                if file[4] != uid or file[5] != gid or not low <= changed < high or not read_low <= read_at < read_high:
                    yield self._add_files_and_return_count(directory, sums, uid, gid, files, size, blocks)
                    ages.add(written, read, files, blocks)
                    written, low, high = ages.age_class_and_bounds(changed)
                    read, read_low, read_high = ages.age_class_and_bounds(read_at)
                    uid, gid, files, size, blocks = file[4], file[5], 0, 0, 0
                files += 1
                size += file[6]
                blocks += file.st_blocks
        yield self._add_files_and_return_count(directory, sums, uid, gid, files, size, blocks)
        ages.add(written, read, files, blocks)
        if links:
            yield {"links": links}
        yield 1

    @staticmethod
    def _add_files_and_return_count(
        directory: WalkDirectory, sums: Sums, uid: int, gid: int, files: int, size: int, blocks: int
    ) -> int:
        if files:
            sums.add(directory, uid, gid, files, size, blocks)
        return files

    def _entries_with_status(
        self, entries: Iterator[os.DirEntry[str]], handle: int, directory: WalkDirectory
    ) -> Iterator[tuple[os.DirEntry[str], os.stat_result | str | None]]:
        """Yield each entry with its status on a careful walk; with its path where another file system is mounted on
        it."""
        if not self._careful and directory.path not in self._folders:
            yield from ((entry, None) for entry in entries)
            return
        for entry in entries:
            path = f"{directory.path.rstrip('/')}/{entry.name}"
            if path in self._elsewhere:
                yield entry, path
            elif self._careful:
                try:
                    yield entry, self._status_unless_mounted(entry.name, handle) or path
                except FileNotFoundError:
                    continue
            else:
                yield entry, None

    def _status_unless_mounted(self, name: str, folder: int) -> os.stat_result | None:
        """Read the status of a file, where nothing is mounted on it."""
        named = os.open(name, _NAME, dir_fd=folder)
        try:
            return os.fstat(named) if _read_mount_id(named) == self._mount else None
        finally:
            os.close(named)

    def _child_directory(self, parent: WalkDirectory, name: str) -> WalkDirectory:
        """Make the entry of a directory in `parent`."""
        path = f"{parent.path.rstrip('/')}/{name}"
        if path in self._marks:
            return WalkDirectory(path, self._depth + 1, self._marks[path], parent.run)
        level = parent.level + 1
        counted_path = path if level <= self._depth else parent.counted_path
        return WalkDirectory(path, level, counted_path, parent.run)

    def _count_unopened(self, directory: WalkDirectory, sums: Sums) -> None:
        """Count what cannot be read: it still takes an inode."""
        try:
            named = self._open_path_fd_unless_mount_on_way(directory.path)
            if named is None:
                return
            status = os.fstat(named)
            os.close(named)
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode):
            sums.add(directory, status.st_uid, status.st_gid, 1, status.st_size, status.st_blocks)


def _read_mount_id(handle: int) -> str:
    """Read the number of the mount that a descriptor is of, from the kernel alone."""
    with open(f"/proc/self/fdinfo/{handle}", "rb") as lines:
        return next((line.split()[1].decode() for line in lines if line.startswith(b"mnt_id:")), "")


def _open_path_fd_as_parent_owner_if_denied(path: str) -> int:
    """Open an O_PATH descriptor; where root may not reach it, with the rights of the owner of the directory above."""
    try:
        return os.open(path, _NAME)
    except PermissionError:
        if os.geteuid():
            raise
    _set_effective_user(_owner_of_nearest_parent(path))
    return os.open(path, _NAME)


def _owner_of_nearest_parent(path: str) -> int:
    while path not in ("/", ""):
        path = os.path.dirname(path)
        try:
            return os.lstat(path).st_uid
        except PermissionError:
            continue
    return 0


def _set_effective_user(uid: int) -> None:
    """Switch this process to a user's rights, groups too. Does nothing where the process was not started as root."""
    if os.geteuid() == uid or os.getuid():
        return
    os.seteuid(0)
    gid, groups = _gid_and_groups_of(uid)
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)


@functools.lru_cache(maxsize=1024)
def _gid_and_groups_of(uid: int) -> tuple[int, list[int]]:
    if not uid:
        return os.getgid(), [group.gr_gid for group in grp.getgrall() if "root" in group.gr_mem]
    try:
        entry = pwd.getpwuid(uid)
        return entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
    except KeyError:
        return uid, []


def _assign_to_own_run(handle: int, directory: WalkDirectory) -> WalkDirectory:
    """Return the directory, as a part of its own run where it is the root of one."""
    if _has_file(handle, RUN_FILE):
        return directory._replace(run=directory.path)
    return directory


def _has_file(handle: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except OSError:
        return False


def main() -> None:
    """First line: what TreeScan takes. Then {"id", "directories", "limit"} each, answered by parts with the same id.
    The argument is the descriptor of the memory in which it says where it is."""
    # Who asked may have been killed: then nobody is told, least of all the terminal.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    lines, output = iter(sys.stdin), os.fdopen(1, "w")
    config = json.loads(next(lines))
    config["where"] = CurrentPath(int(sys.argv[1]))
    scan = TreeScan(**config)
    for line in lines:
        task = json.loads(line)
        for part in scan.scan_until_limit([WalkDirectory(*fields) for fields in task["directories"]], task["limit"]):
            output.write(json.dumps({"id": task["id"], **part}) + "\n")
            if "end" in part:
                output.flush()


if __name__ == "__main__":
    main()
