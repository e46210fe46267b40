"""Which files lie on a mount that may hang: all but those of a disk of this machine's own."""

from __future__ import annotations

import os

from hyperpod_kit.data.reading.bounded import REPLY_SECONDS
from hyperpod_kit.system import mountinfo
from hyperpod_kit.system.bounded_thread import BoundedCalls

_MAX_DIRECTORIES = 4096


class SourceMounts:
    """The mounts below the files of this process. `reply_timeout`: seconds for each call to one that may hang."""

    def __init__(self, reply_timeout: float = REPLY_SECONDS) -> None:
        self._reply_timeout = reply_timeout
        self._links = self._new_bounded_calls()
        self._mounts: dict[str, BoundedCalls] = {}
        self._directories: dict[str, BoundedCalls | None] = {}

    def bounded_calls_for(self, path: str) -> BoundedCalls | None:
        """Choose the calls by which a file is opened and read; None for a file of a disk. Raises CallUnanswered."""
        directory = os.path.dirname(path)
        if directory not in self._directories:
            if len(self._directories) >= _MAX_DIRECTORIES:
                self._directories.clear()
            self._directories[directory] = self._bounded_calls_for_mount(directory)
        calls = self._directories[directory]
        if calls is None and os.path.islink(path):
            return self._bounded_calls_for_mount(path)
        return calls

    @property
    def has_used_mounts_that_may_hang(self) -> bool:
        """Whether there was a file on such a mount."""
        return bool(self._mounts)

    def forget_mount_of(self, path: str) -> None:
        """Forget the mount of a file that failed: another may lie there by now, or none."""
        self._directories.pop(os.path.dirname(path), None)

    def _new_bounded_calls(self) -> BoundedCalls:
        return BoundedCalls(self._reply_timeout, "hpk-data-read")

    def _bounded_calls_for_mount(self, path: str) -> BoundedCalls | None:
        # A link may lead to a mount, and to look whether it is one is a call as well.
        real = self._links.call(lambda: os.path.realpath(path))
        mount = mountinfo.mount_containing_path(mountinfo.read_mountinfo(), real)
        if mount is not None and mount.fs_type in mountinfo.DISKS:
            return None
        mount_point = "" if mount is None else mount.path
        return self._mounts.setdefault(mount_point, self._new_bounded_calls())
