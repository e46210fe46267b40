"""Packages from a URL: pinned, verified, with a deadline, and never twice."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Callable

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.clients.install import install_missing_mount_clients, obtain_verified_file, sha256_of
from tests.support.wait import Deadline
from tests.unit.node.clients.debian_root import ARCH, OTHER_ARCH, DebianRoot
from tests.unit.node.clients.package_server import PackageServer, busy, cut, trickle

DATA = S3Mount("data", "/mnt/data", "bucket")
PROGRAM = "usr/bin/mount-s3"


@pytest.fixture
def deb(debian: DebianRoot) -> Path:
    return debian.deb("mount-s3", "1.22.0", files=[PROGRAM])


def test_once_for_the_life_of_the_node_and_for_its_architecture_alone(
    debian: DebianRoot, deb: Path, server: PackageServer
) -> None:
    mine = debian.listed(deb, url=server.offer(f"/1.22.0/{ARCH}/mount-s3.deb", deb.read_bytes()))
    other = debian.listed(deb, url=server.offer(f"/1.22.0/{OTHER_ARCH}/mount-s3.deb", b"other"), arch=OTHER_ARCH)
    node = debian.node([DATA], [other, mine])
    assert install_missing_mount_clients(node)[0] is True
    assert install_missing_mount_clients(node) == (False, "")
    assert server.asked == [f"/1.22.0/{ARCH}/mount-s3.deb"]
    assert list(Path(node.paths.package_cache).iterdir()) == []  # what is installed needs no second copy


@pytest.mark.parametrize("first", [busy, cut])
def test_another_try_cures_what_passes(debian: DebianRoot, deb: Path, server: PackageServer, first: Any) -> None:
    server.behaviours = [first]
    package = debian.listed(deb, url=server.offer("/mount-s3.deb", deb.read_bytes()))
    assert sha256_of(obtain_verified_file(debian.node([DATA]), package, seconds=20)) == package.sha256
    assert len(server.asked) == 2


def test_what_a_crash_left_is_used_when_it_is_whole(debian: DebianRoot, deb: Path, server: PackageServer) -> None:
    package = debian.listed(deb, url=server.offer("/mount-s3.deb", deb.read_bytes()))
    node = debian.node([DATA])
    path = Path(obtain_verified_file(node, package))
    assert obtain_verified_file(node, package) == str(path) and len(server.asked) == 1
    path.write_bytes(path.read_bytes()[:100])
    assert sha256_of(obtain_verified_file(node, package)) == package.sha256 and len(server.asked) == 2


def test_a_file_that_changed_under_its_name(debian: DebianRoot, deb: Path, server: PackageServer) -> None:
    package = debian.listed(deb, url=server.offer("/mount-s3.deb", deb.read_bytes() + b"\n"))
    node = debian.node([DATA], [package])
    with pytest.raises(NodeError, match=rf"/mount-s3\.deb: expected sha256 {package.sha256}, found [0-9a-f]{{64}}"):
        install_missing_mount_clients(node)
    assert server.asked == ["/mount-s3.deb"] and debian.changes() == []
    assert list(Path(node.paths.package_cache).iterdir()) == []


def test_a_url_that_is_wrong_is_said_at_once(debian: DebianRoot, deb: Path, server: PackageServer) -> None:
    package = debian.listed(deb, url=server.offer("/x", b"") + "/mount-s3.deb")
    with pytest.raises(NodeError, match=r"/x/mount-s3\.deb: HTTP 404"):
        obtain_verified_file(debian.node([DATA]), package)
    assert len(server.asked) == 1


def refusing_port() -> str:
    bound = socket.socket()  # has the port, and does not listen
    bound.bind(("127.0.0.1", 0))
    OPEN.append(bound)
    return f"http://127.0.0.1:{bound.getsockname()[1]}/mount-s3.deb"


def silent_port() -> str:
    listening = socket.create_server(("127.0.0.1", 0))  # accepts and never answers
    OPEN.append(listening)
    return f"http://127.0.0.1:{listening.getsockname()[1]}/mount-s3.deb"


OPEN: list[socket.socket] = []


@pytest.mark.parametrize(
    "where, said",
    [
        (refusing_port, "Connection refused"),
        (silent_port, "timed out"),
        (lambda: "http://nowhere.invalid/mount-s3.deb", "not known|resolution|No address"),
    ],
)
def test_a_network_that_is_not_there_costs_bounded_time(
    debian: DebianRoot, deb: Path, where: Callable[[], str], said: str
) -> None:
    package = debian.listed(deb, url=where())
    deadline = Deadline(15)
    with pytest.raises(NodeError, match=rf"no download within 1\.5 s: .*({said})") as caught:
        obtain_verified_file(debian.node([DATA]), package, seconds=1.5)
    assert not deadline.has_passed()
    assert "no internet access" in str(caught.value.hint)
    while OPEN:
        OPEN.pop().close()


def test_a_server_that_trickles_is_given_up(debian: DebianRoot, deb: Path, server: PackageServer) -> None:
    server.behaviours = [trickle] * 9
    package = debian.listed(deb, url=server.offer("/mount-s3.deb", deb.read_bytes()))
    deadline = Deadline(10)
    with pytest.raises(NodeError, match=r"no download within 1 s: \d+ bytes in time, of \d+"):
        obtain_verified_file(debian.node([DATA]), package, seconds=1.0)
    assert not deadline.has_passed()
