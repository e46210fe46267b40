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


class Place:
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
def place(s3_node, store, seed):
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", BUCKET, target, "--prefix", "sem/")
    return Place(target, store)


@pytest.fixture
def permissive(s3_node, store, seed):
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", "--allow-delete", "--allow-overwrite", "--prefix=sem/", BUCKET, target)
    return Place(target, store)


def write(path, data=b"x", flags=NEW):
    descriptor = os.open(path, flags, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def close_quietly(descriptor):
    with contextlib.suppress(OSError):
        os.close(descriptor)


def test_reading(place):
    with open(place / "exist", "rb") as file:
        assert file.read() == b"hello world"
        assert os.pread(file.fileno(), 3, 6) == b"wor"
        assert os.pread(file.fileno(), 3, 20) == b""


def test_a_new_file_is_there_after_close(place):
    write(place / "new", b"data")
    assert place.content("new") == b"data"


def test_a_large_file_is_visible_at_close_and_not_before(place):
    data = os.urandom(20_000_000)
    descriptor = os.open(place / "new", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, data)
    assert os.stat(place / "new").st_size == len(data)
    assert not place.store.exists(BUCKET, "sem/new")
    os.close(descriptor)
    assert place.content("new") == data


@pytest.mark.parametrize("before", [b"", b"a" * 100])
def test_out_of_order_writes_abort_the_upload(place, before):
    descriptor = os.open(place / "new", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, before)
    refused(errno.EINVAL, os.pwrite, descriptor, b"b", 0 if before else 100)
    refused(errno.EIO, os.pwrite, descriptor, b"b", len(before))
    close_quietly(descriptor)
    assert not place.store.exists(BUCKET, "sem/new")
    assert not os.path.exists(place / "new")


def test_objects_cannot_be_replaced(place):
    refused(errno.EPERM, write, place / "exist")
    refused(errno.EPERM, write, place / "exist", flags=os.O_WRONLY)
    refused(errno.EPERM, write, place / "exist", flags=os.O_WRONLY | os.O_APPEND)
    assert place.content("exist") == b"hello world"


def test_objects_are_replaced_whole_where_allowed(permissive):
    write(permissive / "exist", b"new")
    assert permissive.content("exist") == b"new"
    refused(errno.EPERM, write, permissive / "exist2", flags=os.O_WRONLY)
    refused(errno.EPERM, write, permissive / "exist2", flags=os.O_WRONLY | os.O_APPEND)
    assert permissive.content("exist2") == b"hello world"
    assert Path(permissive / "exist").read_bytes() == b"new"


def test_no_rename(place):
    refused(errno.ENOSYS, os.rename, place / "ren", place / "ren2")
    refused(errno.EPERM, os.rename, place / "d", place / "d2")
    write(place / "t.tmp")
    refused(errno.ENOSYS, os.replace, place / "t.tmp", place / "t.final")
    assert place.there("ren") and not place.store.exists(BUCKET, "sem/ren2")


def test_deletion_is_off_by_default(place):
    refused(errno.EPERM, os.unlink, place / "todel")
    refused(errno.EPERM, os.rmdir, place / "d")


def test_deletion_where_allowed(permissive):
    os.unlink(permissive / "todel")
    assert not permissive.store.exists(BUCKET, "sem/todel")
    assert not os.path.exists(permissive / "todel")
    refused(errno.EPERM, os.rmdir, permissive / "d")
    refused(errno.EISDIR, os.unlink, permissive / "d")


def test_directories_are_local_until_an_object_is_inside(place):
    os.mkdir(place / "newdir")
    refused(errno.EEXIST, os.mkdir, place / "newdir")
    assert [info.key for info in place.store.list(BUCKET, "sem/newdir")] == []
    os.rmdir(place / "newdir")
    os.makedirs(place / "n/a")
    refused(errno.ENOTEMPTY, os.rmdir, place / "n")
    write(place / "n/a/f")
    assert place.there("n/a/f")
    refused(errno.EPERM, os.rmdir, place / "n/a")


def test_nothing_of_an_object_can_be_changed(place):
    refused(errno.EPERM, os.chmod, place / "rd", 0o600)
    refused(errno.EPERM, os.chown, place / "rd", 1, 1)
    refused(errno.EPERM, os.utime, place / "rd", (1, 1))
    refused(errno.EPERM, os.truncate, place / "rd", 5)
    refused(errno.ENOTSUP, os.setxattr, place / "rd", "user.a", b"1")


def test_no_links_no_special_files(place):
    refused(errno.EPERM, os.symlink, "exist", place / "sl")
    refused(errno.EPERM, os.link, place / "exist", place / "hl")
    refused(errno.EINVAL, os.mkfifo, place / "fifo")


def test_touch(place):
    assert subprocess.run(["touch", place / "touched"], timeout=60).returncode == 0
    assert place.there("touched") and place.content("touched") == b""


def test_no_allocation(place):
    done = subprocess.run(["fallocate", "-l", "10", place / "fa"], capture_output=True, text=True, timeout=60)
    assert "not supported" in done.stderr


def test_a_file_that_is_written_cannot_be_read(place):
    descriptor = os.open(place / "rw", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"x")
    refused(errno.EPERM, os.open, place / "rw", os.O_RDONLY)
    refused(errno.EPERM, os.open, place / "rw", os.O_WRONLY)
    os.close(descriptor)
    assert Path(place / "rw").read_bytes() == b"x"


def test_fsync_publishes_and_ends_the_file(place):
    descriptor = os.open(place / "fsy", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"x")
    os.fsync(descriptor)
    assert place.content("fsy") == b"x"
    refused(errno.EIO, os.write, descriptor, b"y")
    close_quietly(descriptor)
    assert place.content("fsy") == b"x"


def test_no_synchronous_writes(place):
    refused(errno.EINVAL, write, place / "osync", flags=NEW | os.O_SYNC)


def test_a_directory_hides_the_file_of_its_name(place):
    assert os.path.isdir(place / "shadow")
    assert os.listdir(place / "shadow") == ["x"]
    assert os.listdir(place / ".") == sorted(["exist", "exist2", "ren", "d", "shadow", "todel", "rd"])


def test_other_clients_objects_are_seen_at_once(place):
    assert not os.path.exists(place / "late")
    place.store.put(BUCKET, "sem/late", b"1")
    assert os.path.exists(place / "late")
    place.store.put(BUCKET, "sem/late", b"22")
    assert until(lambda: os.stat(place / "late").st_size == 2)
    assert Path(place / "late").read_bytes() == b"22"


def test_an_object_that_is_replaced_while_it_is_read(place):
    place.store.put(BUCKET, "sem/big", bytes(8 << 20))
    with open(place / "big", "rb", buffering=0) as file:
        file.read(10)
        place.store.put(BUCKET, "sem/big", b"1" * (8 << 20))
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
def test_ordinary_programs(place, command):
    assert subprocess.run(["sh", "-c", command.format(place / "out")], timeout=20).returncode == 0
    assert place.there("out")


def test_a_writer_that_is_killed_publishes_what_it_wrote(place):
    script = (
        f"import os, time; f = os.open({place / 'killed'!r}, os.O_WRONLY | os.O_CREAT, 0o644); "
        f"os.write(f, b'z' * 100); print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    assert place.there("killed")
    assert place.content("killed") == b"z" * 100
