"""mount.efs and mount.lustre: two mounts are two nodes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from .conftest import EFS, LUSTRE_DNS, OTHER_USER, POINT, SYSTEM_PYTHON, USER, eventually, mount_line, needs_mounts

pytestmark = needs_mounts


@pytest.fixture
def efs(node):
    target = node.mount_point("efs")
    node.mount("mount.efs", f"{EFS}:/", target, "-o", f"rw,tls,accesspoint={POINT}")
    return target


@pytest.fixture
def efs_elsewhere(node):
    target = node.mount_point("efs2")
    node.mount("mount.efs", f"{EFS}:/", target, "-o", f"tls,accesspoint={POINT}")
    return target


def mount_lustre(node, name):
    target = node.mount_point(name)
    node.mount("mount.lustre", f"{LUSTRE_DNS}@tcp:/abcdefgh", target, "-o", "noatime,flock")
    return target


@pytest.fixture
def lustre(node):
    return mount_lustre(node, "fsx")


@pytest.fixture
def lustre_elsewhere(node):
    return mount_lustre(node, "fsx2")


def as_user(uid, script, *arguments, groups=()):
    """Run Python as another user; its output, or the name of the errno it died of."""
    code = f"import os, sys, errno\ntry:\n exec({script!r})\nexcept OSError as e:\n print(errno.errorcode[e.errno])"
    done = subprocess.run([SYSTEM_PYTHON, "-c", code, *map(str, arguments)], capture_output=True, text=True,
                          timeout=20, user=uid, group=uid, extra_groups=list(groups), cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refused(number, call, *arguments, **named):
    with pytest.raises(OSError) as caught:
        call(*arguments, **named)
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number]


def number_of(call, *arguments):
    """The errno that a call fails with, or 0."""
    try:
        call(*arguments)
    except OSError as err:
        return err.errno
    return 0


def test_they_say_what_they_are(node):
    for program in ("mount.efs", "mount.lustre"):
        done = node.run(program, "--version")
        assert done.returncode == 0 and "stand-in" in done.stdout


def test_what_is_shown_in_the_mount_table(efs, lustre):
    assert mount_line(efs)[:3] == ["127.0.0.1:/", str(efs), "fuse.efs"]
    assert mount_line(lustre)[:3] == ["10.1.0.1@tcp:/abcdefgh", str(lustre), "fuse.lustre"]
    assert "noatime" in mount_line(lustre)[3] and "ro" not in mount_line(efs)[3].split(",")


def test_an_access_points_root_is_made_on_first_use(efs, node):
    made = os.stat(node.directory / "data" / "efs" / EFS / "home" / "trainer")
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (USER, USER, 0o750)


def test_everyone_is_the_access_points_user(efs):
    (efs / "by-root").write_text("1")
    as_user(OTHER_USER, "open(sys.argv[1], 'w').write('2')", efs / "by-other")
    for name in ("by-root", "by-other"):
        assert (os.stat(efs / name).st_uid, os.stat(efs / name).st_gid) == (USER, USER)
    os.mkdir(efs / "d")
    assert os.stat(efs / "d").st_uid == USER


def test_root_is_no_one_special_on_efs(efs, node):
    server = node.directory / "data" / "efs" / EFS / "home" / "trainer"
    (server / "secret").write_text("of another")
    os.chown(server / "secret", OTHER_USER, OTHER_USER)
    os.chmod(server / "secret", 0o600)
    refused(errno.EACCES, (efs / "secret").read_text)
    assert not os.access(efs / "secret", os.R_OK)
    (efs / "mine").write_text("1")
    refused(errno.EPERM, os.chown, efs / "mine", 0, 0)
    os.chown(efs / "mine", -1, 2100)        # a secondary group of the access point's user
    assert os.access(efs / "mine", os.R_OK | os.W_OK) and not os.access(efs / "mine", os.X_OK)


@pytest.mark.parametrize(("source", "options", "code", "message"), [
    (f"{EFS}:/", f"accesspoint={POINT}", 1, 'The "tls" option is required when mounting via "accesspoint"'),
    (f"{EFS}:/", "iam", 1, 'The "tls" option is required when mounting via "iam"'),
    (f"{EFS}:/sub", f"tls,accesspoint={POINT}", 1, 'the path must be "/"'),
    (f"{EFS}:/", "tls,accesspoint=fsap-0000", 32, "access denied by server"),
    (f"{EFS}:/", "tls,accesspoint=fsap-00000000000000001", 32, "access denied by server"),
    (f"{EFS}:/", "tls,accesspoint=fsap-00000000000000002", 32, "access denied by server"),
    ("fs-99999999:/", "tls", 1, 'Failed to resolve "fs-99999999.efs.us-east-1.amazonaws.com"'),
    ("not-a-file-system:/", "tls", 1, "Invalid file system name"),
    (f"{EFS}:/absent", "tls", 32, "No such file or directory"),
    (f"{EFS}:/", "tls,typo=1", 32, "an incorrect mount option was specified (typo)"),
])
def test_efs_refuses(node, source, options, code, message):
    target = node.mount_point("mnt")
    done = node.run("mount.efs", source, target, "-o", options)
    assert done.returncode == code and message in done.stderr
    assert not mount_line(target)


def test_efs_by_name_without_access_point(node):
    target = node.mount_point("mnt")
    node.mount("mount.efs", f"{EFS}.efs.us-east-1.amazonaws.com:/", target, "-o", "tls,ro,_netdev")
    refused(errno.EROFS, (target / "f").write_text, "")


@pytest.mark.parametrize(("source", "options", "code"), [
    (f"{LUSTRE_DNS}@tcp:/wrong", "flock", 2), ("other.dns@tcp:/abcdefgh", "flock", 2), ("nonsense", "flock", 22),
    (f"{LUSTRE_DNS}@tcp:/abcdefgh", "flock,typo", 22)])
def test_lustre_refuses(node, source, options, code):
    target = node.mount_point("mnt")
    done = node.run("mount.lustre", source, target, "-o", options)
    assert done.returncode == code and "mount.lustre" in done.stderr
    assert not mount_line(target)


def test_on_lustre_everyone_is_himself(lustre):
    (lustre / "by-root").write_text("1")
    as_user(OTHER_USER, "open(sys.argv[1], 'w').write('2')", lustre / "by-other")
    assert os.stat(lustre / "by-root").st_uid == 0
    assert (os.stat(lustre / "by-other").st_uid, os.stat(lustre / "by-other").st_gid) == (OTHER_USER, OTHER_USER)
    os.chmod(lustre / "by-root", 0o600)
    assert as_user(OTHER_USER, "open(sys.argv[1])", lustre / "by-root") == "EACCES"
    assert as_user(OTHER_USER, "os.unlink(sys.argv[1])", lustre / "by-root") in ("EPERM", "EACCES")     # sticky


def test_supplementary_groups_count(lustre):
    os.mkdir(lustre / "team")
    os.chown(lustre / "team", 0, 4000)
    os.chmod(lustre / "team", 0o2770)
    script = "open(sys.argv[1], 'w').write('1')"
    assert as_user(OTHER_USER, script, lustre / "team" / "f") == "EACCES"
    assert as_user(OTHER_USER, script, lustre / "team" / "f", groups=[4000]) == ""
    assert (os.stat(lustre / "team" / "f").st_uid, os.stat(lustre / "team" / "f").st_gid) == (OTHER_USER, 4000)


def test_the_callers_umask_counts(lustre):
    assert as_user(OTHER_USER, "os.umask(0o077); os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o666))",
                   lustre / "f") == ""
    assert stat.S_IMODE(os.stat(lustre / "f").st_mode) == 0o600


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

    threads = [threading.Thread(target=create, args=((lustre, lustre_elsewhere)[number % 2], number))
               for number in range(12)]
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
    found = os.stat(path)
    assert (stat.S_IMODE(found.st_mode), found.st_atime_ns, found.st_mtime_ns) == (
        0o604, 1_500_000_000_123_456_789, -1_000_000_001)
    subprocess.run(["touch", "-a", str(path)], check=True, timeout=10)
    assert os.stat(path).st_mtime_ns == -1_000_000_001 and os.stat(path).st_atime > 1_600_000_000
    assert os.statvfs(efs).f_bavail > 0


def test_rename_that_may_not_replace(efs):
    (efs / "a").write_text("a")
    (efs / "b").write_text("b")
    assert subprocess.run(["mv", "-n", str(efs / "a"), str(efs / "b")], timeout=10).returncode in (0, 1)
    assert (efs / "b").read_text() == "b"


def test_syncing_files_and_directories(efs):
    with open(efs / "f", "wb") as file:
        file.write(b"1")
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())
    descriptor = os.open(efs, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_direct_and_mapped_io(lustre):
    done = subprocess.run(["dd", "if=/dev/zero", f"of={lustre}/direct", "bs=1M", "count=4", "oflag=direct"],
                          capture_output=True, timeout=20)
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


def test_many_files_do_not_use_up_descriptors(lustre):
    for number in range(3000):
        (lustre / f"f{number}").write_text("")
    assert len(os.listdir(lustre)) == 3000
    assert sum(entry.stat().st_size for entry in os.scandir(lustre)) == 0
    subprocess.run(["rm", "-rf", *(str(lustre / name) for name in os.listdir(lustre))], check=True, timeout=20)
    assert os.listdir(lustre) == []


def daemon_of(target):
    """Process id of the daemon: its command line ends with the options of this mount."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(target) in command and b"-I" in command:
                return int(entry)
    return None


def test_the_daemon_ends_with_its_mount(efs):
    process = daemon_of(efs)
    assert Path(f"/proc/{process}/comm").read_text() == "mount.efs\n"
    subprocess.run(["umount", str(efs)], check=True, timeout=10)
    assert eventually(lambda: daemon_of(efs) is None)


def test_a_killed_daemon_leaves_a_dead_mount(node, efs):
    (efs / "f").write_text("1")
    os.kill(daemon_of(efs), signal.SIGKILL)
    # A request that the daemon takes with it fails with ECONNABORTED; from then on the endpoint is gone.
    assert eventually(lambda: number_of(os.listdir, efs) == errno.ENOTCONN)
    subprocess.run(["umount", "-l", str(efs)], check=True, timeout=10)
    node.mount("mount.efs", f"{EFS}:/", efs, "-o", f"tls,accesspoint={POINT}")
    assert (efs / "f").read_text() == "1"


def test_a_told_daemon_unmounts(lustre):
    os.kill(daemon_of(lustre), signal.SIGTERM)
    assert eventually(lambda: not mount_line(lustre))
