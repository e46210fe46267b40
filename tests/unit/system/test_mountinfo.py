"""Which mount holds a path, by the kernel's own list."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod_kit.system import mountinfo

LIST = """\
22 1 8:1 / / rw - ext4 /dev/root rw
40 22 0:40 / /mnt/s3\\040data rw,nosuid shared:3 - fuse mountpoint-s3 rw,user_id=0
41 40 0:41 / /mnt/s3\\040data/inner rw - tmpfs tmpfs rw
42 40 0:42 / /mnt/s3\\040data/inner rw - xfs /dev/nvme1n1 rw
torn line
"""


@pytest.mark.parametrize(
    ("path", "fs_type"),
    [
        ("/", "ext4"),
        ("/mnt", "ext4"),
        ("/mnt/s3 database", "ext4"),
        ("/mnt/s3 data", "fuse"),
        ("/mnt/s3 data/run/1", "fuse"),
        ("/mnt/s3 data/inner", "xfs"),
        ("/mnt/s3 data/inner/run", "xfs"),
    ],
)
def test_the_mount_that_holds_a_path(path: str, fs_type: str) -> None:
    found = mountinfo.mount_containing_path(LIST, path)
    assert found is not None and found.fs_type == fs_type


def test_without_a_list_nothing_holds_it() -> None:
    assert mountinfo.mount_containing_path("", "/mnt") is None


def test_a_path_with_a_character_that_ends_a_line_elsewhere_is_one_line() -> None:
    """The kernel escapes space, tab, newline and backslash, and nothing else."""
    (entry,) = mountinfo.parse_mountinfo("50 22 0:50 / /home/u/a\x0b\u2028b rw - fuse u rw\n")
    assert entry.path == "/home/u/a\x0b\u2028b"


def test_it_is_read_of_this_process(tmp_path: Path) -> None:
    found = mountinfo.mount_containing_path(mountinfo.read_mountinfo(), "/proc/self")
    assert found is not None and (found.path, found.fs_type) == ("/proc", "proc")
