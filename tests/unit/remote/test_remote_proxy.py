"""ssh through a command, as a tunnel of SSM or a bastion is used: a real program between two real sockets."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hyperpod_kit.errors import Unreachable, UsageError
from hyperpod_kit.remote.connect.ssh import SshRunner
from hyperpod_kit.remote.connect.ssh_access import SshAccess, expand_command
from tests.support.wait import Deadline

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network

TUNNEL = """
import os, select, socket, sys
open(sys.argv[3], "a").write(f"{os.getpid()} {sys.argv[1]}\\n")
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for end in select.select([0, there], [], [])[0]:
        data = os.read(0, 65536) if end == 0 else there.recv(65536)
        if not data:
            sys.exit(0)
        there.sendall(data) if end == 0 else os.write(1, data)
"""


def proxied(network: Network, command: str) -> SshAccess:
    return SshAccess(replace(network.settings, proxy=command))


def test_a_command_carries_the_connection_and_is_gone_afterwards(network: Network, tmp_path: Path) -> None:
    (tmp_path / "tunnel.py").write_text(TUNNEL)
    node = network.node(lambda command: (3, "o" * 300_000, "err"))
    access = proxied(network, f"{sys.executable} '{tmp_path}/tunnel.py' %h %p {tmp_path}/used")
    done = SshRunner(node.address, access).run(["x", "y z"], check=False, input="fed")
    assert (done.returncode, len(done.stdout), done.stderr) == (3, 300_000, "err")
    assert node.commands == ["x 'y z'"] and node.stdin == b"fed"
    [used] = (tmp_path / "used").read_text().splitlines()
    pid, host = used.split()
    assert host == node.address and not Path(f"/proc/{pid}").exists()


def test_the_host_key_counts_through_a_proxy_too(network: Network, tmp_path: Path) -> None:
    (tmp_path / "tunnel.py").write_text(TUNNEL)
    node = network.node(lambda command: (0, "", ""), key="other")
    access = proxied(network, f"{sys.executable} {tmp_path}/tunnel.py %h %p {tmp_path}/used")
    with pytest.raises(Unreachable, match="shows a host key other than"):
        SshRunner(node.address, access).run(["x"])
    assert node.commands == []


def test_a_proxy_that_fails_says_why(network: Network) -> None:
    network.node(lambda command: (0, "", ""))
    access = proxied(network, "sh -c 'echo An error occurred: TargetNotConnected >&2; exit 254' %h")
    with pytest.raises(Unreachable, match="its proxy printed: An error occurred: TargetNotConnected"):
        SshRunner("10.0.0.1", access).run(["x"])


def test_a_proxy_that_hangs_is_given_up_and_ended(network: Network, tmp_path: Path) -> None:
    network.node(lambda command: (0, "", ""))
    access = proxied(network, f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600'")
    deadline = Deadline(5 * network.connect_timeout)
    with pytest.raises(Unreachable, match=r"does not respond: connected, but no ssh session within [0-9.]+ s"):
        SshRunner("10.0.0.1", access).run(["x"])
    assert not deadline.has_passed()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_words_of_a_proxy_command() -> None:
    assert expand_command("nc '%h x' %p %%h %q", "10.0.0.1", 22) == ["nc", "10.0.0.1 x", "22", "%h", "%q"]
    for wrong in ("nc '%h", "", "  "):
        with pytest.raises(UsageError, match="--ssh-proxy"):
            expand_command(wrong, "h", 22)


def test_a_proxy_that_is_not_there_is_no_fault_of_the_node(network: Network) -> None:
    network.node(lambda command: (0, "", ""))
    with pytest.raises(UsageError, match="/nowhere/tunnel cannot be started"):
        SshRunner("10.0.0.1", proxied(network, "/nowhere/tunnel %h")).run(["x"])
