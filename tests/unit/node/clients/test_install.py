"""A client that is missing is installed, from the bundle, with what it needs and nothing else."""

from __future__ import annotations

import socket
import subprocess
from typing import Any

import pytest

from hyperpod_kit.errors import BundleIntegrityError, NodeError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.clients.install import describe_pending_changes, install_missing_mount_clients
from tests.unit.node.clients.debian_root import ARCH, KERNEL, OTHER_ARCH, DebianRoot

DATA = S3Mount("data", "/mnt/data", "bucket")
HOME = EfsMount("home", "/efs", "fs-0123456789abcdef0")
FSX = LustreMount("fsx", "/fsx", "fs-1.fsx.us-east-1.amazonaws.com", "abcdefgh")
PROGRAM = "usr/bin/mount-s3"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_out_of_the_bundle_without_a_network_and_only_once(debian: DebianRoot, offline: None) -> None:
    s3 = debian.listed(debian.deb("mount-s3", "1.22.0", depends="libfuse2", files=[PROGRAM]))
    fuse = debian.listed(debian.deb("libfuse2", "2.9.9-5"), client="mount-s3")
    efs = debian.listed(debian.deb("amazon-efs-utils", "3.1.0", files=["usr/sbin/mount.efs"]))
    node = debian.node([DATA, HOME], [fuse, s3, efs])
    assert describe_pending_changes(node) == (
        "install mount-s3, libfuse2: /usr/bin/mount-s3 is not installed; "
        "install amazon-efs-utils: /usr/sbin/mount.efs is not installed"
    )
    assert debian.changes() == []
    changed, detail = install_missing_mount_clients(node)
    assert changed and detail == (
        "installed mount-s3 1.22.0: /usr/bin/mount-s3 is not installed; "
        "installed amazon-efs-utils 3.1.0: /usr/sbin/mount.efs is not installed"
    )
    done = subprocess.run([str(debian.root / PROGRAM)], stdout=subprocess.PIPE, timeout=60)
    assert done.stdout == b"mount-s3 1.22.0\n"
    assert debian.installed() == {
        "mount-s3": "1.22.0 install installed",
        "libfuse2": "2.9.9-5 install installed",
        "amazon-efs-utils": "3.1.0 install installed",
    }
    before = debian.changes()
    assert install_missing_mount_clients(node) == (False, "") and describe_pending_changes(node) == ""
    assert debian.changes() == before


@pytest.mark.parametrize(
    "says, listed, becomes",
    [
        ("mount-s3 1.22.0", "1.22.0", "mount-s3 1.22.0"),  # the same
        ("mount-s3 1.30.1+1.amzn", "1.22.0", "mount-s3 1.30.1+1.amzn"),  # newer: never put back
        ("mount-s3 1.21.9", "1.22.0", "mount-s3 1.22.0"),  # older than listed
        ("mount-s3 1.8.0", None, "mount-s3 1.8.0"),  # nothing is listed, and it will do
        ("a build that says no number", "1.22.0", "a build that says no number"),
    ],
)
def test_what_is_there_is_kept_unless_it_is_older(debian: DebianRoot, says: str, listed: Any, becomes: str) -> None:
    program = debian.root / PROGRAM
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "{says}"\n')
    program.chmod(0o755)
    packages = [debian.listed(debian.deb("mount-s3", listed, files=[PROGRAM]))] if listed else []
    node = debian.node([DATA], packages)
    changed, _ = install_missing_mount_clients(node)
    assert changed is (says != becomes)
    assert subprocess.run([str(program)], stdout=subprocess.PIPE, timeout=60, text=True).stdout.strip() == becomes
    assert changed or debian.changes() == []
    assert install_missing_mount_clients(node) == (False, "")


@pytest.mark.parametrize(
    "script, said",
    [
        (None, "/usr/bin/mount-s3 is not installed"),
        ('echo "mount-s3 1.4.0"', "/usr/bin/mount-s3 is 1.4.0, older than 1.8.0"),
        ("echo libfuse.so.2: cannot open >&2; exit 127", "is installed, but does not run: .*libfuse"),
    ],
)
def test_nothing_is_listed_that_would_help(debian: DebianRoot, script: Any, said: str) -> None:
    if script:
        program = debian.root / PROGRAM
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    other = debian.listed(debian.deb("mount-s3", "1.22.0", files=[PROGRAM]), arch=OTHER_ARCH)
    with pytest.raises(NodeError, match=said) as caught:
        install_missing_mount_clients(debian.node([DATA], [other]))
    assert caught.value.hint == (
        f"list mount-s3 for {'amd64' if ARCH == 'x86_64' else 'arm64'} under "
        "hyperpod_kit.clients, or use an image that has it; "
        f"listed are mount-s3 for {OTHER_ARCH}"
    )
    assert debian.changes() == []


def test_a_needed_package_that_nobody_lists(debian: DebianRoot) -> None:
    s3 = debian.listed(debian.deb("mount-s3", "1.22.0", depends="libfuse2 (>= 2.9), fuse3", files=[PROGRAM]))
    with pytest.raises(NodeError) as caught:
        install_missing_mount_clients(debian.node([DATA], [s3]))
    assert caught.value.message == ("cannot install mount-s3: mount-s3 needs libfuse2 (>= 2.9); mount-s3 needs fuse3")
    assert "same `client`" in str(caught.value.hint)
    # The same when the machine's own sources have it, in whatever version that is today.
    debian.put_in_sources(debian.deb("libfuse2", "3.0.1"), debian.deb("fuse3", "3.14.0"))
    with pytest.raises(NodeError, match="installing mount-s3 would also install ") as caught:
        install_missing_mount_clients(debian.node([DATA], [s3]))
    assert "libfuse2 3.0.1" in caught.value.message and "fuse3 3.14.0" in caught.value.message
    assert debian.installed() == {} and debian.changes() == []


def test_what_would_have_to_go_stays(debian: DebianRoot) -> None:
    old = debian.deb("amazon-efs-utils", "2.0.0", depends="stunnel4", files=["usr/sbin/mount.efs"])
    stunnel = debian.deb("stunnel4", "5.0")
    install_missing_mount_clients(debian.node([HOME], [debian.listed(old), debian.listed(stunnel, client="efs-utils")]))
    tree = debian.root / "tmp/amazon-efs-utils_3.1.0_x"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: amazon-efs-utils\nVersion: 3.1.0\nArchitecture: all\n"
        "Maintainer: T <t@example.com>\nConflicts: stunnel4\nDescription: t\n"
    )
    target = debian.root / "debs/amazon-efs-utils_3.1.0_all.deb"
    subprocess.run(["dpkg-deb", "-Znone", "-b", str(tree), str(target)], check=True, stdout=subprocess.DEVNULL)
    with pytest.raises(NodeError, match="installing amazon-efs-utils would remove stunnel4"):
        install_missing_mount_clients(debian.node([HOME], [debian.listed(target)]))
    assert debian.installed()["stunnel4"] == "5.0 install installed"


def test_a_damaged_package_never_reaches_dpkg(debian: DebianRoot) -> None:
    s3 = debian.listed(debian.deb("mount-s3", "1.22.0", files=[PROGRAM]))
    node = debian.node([DATA], [s3])
    place = debian.root / "opt/hyperpod-kit/current" / s3.bundle_path
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)
    with pytest.raises(BundleIntegrityError, match=r"packages/.*/mount-s3_1\.22\.0_.*\.deb is damaged"):
        install_missing_mount_clients(node)
    place.unlink()
    with pytest.raises(NodeError, match="is not in the bundle"):
        install_missing_mount_clients(node)
    assert [call for call in debian.calls if call.startswith("apt")] == []


def test_a_file_that_is_another_package(debian: DebianRoot) -> None:
    other = debian.deb("mount-s3", "1.19.0", files=[PROGRAM])
    with pytest.raises(NodeError, match=r"is mount-s3 1\.19\.0 for \w+, listed as mount-s3 1\.22\.0 for"):
        install_missing_mount_clients(debian.node([DATA], [debian.listed(other, version="1.22.0")]))
    text = debian.root / "debs" / f"mount-s3_1.23.0_{'amd64' if ARCH == 'x86_64' else 'arm64'}.deb"
    text.write_text("<html>Access Denied</html>")
    with pytest.raises(NodeError, match="is not a Debian package"):
        install_missing_mount_clients(debian.node([DATA], [debian.listed(text)]))
    assert [call for call in debian.calls if call.startswith("apt")] == []


def test_a_package_that_does_not_bring_what_it_should(debian: DebianRoot) -> None:
    s3 = debian.listed(debian.deb("mount-s3", "1.22.0", files=[PROGRAM], says="mount-s3 1.20.0"))
    with pytest.raises(NodeError, match=r"mount-s3 1\.22\.0 is installed, but still /usr/bin/mount-s3 is 1\.20\.0"):
        install_missing_mount_clients(debian.node([DATA], [s3]))


def test_an_optional_mount_does_not_fail_the_node(debian: DebianRoot) -> None:
    optional = S3Mount("data", "/mnt/data", "bucket", required=False)
    assert install_missing_mount_clients(debian.node([optional])) == (False, "data: /usr/bin/mount-s3 is not installed")
    with pytest.raises(NodeError, match=r"mount-s3 is not installed; /usr/sbin/mount\.efs is not installed"):
        install_missing_mount_clients(debian.node([DATA, HOME]))


def test_a_kernel_is_never_brought_along(debian: DebianRoot) -> None:
    module = f"lustre-client-modules-{KERNEL}"
    debian.put_in_sources(debian.deb("linux-image-9.9.9-1-aws", "9.9.9-1"))
    wrong = debian.listed(debian.deb(module, "2.15.6-1", depends="linux-image-9.9.9-1-aws"))
    helper = debian.root / "usr/sbin/mount.lustre"
    helper.parent.mkdir(parents=True)
    helper.write_text("#!/bin/sh\n")
    helper.chmod(0o755)
    with pytest.raises(NodeError, match=r"would also install linux-image-9\.9\.9-1-aws .*") as caught:
        install_missing_mount_clients(debian.node([FSX], [wrong]))
    assert "a kernel" in str(caught.value.hint)
    assert debian.installed() == {} and debian.changes() == []
