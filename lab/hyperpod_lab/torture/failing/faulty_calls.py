"""The system calls below one directory, of which the n-th fails: what a Store makes of a bad disk is tried too."""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable
from typing import Any

from hyperpod_lab.torture.failing.faulty import FailureKind

_ON_PATHS = ("open", "mkdir", "scandir", "listdir", "unlink", "rmdir", "lstat", "stat", "rename", "replace")
_ON_DESCRIPTORS = ("write", "pwrite", "fsync", "fdatasync", "ftruncate", "posix_fallocate", "read", "pread", "preadv")
_WRITES = ("write", "pwrite")


class FaultyCalls:
    """While entered, calls of `os` (and `open`) that touch `folder` are counted, and the `at`-th fails (0: none).

    A short write is one as the kernel makes it: half of the bytes are written and counted as such; the next operation
    is the one that fails.
    """

    def __init__(self, folder: str, kind: FailureKind, at: int) -> None:
        self._folder = folder
        self.kind = kind
        self.at = at
        self.operations = 0
        self.failed: list[str] = []
        self._descriptors: set[int] = set()
        self._real: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> FaultyCalls:
        for name in (*_ON_PATHS, *_ON_DESCRIPTORS, "close", "link"):
            self._real[name] = getattr(os, name)
            setattr(os, name, self._wrap_call_to_count_and_fail(name))
        self._open = builtins.open
        builtins.open = self._open_counting_or_failing
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        builtins.open = self._open

    def _concerns_directory(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        if name == "link":
            return keywords.get("dst_dir_fd") in self._descriptors or str(args[1]).startswith(self._folder)
        if keywords.get("dir_fd") is not None:
            return keywords["dir_fd"] in self._descriptors
        if not args:
            return False
        if isinstance(args[0], int):
            return args[0] in self._descriptors
        if not isinstance(args[0], (str, os.PathLike)):
            return False
        return os.fspath(args[0]).startswith(self._folder)

    def _wrap_call_to_count_and_fail(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **keywords: Any) -> Any:
            if name == "close":
                self._descriptors.discard(args[0])
                return real(*args, **keywords)
            if not self._concerns_directory(name, args, keywords):
                return real(*args, **keywords)

            def work() -> Any:
                returned = real(*args, **keywords)
                if name == "open":
                    self._descriptors.add(returned)
                return returned

            return self._run_or_fail(name, args, work)

        return call

    def _open_counting_or_failing(self, file: Any, *args: Any, **keywords: Any) -> Any:
        if isinstance(file, (str, os.PathLike)) and os.fspath(file).startswith(self._folder):
            return self._run_or_fail("open", (file,), lambda: self._open(file, *args, **keywords))
        return self._open(file, *args, **keywords)

    def _must_operation_fail(self, number: int) -> bool:
        """Whether the operation of that number is one that fails."""
        if not self.at:
            return False
        if number == self.at:
            return True
        return self.kind.lasting and number > self.at

    def _run_or_fail(self, name: str, args: tuple[Any, ...], work: Callable[[], Any]) -> Any:
        with self._lock:
            self.operations += 1
            now = self.operations
        kind = self.kind
        if kind.leaves == "half" and self.at and now == self.at and name in _WRITES:
            self.failed.append(f"short {name}")
            self.at += 1
            half = memoryview(args[1])[: max(1, len(args[1]) // 2)]
            return self._real[name](args[0], half, *args[2:])
        if not self._must_operation_fail(now):
            return work()
        self.failed.append(name)
        if kind.leaves == "all":
            returned = work()
            if name == "open" and isinstance(returned, int):
                os.close(returned)
        raise OSError(kind.number, os.strerror(kind.number), str(args[0]))
