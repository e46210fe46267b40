"""A temporary directory of each run of the tests' own, removed when all have passed.

pytest's own lies below one directory for all runs of a user, which each run closes to others when it begins: a test
whose processes are other users' lost its files when another run began.

On ext4 a new inode is looked for among all that were freed in the same block group in the last minutes, which took a
tenth of the tests' processor time. Below a directory that says so, each directory begins in a group of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import tempfile
from typing import Iterator, List

import pytest

_PREFIX = "kit-"
"""Short: a socket's path has 107 bytes."""
_REMOVED = 120.0
_LARGE = "+16M"
"""As `find -size` takes it: files above it are not kept after a failure."""
_GET_FLAGS, _SET_FLAGS, _TOP_OF_HIERARCHIES = 0x80086601, 0x40086602, 0x00020000
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_TOPDIR_FL of linux/fs.h, as `chattr +T` sets it."""
_MADE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """A worker has a part of its controller's."""
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix=_PREFIX)
        config.stash[_MADE] = config.option.basetemp


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a test of the full suite wrote goes when it ends, as far as it is large: all of it is tens of gigabytes."""
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is not None and item.get_closest_marker("full") is not None:
        _run_bounded(["find", str(folder), "-xdev", "-type", "f", "-size", _LARGE, "-delete"])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    made = session.config.stash.get(_MADE, None)
    if made is None:
        return
    succeeded = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if succeeded:
        command = ["rm", "-rf", "--one-file-system", made]
    else:
        # Gigabytes of a few failed runs fill a disk, and a shell on a full disk cannot even remove them.
        command = ["find", made, "-xdev", "-type", "f", "-size", _LARGE, "-delete"]
    _run_bounded(command)
    if not succeeded:
        print(f"\nwhat the tests had written is in {made}, except for files above {_LARGE[1:]}")


def _run_bounded(command: List[str]) -> None:
    """By a process: what a test has left mounted there can hang."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, timeout=_REMOVED, check=False, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="session", autouse=True)
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each test's directory in a block group of its own, where the file system has any."""
    with contextlib.suppress(OSError):
        _spread(str(tmp_path_factory.getbasetemp()))
    yield


def _spread(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(handle, _GET_FLAGS, struct.pack("l", 0)))
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("l", flags | _TOP_OF_HIERARCHIES))
    finally:
        os.close(handle)
