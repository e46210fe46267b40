"""Reading that outlasts the repair of a mount: again by path, then from where the same object lies too, then an error
that says which file and where. A call that hangs counts as one that failed."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence

from hyperpod_kit.data.reading.bounded import REPLY_SECONDS
from hyperpod_kit.data.reading.chunks import DiskCache
from hyperpod_kit.data.reading.source_files import FileFacts, SourceFile, SourceFiles
from hyperpod_kit.errors import ChangedFile, DataUnavailable
from hyperpod_kit.system import passing_errors
from hyperpod_kit.system.wait import BackOff

log = logging.getLogger("hyperpod_kit.data")

RETRY_SECONDS = 300.0
"""Seconds: a health check sees a dead mount within a minute and repairs it within another."""

_BACKOFF = BackOff(0.05, 5.0)
_FALLBACK_SECONDS = 60.0
"""Seconds in which what came from elsewhere is not asked for at its own place again."""

_MAX_FALLBACK_ATTEMPTS = 4

# Between an unmount and a mount the directory is there and empty.
TRANSIENT_ERRORS = passing_errors.PASSING | {errno.ENOENT}
"""What a mount says that is gone, or on its way back."""


class RetryingFiles(SourceFiles):
    """SourceFiles that retries. `elsewhere`: beginning of a path -> the `s3://` prefix that holds the same."""

    def __init__(
        self,
        patience: float = RETRY_SECONDS,
        elsewhere: Mapping[str, str] | None = None,
        disk: DiskCache | None = None,
        *,
        reply_timeout: float = REPLY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(disk=disk, reply_timeout=reply_timeout)
        self._patience = patience
        self._elsewhere = {prefix.rstrip("/"): other.rstrip("/") for prefix, other in (elsewhere or {}).items()}
        self._redirected: dict[str, float] = {}
        """Files, and beginnings of paths, that are read from elsewhere: until when."""
        self._clock = clock
        self._sleep = sleep

    def read(self, facts: FileFacts, offset: int, length: int) -> bytes:
        """See SourceFiles. Raises ChangedFile, DataUnavailable, and OSError for what no repair mends."""
        if self._redirected and self._is_redirected(facts.path):
            return self._read_replica_and_redirect_later_reads(facts, offset, length, None)
        try:
            return super().read(facts, offset, length)
        except OSError as err:
            if err.errno not in TRANSIENT_ERRORS:
                raise
            if err.errno == errno.ENOENT and facts.path.startswith("s3://"):
                raise DataUnavailable(f"{facts.path}, at {offset}: {err}") from None  # no repair brings it back
            return self._retry_read(facts, offset, length, err)

    def read_several(self, files: Sequence[FileFacts], offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """See SourceFiles. What one of them fails with is met again, and waited for, where it is read by itself."""
        if not self._redirected:
            with contextlib.suppress(OSError):
                return super().read_several(files, offsets, lengths)
        return [self.read(*range_of_file) for range_of_file in zip(files, offsets, lengths)]

    def _is_redirected(self, path: str) -> bool:
        return self._clock() < max(
            self._redirected.get(path, 0.0), self._redirected.get(self._path_prefix_with_replica(path), 0.0)
        )

    def _path_prefix_with_replica(self, path: str) -> str:
        """Find the beginning of a path for which there is a place elsewhere, "" for none."""
        return next((prefix for prefix in self._elsewhere if path.startswith(prefix + "/")), "")

    def _retry_read(self, facts: FileFacts, offset: int, length: int, cause: OSError) -> bytes:
        begin, tries = self._clock(), 0
        log.warning("%s, at %d: %s; retrying for %.0f s", facts.path, offset, cause, self._patience)
        while self._clock() - begin < self._patience:
            tries += 1
            self.close_and_forget_mount(facts.path)
            self._sleep(min(_BACKOFF.pause_seconds(tries), max(0.0, self._patience - (self._clock() - begin))))
            try:
                data = super().read(facts, offset, length)
            except OSError as err:
                if err.errno not in TRANSIENT_ERRORS:
                    raise
                cause = err
                continue
            log.warning("%s is back after %.1f s", facts.path, self._clock() - begin)
            return data
        self.close_and_forget_mount(facts.path)
        return self._read_replica_and_redirect_later_reads(facts, offset, length, cause)

    def _read_replica_and_redirect_later_reads(
        self, facts: FileFacts, offset: int, length: int, cause: OSError | None
    ) -> bytes:
        description = "the original is no longer tried"
        if cause is not None:
            description = f"{cause} for {self._patience:.0f} s"
        prefix = self._path_prefix_with_replica(facts.path)
        if not prefix:
            raise DataUnavailable(f"{facts.path}, at {offset}: {description}")
        path = self._elsewhere[prefix] + facts.path[len(prefix) :]
        try:
            data = self._read_replica(path, facts, offset, length)
        except (OSError, ChangedFile) as err:
            raise DataUnavailable(f"{facts.path}, at {offset}: {description}; then {path}: {err}") from None
        if cause is not None:
            # The whole mount, unless it is this file alone that is not there: each of thousands would be waited for.
            redirected = prefix
            if cause.errno == errno.ENOENT and self._is_readable_and_not_empty(prefix):
                redirected = facts.path
            log.warning("%s: read from %s for %.0f s", redirected, self._elsewhere[prefix], _FALLBACK_SECONDS)
            self._redirected[redirected] = self._clock() + _FALLBACK_SECONDS
        self.bytes_read += len(data)
        return data

    def _is_readable_and_not_empty(self, directory: str) -> bool:
        """Whether anything is in a directory. One that fails, hangs or is empty is a mount that is gone."""
        try:
            calls = self._mounts.bounded_calls_for(directory + "/")
            if calls is None:
                return bool(os.listdir(directory))
            return bool(calls.call(lambda: os.listdir(directory)))
        except OSError:
            return False

    def _read_replica(self, path: str, facts: FileFacts, offset: int, length: int) -> bytes:
        """Read from elsewhere, where passing failures are no rarer than here."""
        for tries in range(1, _MAX_FALLBACK_ATTEMPTS + 1):
            try:
                return self._open_replica(path, facts).read(offset, length)
            except OSError as err:
                self.close_and_forget_mount(path)
                if err.errno not in TRANSIENT_ERRORS or err.errno == errno.ENOENT or tries == _MAX_FALLBACK_ATTEMPTS:
                    raise
                self._sleep(_BACKOFF.pause_seconds(tries))
        raise AssertionError("the last try returns or raises")

    def _open_replica(self, path: str, facts: FileFacts) -> SourceFile:
        file = self._open_files_reset_after_fork().get(path)
        if file is None:
            file = self._open_source(path, facts)
            if not self._has_indexed_bytes(file, facts):
                file.close()
                if file.size != facts.size:
                    raise ChangedFile(f"it has {file.size} bytes, expected {facts.size}")
                raise ChangedFile("its bytes differ from those that were indexed")
            self._keep_open_within_limit(file)
        return file
