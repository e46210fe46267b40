"""Files on mount.efs and mount.lustre; two mounts are two nodes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import subprocess
import threading

import pytest

from rehearsal_tests.standins.conftest import needs_mounts, refused

pytestmark = needs_mounts


def test_what_one_node_writes_another_reads_at_once(lustre, lustre_elsewhere):
    for number in range(50):
        assert not (lustre_elsewhere / f"ckpt-{number}").exists()
        (lustre / "part").write_bytes(b"x" * number)
        os.rename(lustre / "part", lustre / f"ckpt-{number}")
        assert (lustre_elsewhere / f"ckpt-{number}").read_bytes() == b"x" * number


def test_a_file_that_is_replaced_is_seen_by_the_next_open(lustre, lustre_elsewhere):
    for number in range(50):
        (lustre / "new").write_text(f"generation {number}")
        os.replace(lustre / "new", lustre / "latest")
        assert (lustre_elsewhere / "latest").read_text() == f"generation {number}"


def test_a_file_that_grows_is_seen_by_the_next_open(lustre, lustre_elsewhere):
    with open(lustre / "log", "ab", buffering=0) as file:
        for number in range(1, 50):
            file.write(b"line\n")
            assert len((lustre_elsewhere / "log").read_bytes()) == 5 * number
    with open(lustre_elsewhere / "log", "ab") as file:
        file.write(b"other\n")
    assert (lustre / "log").read_bytes().endswith(b"line\nother\n")


def test_changes_in_place_are_seen_by_the_next_open(lustre, lustre_elsewhere):
    (lustre / "f").write_bytes(b"a" * 5000)
    assert (lustre_elsewhere / "f").read_bytes() == b"a" * 5000
    with open(lustre / "f", "r+b") as file:
        file.seek(100)
        file.write(b"bbb")
    assert (lustre_elsewhere / "f").read_bytes()[98:105] == b"aabbbaa"


def test_a_removed_file_is_gone_elsewhere_and_readable_where_open(efs, efs_elsewhere):
    (efs / "f").write_text("content")
    with open(efs_elsewhere / "f") as file:
        os.unlink(efs / "f")
        assert file.read() == "content"
        assert os.fstat(file.fileno()).st_nlink == 0
        os.fchmod(file.fileno(), 0o600)
    assert not (efs_elsewhere / "f").exists()


def test_of_many_exclusive_creators_one_wins(lustre, lustre_elsewhere):
    won = []

    def create(directory, number):
        try:
            os.close(os.open(directory / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            won.append(number)
        except FileExistsError:
            pass

    threads = [
        threading.Thread(target=create, args=((lustre, lustre_elsewhere)[number % 2], number)) for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_link_decides_once(efs, efs_elsewhere):
    (efs / "mine").write_text("mine")
    (efs_elsewhere / "yours").write_text("yours")
    os.link(efs / "mine", efs / "decision")
    refused(errno.EEXIST, os.link, efs_elsewhere / "yours", efs_elsewhere / "decision")
    assert (efs_elsewhere / "decision").read_text() == "mine"
    assert os.stat(efs_elsewhere / "decision").st_nlink == 2
    assert os.stat(efs / "mine").st_ino == os.stat(efs / "decision").st_ino


def test_names(efs):
    os.makedirs(efs / "a" / "b")
    (efs / "a" / "é\udce9 x").write_text("1")
    os.symlink("a/b", efs / "link")
    assert os.readlink(efs / "link") == "a/b" and (efs / "link").is_dir()
    os.mkfifo(efs / "fifo")
    assert stat.S_ISFIFO(os.stat(efs / "fifo").st_mode)
    assert sorted(os.listdir(efs)) == ["a", "fifo", "link"]
    refused(errno.ENOTEMPTY, os.rmdir, efs / "a")
    os.rename(efs / "a", efs / "c")
    assert sorted(os.listdir(efs / "c")) == ["b", "é\udce9 x"]
    os.rmdir(efs / "c" / "b")
    refused(errno.ENOENT, os.stat, efs / "c" / "b")


def test_attributes(efs):
    path = efs / "f"
    path.write_bytes(b"0123456789")
    os.truncate(path, 4)
    assert path.read_bytes() == b"0123"
    with open(path, "r+b") as file:
        file.truncate(6)
    assert path.read_bytes() == b"0123\0\0"
    os.chmod(path, 0o604)
    os.utime(path, ns=(1_500_000_000_123_456_789, -1_000_000_001))
    status = os.stat(path)
    assert (stat.S_IMODE(status.st_mode), status.st_atime_ns, status.st_mtime_ns) == (
        0o604,
        1_500_000_000_123_456_789,
        -1_000_000_001,
    )
    subprocess.run(["touch", "-a", str(path)], check=True, timeout=60)
    assert os.stat(path).st_mtime_ns == -1_000_000_001 and os.stat(path).st_atime > 1_600_000_000
    assert os.statvfs(efs).f_bavail > 0


def test_rename_that_may_not_replace(efs):
    (efs / "a").write_text("a")
    (efs / "b").write_text("b")
    assert subprocess.run(["mv", "-n", str(efs / "a"), str(efs / "b")], timeout=60).returncode in (0, 1)
    assert (efs / "b").read_text() == "b"


def test_syncing_files_and_directories(efs):
    """No error is all that is asked: what a sync keeps shows at a power cut only."""
    with open(efs / "f", "wb") as file:
        file.write(b"1")
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())
    descriptor = os.open(efs, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_direct_and_mapped_io(lustre):
    done = subprocess.run(
        ["dd", "if=/dev/zero", f"of={lustre}/direct", "bs=1M", "count=4", "oflag=direct"],
        capture_output=True,
        timeout=20,
    )
    assert done.returncode == 0 and os.stat(lustre / "direct").st_size == 4 << 20
    with open(lustre / "direct", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[4096:4100] = b"mmap"
        mapped.flush()
    assert (lustre / "direct").read_bytes()[4096:4100] == b"mmap"


def test_locks_stay_on_the_node(lustre):
    with open(lustre / "f", "w") as first, open(lustre / "f", "w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        refused(errno.EWOULDBLOCK, fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_reading_and_writing_from_many_threads(lustre, lustre_elsewhere):
    blocks = [os.urandom(3 << 20) for _ in range(4)]

    def write(number):
        with open(lustre / f"part-{number}", "wb") as file:
            file.write(blocks[number])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(lustre_elsewhere / f"part-{number}").read_bytes() for number in range(4)] == blocks


def test_a_directory_can_be_listed_again_through_the_same_handle(lustre, lustre_elsewhere):
    descriptor = os.open(lustre, os.O_RDONLY | os.O_DIRECTORY)
    assert os.listdir(descriptor) == []
    (lustre_elsewhere / "new").write_text("")
    assert os.listdir(descriptor) == ["new"]
    os.close(descriptor)


@pytest.mark.full
def test_many_files_do_not_use_up_descriptors(lustre):
    for number in range(3000):
        (lustre / f"f{number}").write_text("")
    assert len(os.listdir(lustre)) == 3000
    assert sum(entry.stat().st_size for entry in os.scandir(lustre)) == 0
    subprocess.run(["rm", "-rf", *(str(lustre / name) for name in os.listdir(lustre))], check=True, timeout=20)
    assert os.listdir(lustre) == []
