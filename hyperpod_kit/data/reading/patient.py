"""Reading that outlasts the repair of a mount: again by path, then from where the same object lies too, then an error
that says which file and where."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Mapping

from hyperpod_kit.data.reading.chunks import DiskCache
from hyperpod_kit.data.reading.source_files import FileFacts, SourceFile, SourceFiles
from hyperpod_kit.errors import ChangedFile, DataUnavailable
from hyperpod_kit.system.wait import BackOff

log = logging.getLogger("hyperpod_kit.data")

PATIENCE = 300.0
"""Seconds: a health check sees a dead mount within a minute and repairs it within another."""

_PAUSES = BackOff(0.05, 5.0)
_STAY_AWAY = 60.0
"""Seconds in which a file that came from elsewhere is not asked for at its own place again."""

PASSING = frozenset(
    (
        errno.ENOTCONN,
        errno.ESTALE,
        errno.EIO,
        errno.ETIMEDOUT,
        errno.ENODEV,
        errno.ENXIO,
        errno.EREMOTEIO,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.ESHUTDOWN,
        # Between an unmount and a mount the directory is there and empty.
        errno.ENOENT,
    )
)
"""What a mount says that is gone, or on its way back."""


class PatientFiles(SourceFiles):
    """SourceFiles that asks again. `elsewhere`: beginning of a path -> the `s3://` prefix that holds the same."""

    def __init__(
        self,
        patience: float = PATIENCE,
        elsewhere: Mapping[str, str] | None = None,
        disk: DiskCache | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(disk=disk)
        self._patience = patience
        self._elsewhere = dict(elsewhere or {})
        self._away: dict[str, float] = {}
        self._clock = clock
        self._sleep = sleep

    def read(self, facts: FileFacts, offset: int, length: int) -> bytes:
        """See SourceFiles. Raises ChangedFile, DataUnavailable, and OSError for what no repair mends."""
        if self._away and self._clock() < self._away.get(facts.path, 0.0):
            return self._from_elsewhere(facts, offset, length, None)
        try:
            return super().read(facts, offset, length)
        except OSError as err:
            if err.errno not in PASSING:
                raise
            return self._again(facts, offset, length, err)

    def _again(self, facts: FileFacts, offset: int, length: int, why: OSError) -> bytes:
        begin, tries = self._clock(), 0
        log.warning("%s, at %d: %s; it is asked for again for %.0f s", facts.path, offset, why, self._patience)
        while self._clock() - begin < self._patience:
            tries += 1
            self.forget(facts.path)
            self._sleep(min(_PAUSES.pause(tries), max(0.0, self._patience - (self._clock() - begin))))
            try:
                data = super().read(facts, offset, length)
            except OSError as err:
                if err.errno not in PASSING:
                    raise
                why = err
                continue
            log.warning("%s is back after %.1f s", facts.path, self._clock() - begin)
            return data
        return self._from_elsewhere(facts, offset, length, why)

    def _from_elsewhere(self, facts: FileFacts, offset: int, length: int, why: OSError | None) -> bytes:
        said = f"{why} for {self._patience:.0f} s" if why else "its own place was given up"
        for prefix, other in self._elsewhere.items():
            if not facts.path.startswith(prefix.rstrip("/") + "/"):
                continue
            path = other.rstrip("/") + facts.path[len(prefix.rstrip("/")) :]
            try:
                data = self._at(path, facts).read(offset, length)
            except (OSError, ChangedFile) as err:
                raise DataUnavailable(f"{facts.path}, at {offset}: {said}; then {path}: {err}") from None
            if facts.path not in self._away:
                log.warning("%s: read from %s", facts.path, path)
            if why is not None:
                self._away[facts.path] = self._clock() + _STAY_AWAY
            self.bytes_read += len(data)
            return data
        raise DataUnavailable(f"{facts.path}, at {offset}: {said}")

    def _at(self, path: str, facts: FileFacts) -> SourceFile:
        found = self._open.get(path)
        if found is None:
            found = self._opened(path)
            if found.size != facts.size:
                found.close()
                raise ChangedFile(f"it has {found.size} bytes, expected {facts.size}")
            self._open[path] = found
        return found
