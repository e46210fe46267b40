"""mount.efs and mount.lustre: options, identities, and the daemon behind a mount."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from rehearsal_tests.standins.conftest import (
    EFS,
    LUSTRE_DNS,
    OTHER_USER,
    POINT,
    SYSTEM_PYTHON,
    USER,
    mount_line,
    needs_mounts,
    refused,
)
from tests.support.wait import until

pytestmark = needs_mounts


def as_user(uid, script, *arguments, groups=()):
    """Run Python as another user; its output, or the name of the errno it died of."""
    code = f"import os, sys, errno\ntry:\n exec({script!r})\nexcept OSError as e:\n print(errno.errorcode[e.errno])"
    done = subprocess.run(
        [SYSTEM_PYTHON, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=20,
        user=uid,
        group=uid,
        extra_groups=list(groups),
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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


def test_a_root_that_was_removed_on_the_server_is_stale(efs, node):
    (node.directory / "data" / "efs" / EFS / "home" / "trainer").rmdir()
    # The kernel believes for a second what it knew, as an NFS client does.
    assert until(lambda: number_of(os.stat, efs) == errno.ESTALE)


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
    os.chown(efs / "mine", -1, 2100)  # a secondary group of the access point's user
    assert os.access(efs / "mine", os.R_OK | os.W_OK) and not os.access(efs / "mine", os.X_OK)


@pytest.mark.parametrize(
    ("source", "options", "code", "message"),
    [
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
    ],
)
def test_efs_refuses(node, source, options, code, message):
    target = node.mount_point("mnt")
    done = node.run("mount.efs", source, target, "-o", options)
    assert done.returncode == code and message in done.stderr
    assert not mount_line(target)


def test_efs_by_name_without_access_point(node):
    target = node.mount_point("mnt")
    node.mount("mount.efs", f"{EFS}.efs.us-east-1.amazonaws.com:/", target, "-o", "tls,ro,_netdev")
    refused(errno.EROFS, (target / "f").write_text, "")


@pytest.mark.parametrize(
    ("source", "options", "code"),
    [
        (f"{LUSTRE_DNS}@tcp:/wrong", "flock", 2),
        ("other.dns@tcp:/abcdefgh", "flock", 2),
        ("nonsense", "flock", 22),
        (f"{LUSTRE_DNS}@tcp:/abcdefgh", "flock,typo", 22),
    ],
)
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
    assert as_user(OTHER_USER, "os.unlink(sys.argv[1])", lustre / "by-root") in ("EPERM", "EACCES")  # sticky


def test_supplementary_groups_count(lustre):
    os.mkdir(lustre / "team")
    os.chown(lustre / "team", 0, 4000)
    os.chmod(lustre / "team", 0o2770)
    script = "open(sys.argv[1], 'w').write('1')"
    assert as_user(OTHER_USER, script, lustre / "team" / "f") == "EACCES"
    assert as_user(OTHER_USER, script, lustre / "team" / "f", groups=[4000]) == ""
    assert (os.stat(lustre / "team" / "f").st_uid, os.stat(lustre / "team" / "f").st_gid) == (OTHER_USER, 4000)


def test_the_callers_umask_counts(lustre):
    assert (
        as_user(
            OTHER_USER, "os.umask(0o077); os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o666))", lustre / "f"
        )
        == ""
    )
    assert stat.S_IMODE(os.stat(lustre / "f").st_mode) == 0o600


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
    subprocess.run(["umount", str(efs)], check=True, timeout=60)
    assert until(lambda: daemon_of(efs) is None)


def test_a_killed_daemon_leaves_a_dead_mount(node, efs):
    (efs / "f").write_text("1")
    os.kill(daemon_of(efs), signal.SIGKILL)
    # A request that the daemon takes with it fails with ECONNABORTED; from then on the endpoint is gone.
    assert until(lambda: number_of(os.listdir, efs) == errno.ENOTCONN)
    subprocess.run(["umount", "-l", str(efs)], check=True, timeout=60)
    node.mount("mount.efs", f"{EFS}:/", efs, "-o", f"tls,accesspoint={POINT}")
    assert (efs / "f").read_text() == "1"


def test_a_told_daemon_unmounts(lustre):
    os.kill(daemon_of(lustre), signal.SIGTERM)
    assert until(lambda: not mount_line(lustre))
