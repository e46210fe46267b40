"""The command mount-s3 and its daemon."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from hyperpod_rehearsal.s3.faults import S3Fault
from rehearsal_tests.standins.conftest import BUCKET, PYTHON, mount_line, needs_mounts
from tests.support.wait import Deadline, until

pytestmark = needs_mounts


def test_it_says_what_it_is(s3_node):
    done = s3_node.run("mount-s3", "--version")
    assert done.returncode == 0
    assert done.stdout == "mount-s3 1.22.0+standin (hyperpod-kit rehearsal stand-in, not Mountpoint for Amazon S3)\n"


def test_in_the_background(s3_node, store):
    target = s3_node.mount_point("mnt")
    done = s3_node.run(
        "mount-s3",
        "--allow-other",
        "--read-only",
        "--uid=7",
        "--gid=8",
        "--file-mode=0640",
        "--dir-mode",
        "0750",
        BUCKET,
        target,
    )
    assert (done.returncode, done.stdout) == (0, f"bucket {BUCKET} is mounted at {target}\n")
    source, _, kind, options = mount_line(target)[:4]
    assert (source, kind) == ("mountpoint-s3", "fuse")
    assert options.startswith("ro,nosuid,nodev,noatime,user_id=0,group_id=0,default_permissions,allow_other")
    store.put(BUCKET, "f", b"1")
    status = os.stat(target / "f")
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (7, 8, 0o640)
    assert os.stat(target).st_mode & 0o777 == 0o750
    with pytest.raises(OSError) as caught:
        (target / "new").write_bytes(b"")
    assert caught.value.errno == errno.EROFS


def test_in_the_foreground_it_ends_when_told_to(s3_node):
    target = s3_node.mount_point("mnt")
    process = s3_node.start("mount-s3", "--foreground", BUCKET, target)
    assert Path(f"/proc/{process.pid}/comm").read_text() == "mount-s3\n"
    assert os.listdir(target) == []
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert not mount_line(target)


def test_it_ends_when_unmounted(s3_node):
    target = s3_node.mount_point("mnt")
    process = s3_node.start("mount-s3", "-f", BUCKET, target)
    subprocess.run(["umount", str(target)], check=True, timeout=60)
    assert process.wait(timeout=60) == 0


def test_a_killed_daemon_leaves_a_dead_mount_that_cannot_be_mounted_over(s3_node, store):
    target = s3_node.mount_point("mnt")
    process = s3_node.start("mount-s3", "-f", BUCKET, target)
    descriptor = os.open(target / "half", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"x" * 100)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    with pytest.raises(OSError) as caught:
        os.listdir(target)
    assert caught.value.errno == errno.ENOTCONN
    with pytest.raises(OSError):
        os.close(descriptor)
    done = s3_node.run("mount-s3", BUCKET, target)
    assert (done.returncode, done.stderr) == (1, f"Error: mount point {target} does not exist\n")
    subprocess.run(["umount", "-l", str(target)], check=True, timeout=60)
    s3_node.mount("mount-s3", BUCKET, target)
    assert os.listdir(target) == [] and not store.exists(BUCKET, "half")


def test_the_form_of_fstab(s3_node, store):
    store.put(BUCKET, "deep/er/f", b"1")
    target = s3_node.mount_point("mnt")
    s3_node.mount(
        "mount.mount-s3",
        f"s3://{BUCKET}/deep/",
        target,
        "-o",
        "ro,_netdev,nosuid,nodev,noatime,allow-other,x-systemd.automount,uid=5",
    )
    assert os.listdir(target) == ["er"]
    assert os.stat(target / "er" / "f").st_uid == 5


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([BUCKET], 2, "the following arguments are required: DIRECTORY"),
        ([BUCKET, "MNT", "--no-such-option"], 2, "unrecognized arguments: --no-such-option"),
        ([BUCKET, "MNT", "--prefix", "no-slash"], 2, "must end in '/'"),
        ([BUCKET, "MNT", "--metadata-ttl", "soon"], 2, "--metadata-ttl"),
        (["Not_A_Bucket!", "MNT"], 2, "invalid value 'Not_A_Bucket!' for '<BUCKET_NAME>'"),
        (["no-such-bucket", "MNT"], 1, "404 NoSuchBucket"),
        ([BUCKET, "MNT/absent"], 1, "does not exist"),
        ([BUCKET, "/etc/passwd"], 1, "is not a directory"),
        ([BUCKET, "MNT", "--endpoint-url", "http://127.0.0.1:9"], 1, "initial ListObjectsV2 failed"),
    ],
)
def test_wrong_commands(s3_node, arguments, code, message):
    target = s3_node.mount_point("mnt")
    done = s3_node.run("mount-s3", *(item.replace("MNT", str(target)) for item in arguments))
    assert done.returncode == code and message in done.stderr
    assert not mount_line(target)


def test_mounting_twice(s3_node):
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", BUCKET, target)
    done = s3_node.run("mount-s3", BUCKET, target)
    assert (done.returncode, done.stderr) == (1, f"Error: mount point {target} is already mounted\n")


def test_credentials_are_needed(s3_node):
    target = s3_node.mount_point("mnt")
    s3_node._environment.pop("AWS_ACCESS_KEY_ID")
    done = s3_node.run("mount-s3", BUCKET, target)
    assert done.returncode == 1 and "No signing credentials available" in done.stderr
    # Without a signature a bucket that is not public answers nobody.
    done = s3_node.run("mount-s3", "--no-sign-request", BUCKET, target)
    assert done.returncode == 1 and "403 AccessDenied" in done.stderr


def test_a_short_outage_is_bridged(s3_node, store):
    store.put(BUCKET, "f", b"hello")
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", BUCKET, target)
    store.faults.add(S3Fault(status=503, count=4))
    assert (target / "f").read_bytes() == b"hello"


def test_denied_access_is_an_error_at_once(s3_node, store):
    store.put(BUCKET, "f", b"hello")
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", BUCKET, target)
    store.faults.add(S3Fault(status=403))
    deadline = Deadline(2)
    with pytest.raises(OSError) as caught:
        (target / "f").read_bytes()
    assert caught.value.errno == errno.EIO and not deadline.has_passed()
    store.faults.clear()
    assert (target / "f").read_bytes() == b"hello"


def test_a_failed_upload_fails_the_close_and_leaves_nothing(s3_node, store):
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", BUCKET, target)
    store.faults.add(S3Fault(status=403, method="PUT"))
    with pytest.raises(OSError) as caught:
        (target / "f").write_bytes(bytes(20 << 20))
    assert caught.value.errno == errno.EIO
    store.faults.clear()
    assert not (target / "f").exists()
    assert until(lambda: store.bucket(BUCKET).uploads.list_open_uploads() == [])
    (target / "f").write_bytes(b"again")
    assert store.get(BUCKET, "f") == b"again"


def test_many_entries_and_odd_names(s3_node, store):
    names = sorted([f"{number:04d}" for number in range(1100)] + ["a b&<c>é", "plus+", "per%cent", "quote'\""])
    for name in names:
        store.put(BUCKET, f"many/{name}", b"")
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", BUCKET, target)
    assert os.listdir(target / "many") == names
    for name in names[-4:]:
        assert (target / "many" / name).read_bytes() == b""


def test_reads_in_parallel_and_at_random(s3_node, store):
    data = os.urandom(24 << 20)
    store.put(BUCKET, "big", data)
    target = s3_node.mount_point("mnt")
    s3_node.mount("mount-s3", BUCKET, target, "--allow-other")
    wrong = []

    def read(start):
        with open(target / "big", "rb", buffering=0) as file:
            for step in range(40):
                offset = (start * 7919 + step * 1_234_567) % len(data)
                if os.pread(file.fileno(), 70_000, offset) != data[offset : offset + 70_000]:
                    wrong.append(offset)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    assert (target / "big").read_bytes() == data
    for thread in threads:
        thread.join()
    assert wrong == []


def test_it_runs_on_python_without_site_and_environment(s3_node):
    assert s3_node.command("mount-s3")[:3] == [PYTHON, "-I", "-S"]
