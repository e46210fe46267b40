"""A new file that is written past the page cache where the file system can do that."""

from __future__ import annotations

import errno
import fcntl
import os

ALIGN = 4096


class DirectFile:
    """Created exclusively. Pieces come in ascending order; all but the last one are multiples of ALIGN."""

    align = ALIGN

    def __init__(self, path: str) -> None:
        """Raises FileExistsError, OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        # Set afterwards: some file systems create the file and then refuse the flag, which O_EXCL cannot repeat.
        self._direct = self._set_direct(True)

    def _set_direct(self, on: bool) -> bool:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        except OSError:
            return False
        return on

    def write(self, view: memoryview, offset: int) -> None:
        """Raises OSError."""
        whole = len(view) // ALIGN * ALIGN if self._direct else 0
        done = 0
        while done < whole:
            try:
                done += os.pwrite(self._fd, view[done:whole], offset + done)
            except OSError as err:
                if err.errno != errno.EINVAL or not self._direct:
                    raise
                break
        if done < len(view) and self._direct:
            self._direct = self._set_direct(False)
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], offset + done)

    def finish(self) -> None:
        """The bytes are on the disk after this. Raises OSError."""
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1

    def abort(self) -> None:
        """The file stays as it is: a directory is never used twice, so nobody takes it for whole."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
