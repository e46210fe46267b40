"""What Mountpoint for Amazon S3 documents (doc/SEMANTICS.md, TROUBLESHOOTING.md), operation by operation.

The table can be run against the real client too: it looks at the mount and at the bucket only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal_tests.standins.conftest import BUCKET, needs_mounts, refused
from tests.support.wait import until

pytestmark = needs_mounts

NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class MountedDirectory:
    """A mount of a bucket's prefix `sem/` with a few objects, and the bucket behind it."""

    def __init__(self, root, store) -> None:
        self.root = root
        self.store = store

    def __truediv__(self, name):
        return str(self.root / name)

    def there(self, name) -> bool:
        """Whether S3 has the object, within what a release takes."""
        return until(lambda: self.store.exists(BUCKET, f"sem/{name}"))

    def content(self, name) -> bytes:
        return self.store.get(BUCKET, f"sem/{name}")


@pytest.fixture
def seed(store):
    for name in ("exist", "exist2", "ren", "d/inner", "shadow", "shadow/x", "todel", "rd"):
        store.put(BUCKET, f"sem/{name}", b"hello world")


@pytest.fixture
def directory(s3_node, store, seed):
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", BUCKET, target, "--prefix", "sem/")
    return MountedDirectory(target, store)


@pytest.fixture
def permissive(s3_node, store, seed):
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", "--allow-delete", "--allow-overwrite", "--prefix=sem/", BUCKET, target)
    return MountedDirectory(target, store)


def write(path, data=b"x", flags=NEW):
    descriptor = os.open(path, flags, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def close_quietly(descriptor):
    with contextlib.suppress(OSError):
        os.close(descriptor)


def test_reading(directory):
    with open(directory / "exist", "rb") as file:
        assert file.read() == b"hello world"
        assert os.pread(file.fileno(), 3, 6) == b"wor"
        assert os.pread(file.fileno(), 3, 20) == b""


def test_a_new_file_is_there_after_close(directory):
    write(directory / "new", b"data")
    assert directory.content("new") == b"data"


def test_a_large_file_is_visible_at_close_and_not_before(directory):
    data = os.urandom(20_000_000)
    descriptor = os.open(directory / "new", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, data)
    assert os.stat(directory / "new").st_size == len(data)
    assert not directory.store.exists(BUCKET, "sem/new")
    os.close(descriptor)
    assert directory.content("new") == data


@pytest.mark.parametrize("before", [b"", b"a" * 100])
def test_out_of_order_writes_abort_the_upload(directory, before):
    descriptor = os.open(directory / "new", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, before)
    refused(errno.EINVAL, os.pwrite, descriptor, b"b", 0 if before else 100)
    refused(errno.EIO, os.pwrite, descriptor, b"b", len(before))
    close_quietly(descriptor)
    assert not directory.store.exists(BUCKET, "sem/new")
    assert not os.path.exists(directory / "new")


def test_objects_cannot_be_replaced(directory):
    refused(errno.EPERM, write, directory / "exist")
    refused(errno.EPERM, write, directory / "exist", flags=os.O_WRONLY)
    refused(errno.EPERM, write, directory / "exist", flags=os.O_WRONLY | os.O_APPEND)
    assert directory.content("exist") == b"hello world"


def test_objects_are_replaced_whole_where_allowed(permissive):
    write(permissive / "exist", b"new")
    assert permissive.content("exist") == b"new"
    refused(errno.EPERM, write, permissive / "exist2", flags=os.O_WRONLY)
    refused(errno.EPERM, write, permissive / "exist2", flags=os.O_WRONLY | os.O_APPEND)
    assert permissive.content("exist2") == b"hello world"
    assert Path(permissive / "exist").read_bytes() == b"new"


def test_no_rename(directory):
    refused(errno.ENOSYS, os.rename, directory / "ren", directory / "ren2")
    refused(errno.EPERM, os.rename, directory / "d", directory / "d2")
    write(directory / "t.tmp")
    refused(errno.ENOSYS, os.replace, directory / "t.tmp", directory / "t.final")
    assert directory.there("ren") and not directory.store.exists(BUCKET, "sem/ren2")


def test_deletion_is_off_by_default(directory):
    refused(errno.EPERM, os.unlink, directory / "todel")
    refused(errno.EPERM, os.rmdir, directory / "d")


def test_deletion_where_allowed(permissive):
    os.unlink(permissive / "todel")
    assert not permissive.store.exists(BUCKET, "sem/todel")
    assert not os.path.exists(permissive / "todel")
    refused(errno.EPERM, os.rmdir, permissive / "d")
    refused(errno.EISDIR, os.unlink, permissive / "d")


def test_directories_are_local_until_an_object_is_inside(directory):
    os.mkdir(directory / "newdir")
    refused(errno.EEXIST, os.mkdir, directory / "newdir")
    assert [info.key for info in directory.store.list(BUCKET, "sem/newdir")] == []
    os.rmdir(directory / "newdir")
    os.makedirs(directory / "n/a")
    refused(errno.ENOTEMPTY, os.rmdir, directory / "n")
    write(directory / "n/a/f")
    assert directory.there("n/a/f")
    refused(errno.EPERM, os.rmdir, directory / "n/a")


def test_nothing_of_an_object_can_be_changed(directory):
    refused(errno.EPERM, os.chmod, directory / "rd", 0o600)
    refused(errno.EPERM, os.chown, directory / "rd", 1, 1)
    refused(errno.EPERM, os.utime, directory / "rd", (1, 1))
    refused(errno.EPERM, os.truncate, directory / "rd", 5)
    refused(errno.ENOTSUP, os.setxattr, directory / "rd", "user.a", b"1")


def test_no_links_no_special_files(directory):
    refused(errno.EPERM, os.symlink, "exist", directory / "sl")
    refused(errno.EPERM, os.link, directory / "exist", directory / "hl")
    refused(errno.EINVAL, os.mkfifo, directory / "fifo")


def test_touch(directory):
    assert subprocess.run(["touch", directory / "touched"], timeout=60).returncode == 0
    assert directory.there("touched") and directory.content("touched") == b""


def test_no_allocation(directory):
    done = subprocess.run(["fallocate", "-l", "10", directory / "fa"], capture_output=True, text=True, timeout=60)
    assert "not supported" in done.stderr


def test_a_file_that_is_written_cannot_be_read(directory):
    descriptor = os.open(directory / "rw", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"x")
    refused(errno.EPERM, os.open, directory / "rw", os.O_RDONLY)
    refused(errno.EPERM, os.open, directory / "rw", os.O_WRONLY)
    os.close(descriptor)
    assert Path(directory / "rw").read_bytes() == b"x"


def test_fsync_publishes_and_ends_the_file(directory):
    descriptor = os.open(directory / "fsy", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"x")
    os.fsync(descriptor)
    assert directory.content("fsy") == b"x"
    refused(errno.EIO, os.write, descriptor, b"y")
    close_quietly(descriptor)
    assert directory.content("fsy") == b"x"


def test_no_synchronous_writes(directory):
    refused(errno.EINVAL, write, directory / "osync", flags=NEW | os.O_SYNC)


def test_a_directory_hides_the_file_of_its_name(directory):
    assert os.path.isdir(directory / "shadow")
    assert os.listdir(directory / "shadow") == ["x"]
    assert os.listdir(directory / ".") == sorted(["exist", "exist2", "ren", "d", "shadow", "todel", "rd"])


def test_other_clients_objects_are_seen_at_once(directory):
    assert not os.path.exists(directory / "late")
    directory.store.put(BUCKET, "sem/late", b"1")
    assert os.path.exists(directory / "late")
    directory.store.put(BUCKET, "sem/late", b"22")
    assert until(lambda: os.stat(directory / "late").st_size == 2)
    assert Path(directory / "late").read_bytes() == b"22"


def test_an_object_that_is_replaced_while_it_is_read(directory):
    directory.store.put(BUCKET, "sem/big", bytes(8 << 20))
    with open(directory / "big", "rb", buffering=0) as file:
        file.read(10)
        directory.store.put(BUCKET, "sem/big", b"1" * (8 << 20))
        refused(errno.ESTALE, os.pread, file.fileno(), 10, 7 << 20)


@pytest.mark.parametrize(
    "command",
    [
        "cp /etc/passwd {0}",
        "echo hi > {0}",
        "dd if=/dev/zero of={0} bs=1M count=9 status=none",
        "head -c 3000000 /dev/urandom | tee {0} > /dev/null",
    ],
)
def test_ordinary_programs(directory, command):
    assert subprocess.run(["sh", "-c", command.format(directory / "out")], timeout=20).returncode == 0
    assert directory.there("out")


def test_a_writer_that_is_killed_publishes_what_it_wrote(directory):
    script = (
        f"import os, time; f = os.open({directory / 'killed'!r}, os.O_WRONLY | os.O_CREAT, 0o644); "
        f"os.write(f, b'z' * 100); print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    assert directory.there("killed")
    assert directory.content("killed") == b"z" * 100
