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
from hyperpod_kit.data.bulk.staging import OWN, FileList, OtherBytes, StagedFile, StageEngine, is_there
from hyperpod_kit.data.bulk.throttle import sizes
from hyperpod_kit.data.reading.bounded import ANSWER
from hyperpod_kit.errors import DataError, DataUnavailable, NoData
from hyperpod_kit.system.file_lock import lock_within, try_lock
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted.owned_directory import OwnedDirectory

log = logging.getLogger("hyperpod_kit.data")

_FILES, _BYTES = 2000, 4 << 30
"""Of a group: so many are listed to the engine at a time."""

_TRIES = 4
_PAUSES = BackOff(1.0, 20.0, factor=4.0)
_PROVERS = 8
_TELL = 0.25
_PARTS = "parts"


@dataclass(frozen=True)
class StageReport:
    """What was there, what was brought (or would be), and of how many of them the size alone could be compared."""

    files: int
    bytes: int
    known: int
    brought: int
    brought_bytes: int
    by_size: int
    seconds: float


def engine_of(source: str, *, rate: float | None, workers: int | None, answer: float) -> StageEngine:
    """What brings files from there. Raises DataError."""
    if source.startswith("s3://"):
        return S5cmd(source, rate=rate, workers=workers or 256)
    return Directory(source, rate=rate, workers=workers or 16, answer=answer)


def stage(
    source: str,
    out: str,
    *,
    rate: float | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    wait: float = 3600.0,
    answer: float = ANSWER,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StageReport:
    """Bring all files of `source`, a directory or `s3://BUCKET/PREFIX`, into the directory `out`.

    `rate`: bytes a second; `workers`: files at a time; `wait`: seconds for another one that fills the same directory;
    `answer`: seconds after which a mount of the source that gives no answer counts as failed.
    Raises DataError, DataUnavailable when files do not come, OSError.
    """
    begun = time.monotonic()
    engine = engine_of(source, rate=rate, workers=workers, answer=answer)
    with contextlib.ExitStack() as stack:
        place = None if dry_run else stack.enter_context(StagePlace(out, wait))
        unfinished = None if place is None else place.own.anchor
        listed = FileList(stack.enter_context(tempfile.TemporaryFile("w+", dir=unfinished)))
        for file in engine.files():
            listed.add(file)
        if not listed.files:
            raise NoData(f"{source}: there are no files")
        work = _Stage(engine, out, place, listed, progress)
        if place is not None:
            place.check_room(listed)
            stack.enter_context(work.told())
        for group in listed.groups(_FILES, _BYTES):
            missing = [file for file in group if not is_there(out, file)]
            work.skip(len(group) - len(missing), sum(file.size for file in group) - sum(file.size for file in missing))
            if dry_run:
                work.brought += len(missing)
                work.brought_bytes += sum(file.size for file in missing)
            elif missing:
                work.bring(missing)
        return StageReport(
            listed.files,
            listed.bytes,
            work.known,
            work.brought,
            work.brought_bytes,
            work.by_size,
            round(time.monotonic() - begun, 3),
        )


class StagePlace:
    """The destination, which is this call's alone until the end of the block: `top` itself, and `own` in it for what is
    under way. Raises Untrusted when either is another user's, DataError when another call keeps it, OSError."""

    def __init__(self, out: str, wait: float) -> None:
        with contextlib.ExitStack() as stack:
            self.top = stack.enter_context(OwnedDirectory.at(out))
            self.own = stack.enter_context(self.top.ensure_directory(OWN))
            lock = self.own.open("lock", os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, lock)
            if not try_lock(lock):
                log.warning("another `data stage` fills %s; it is waited for", out)
                if not lock_within(lock, wait, BackOff(0.1, 2.0)):
                    raise DataError(f"another `data stage` fills {out}, for more than {wait:.0f} s")
            self._closing = stack.pop_all()

    def __enter__(self) -> StagePlace:
        return self

    def __exit__(self, *about: object) -> None:
        self._closing.close()

    def check_room(self, listed: FileList) -> None:
        """Raises DataError when the disk has not enough for what is missing."""
        expected = (file for group in listed.groups(_FILES, _BYTES) for file in group)
        missing = sum(file.size for file in expected if not is_there(self.top.path, file))
        self.own.remove(_PARTS)  # of a run that was killed
        free = self.top.free()
        if missing > free:
            raise DataError(f"{self.top.path} has {free} bytes free, and {missing} are to come")


class _Stage:
    """One run. `known`, `brought`: files that were there, and that were not."""

    def __init__(
        self,
        engine: StageEngine,
        out: str,
        place: StagePlace | None,
        listed: FileList,
        progress: Callable[[int, int], None],
    ) -> None:
        self._engine = engine
        self._out = out
        self._place = place
        self._parts = os.path.join(place.own.anchor, _PARTS) if place is not None else ""
        self._listed = listed
        self._progress = progress
        self._lock = threading.Lock()
        self._known_bytes = 0
        self.known = self.brought = self.brought_bytes = self.by_size = 0

    def skip(self, files: int, size: int) -> None:
        """So many are there."""
        self.known += files
        self._known_bytes += size

    def bring(self, missing: Sequence[StagedFile]) -> None:
        """All of a group. Raises DataUnavailable."""
        for tries in range(1, _TRIES + 1):
            missing = self._once(missing)
            if not missing:
                return
            said = (
                f"{len(missing)} files did not come, {missing[0].path} first: {self._engine.said or 'nobody says why'}"
            )
            if tries < _TRIES:
                log.warning("%s; they are asked for again", said)
                time.sleep(_PAUSES.pause(tries))
        raise DataUnavailable(
            f"{said}; {self.brought} files were brought", hint="the same command goes on where this one has ended"
        )

    def _once(self, group: Sequence[StagedFile]) -> list[StagedFile]:
        """Those that did not come."""
        assert self._place is not None
        self._place.own.remove(_PARTS)
        with self._place.own.ensure_directory(_PARTS) as parts, ThreadPoolExecutor(_PROVERS) as pool:
            missing = dict(enumerate(group))
            settled = [
                (arrived.number, pool.submit(self._settle, group[arrived.number], parts, str(arrived.number)))
                for arrived in self._engine.bring(group, parts.anchor)
            ]
            for number, proof in settled:
                if proof.result():
                    missing.pop(number, None)
        self._place.own.remove(_PARTS)
        return list(missing.values())

    def _settle(self, file: StagedFile, parts: OwnedDirectory, part: str) -> bool:
        """Prove a file and give it its name; False when it has to come again."""
        assert self._place is not None
        handle = parts.open(part, os.O_RDONLY)
        try:
            arrived = os.fstat(handle).st_size
            if arrived != file.size:
                raise OtherBytes(f"{file.path} has {arrived} bytes, expected {file.size}")
            proved = self._engine.proves(file, os.path.join(parts.anchor, part))
            os.utime(handle, ns=(file.mtime_ns, file.mtime_ns))
        except OtherBytes as err:
            log.warning("%s", err)
            return False
        finally:
            os.close(handle)
        self._place.top.take(parts, part, file.path)
        with self._lock:
            self.brought += 1
            self.brought_bytes += file.size
            self.by_size += not proved
        return True

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Progress is told, of files that are on their way too, to the end of the block."""
        end = threading.Event()

        def tell() -> None:
            while not end.wait(_TELL):
                under_way = sum(sizes(self._parts).values())
                done = self._known_bytes + self.brought_bytes + under_way
                self._progress(min(done, self._listed.bytes), self._listed.bytes)

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
