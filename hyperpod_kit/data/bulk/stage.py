"""A source brought into a directory: what is there stays, what arrives is proved, and gets its name last.

Killed at any moment and called again, it brings the rest. A file in its place is a whole one, with the source's size
and time; so an index of the source is one of the copy too. OUT may lie where others write (a scratch directory of
mode 1777), so it has to be this user's own, and everything in it is reached by descriptors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hyperpod_kit.data.bulk.directory import Directory
from hyperpod_kit.data.bulk.s5cmd import S5cmd
from hyperpod_kit.data.bulk.staging import (
    WORK_DIRECTORY,
    ContentMismatch,
    FileList,
    StagedFile,
    StageEngine,
    is_staged_with_size_and_mtime,
)
from hyperpod_kit.data.bulk.throttle import sizes_on_disk_by_inode
from hyperpod_kit.data.reading.bounded import REPLY_SECONDS
from hyperpod_kit.errors import DataError, DataUnavailable, NoData
from hyperpod_kit.system.file_lock import lock_exclusively_within, try_lock
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted.owned_directory import OwnedDirectory
from hyperpod_kit.untrusted.text import counted

log = logging.getLogger("hyperpod_kit.data")

_FILES, _BYTES = 2000, 4 << 30
"""Of a group: so many are listed to the engine at a time."""

_MAX_ATTEMPTS = 4
_BACKOFF = BackOff(1.0, 20.0, factor=4.0)
_VERIFIERS = 8
_PROGRESS_SECONDS = 0.25
_PARTS_DIRECTORY = "parts"


@dataclass(frozen=True)
class StageReport:
    """Files that were there, files that were copied (or would be), and of how many only the size could be compared."""

    files: int
    bytes: int
    known: int
    brought: int
    brought_bytes: int
    by_size: int
    seconds: float


def open_engine(source: str, *, rate: float | None, workers: int | None, reply_timeout: float) -> StageEngine:
    """Choose the engine that copies from a source. Raises DataError."""
    if source.startswith("s3://"):
        return S5cmd(source, rate=rate, workers=workers or 256)
    return Directory(source, rate=rate, workers=workers or 16, reply_timeout=reply_timeout)


def stage(
    source: str,
    out: str,
    *,
    rate: float | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    lock_timeout: float = 3600.0,
    reply_timeout: float = REPLY_SECONDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StageReport:
    """Bring all files of `source`, a directory or `s3://BUCKET/PREFIX`, into the directory `out`.

    `rate`: bytes a second; `workers`: files at a time; `lock_timeout`: seconds to wait for another call that
    fills the same directory; `reply_timeout`: seconds after which a mount of the source that gives no answer
    counts as failed.
    Raises DataError, DataUnavailable when files do not come, Unreachable for a bucket that cannot be listed,
    OSError.
    """
    started_at = time.monotonic()
    engine = open_engine(source, rate=rate, workers=workers, reply_timeout=reply_timeout)
    with contextlib.ExitStack() as stack:
        destination = unfinished = None
        if not dry_run:
            destination = stack.enter_context(StageDestination(out, lock_timeout))
            unfinished = destination.work_directory.proc_fd_path
        listed = FileList(stack.enter_context(tempfile.TemporaryFile("w+", dir=unfinished)))
        for file in engine.files():
            listed.append_refusing_unsafe_path(file)
        if not listed.files:
            raise NoData(f"{source}: no files found")
        staging = _Staging(engine, out, destination, listed, progress)
        if destination is not None:
            destination.remove_leftovers_and_require_room(listed)
            stack.enter_context(staging.reporting_progress())
        for group in listed.groups(_FILES, _BYTES):
            missing = [file for file in group if not is_staged_with_size_and_mtime(out, file)]
            staging.count_present_files(
                len(group) - len(missing), sum(file.size for file in group) - sum(file.size for file in missing)
            )
            if dry_run:
                staging.brought += len(missing)
                staging.brought_bytes += sum(file.size for file in missing)
            elif missing:
                staging.fetch_with_retries(missing)
        return StageReport(
            listed.files,
            listed.bytes,
            staging.present,
            staging.brought,
            staging.brought_bytes,
            staging.by_size,
            round(time.monotonic() - started_at, 3),
        )


class StageDestination:
    """Lock the destination for this call until the end of the block: `top` itself, and `work_directory` in it
    for what is under way.

    Raises Untrusted when either is another user's, DataError when another call keeps it, OSError.
    """

    def __init__(self, out: str, wait: float) -> None:
        with contextlib.ExitStack() as stack:
            self.top = stack.enter_context(OwnedDirectory.open_or_make(out))
            self.work_directory = stack.enter_context(self.top.ensure_directory(WORK_DIRECTORY))
            lock = self.work_directory.open("lock", os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, lock)
            if not try_lock(lock):
                log.warning("another `data stage` is filling %s; waiting for it", out)
                if not lock_exclusively_within(lock, wait, BackOff(0.1, 2.0)):
                    raise DataError(f"another `data stage` has been filling {out} for more than {wait:.0f} s")
            self._closing = stack.pop_all()

    def __enter__(self) -> StageDestination:
        return self

    def __exit__(self, *about: object) -> None:
        self._closing.close()

    def remove_leftovers_and_require_room(self, listed: FileList) -> None:
        """Delete the parts of a run that was killed. Raises DataError when the disk has no room for what is missing."""
        expected = (file for group in listed.groups(_FILES, _BYTES) for file in group)
        missing = sum(file.size for file in expected if not is_staged_with_size_and_mtime(self.top.path, file))
        self.work_directory.remove_file_or_tree(_PARTS_DIRECTORY)  # of a run that was killed
        free = self.top.free_bytes()
        if missing > free:
            raise DataError(f"{self.top.path} has {free} bytes free, and {missing} are still to be copied")


class _Staging:
    """One staging run. `present`, `brought`: files that were there, and that were copied."""

    def __init__(
        self,
        engine: StageEngine,
        out: str,
        destination: StageDestination | None,
        listed: FileList,
        progress: Callable[[int, int], None],
    ) -> None:
        self._engine = engine
        self._out = out
        self._destination = destination
        self._parts = ""
        if destination is not None:
            self._parts = os.path.join(destination.work_directory.proc_fd_path, _PARTS_DIRECTORY)
        self._listed = listed
        self._progress = progress
        self._lock = threading.Lock()
        self._present_bytes = 0
        self.present = self.brought = self.brought_bytes = self.by_size = 0

    def count_present_files(self, files: int, size: int) -> None:
        """Count files that are there already."""
        self.present += files
        self._present_bytes += size

    def fetch_with_retries(self, missing: Sequence[StagedFile]) -> None:
        """Fetch all files of a group. Raises DataUnavailable."""
        for tries in range(1, _MAX_ATTEMPTS + 1):
            missing = self._fetch_once_and_list_missing(missing)
            if not missing:
                return
            reason = self._engine.last_error or "the reason is unknown"
            message = f"{counted(len(missing), 'file was', 'files were')} not copied, first {missing[0].path}: {reason}"
            if tries < _MAX_ATTEMPTS:
                log.warning("%s; requesting them again", message)
                time.sleep(_BACKOFF.pause_seconds(tries))
        raise DataUnavailable(
            f"{message}; {counted(self.brought, 'file was', 'files were')} copied",
            hint="repeat the command to continue",
        )

    def _fetch_once_and_list_missing(self, group: Sequence[StagedFile]) -> list[StagedFile]:
        """Try a group once and return the files that did not come."""
        assert self._destination is not None
        self._destination.work_directory.remove_file_or_tree(_PARTS_DIRECTORY)
        with self._destination.work_directory.ensure_directory(_PARTS_DIRECTORY) as parts, ThreadPoolExecutor(
            _VERIFIERS
        ) as pool:
            missing = dict(enumerate(group))
            placed = [
                (
                    arrived.number,
                    pool.submit(self._verify_and_place_file, group[arrived.number], parts, str(arrived.number)),
                )
                for arrived in self._engine.fetch_skipping_failed(group, parts.proc_fd_path)
            ]
            for number, proof in placed:
                if proof.result():
                    missing.pop(number, None)
        self._destination.work_directory.remove_file_or_tree(_PARTS_DIRECTORY)
        return list(missing.values())

    def _verify_and_place_file(self, file: StagedFile, parts: OwnedDirectory, part: str) -> bool:
        """Verify a file and rename it to its place; False when it has to be fetched again."""
        assert self._destination is not None
        handle = parts.open(part, os.O_RDONLY)
        try:
            arrived = os.fstat(handle).st_size
            if arrived != file.size:
                raise ContentMismatch(f"{file.path} has {arrived} bytes, expected {file.size}")
            verified = self._engine.is_verified_or_raise_on_mismatch(file, os.path.join(parts.proc_fd_path, part))
            os.utime(handle, ns=(file.mtime_ns, file.mtime_ns))
        except ContentMismatch as err:
            log.warning("%s", err)
            return False
        finally:
            os.close(handle)
        self._destination.top.move_from(parts, part, file.path)
        with self._lock:
            self.brought += 1
            self.brought_bytes += file.size
            self.by_size += not verified
        return True

    @contextlib.contextmanager
    def reporting_progress(self) -> Iterator[None]:
        """Report progress until the end of the block, files that are under way included."""
        end = threading.Event()

        def report() -> None:
            while not end.wait(_PROGRESS_SECONDS):
                under_way = sum(sizes_on_disk_by_inode(self._parts).values())
                done = self._present_bytes + self.brought_bytes + under_way
                self._progress(min(done, self._listed.bytes), self._listed.bytes)

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
