"""Where inputs lie that a parser wants as a file: in memory, a directory a process, in one of the program."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from functools import lru_cache

_OF_A_RUN = re.compile(r"hpk-fuzz-([0-9]+)-.*")


def own_base() -> str:
    """A new directory of this program; those of programs that were killed go."""
    base = _memory() or tempfile.gettempdir()
    for name in os.listdir(base):
        named = _OF_A_RUN.fullmatch(name)
        if named and not os.path.exists(f"/proc/{named.group(1)}"):
            shutil.rmtree(os.path.join(base, name), ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"hpk-fuzz-{os.getpid()}-", dir=base)


@lru_cache(maxsize=None)
def _base(pid: int) -> str:
    return tempfile.mkdtemp(prefix=f"fuzz-{pid}-", dir=os.environ.get("HPK_FUZZ_DIR") or _memory())


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def folder(name: str) -> str:
    """A directory of this process's own."""
    path = os.path.join(_base(os.getpid()), name)
    os.makedirs(path, exist_ok=True)
    return path


def file_of(data: bytes, name: str) -> str:
    """A file with these bytes, in a directory of this process's own."""
    path = os.path.join(_base(os.getpid()), name)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, data)
    os.close(fd)
    return path
