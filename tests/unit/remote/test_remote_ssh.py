"""The ssh runner against real servers: what it runs, and what it says when there is no session."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hyperpod_kit.errors import Absent, RunError, RunTimeout, Unreachable, UsageError
from hyperpod_kit.remote.connect.ssh import SshRunner
from hyperpod_kit.remote.connect.ssh_access import SshAccess
from hyperpod_kit.remote.target import SshSettings
from tests.support.wait import Deadline

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network


def test_runs_a_command_word_by_word(network: Network) -> None:
    node = network.node(lambda command: (0, "out", "err"))
    runner = SshRunner(node.address, SshAccess(network.settings))
    done = runner.run(["echo", "a b", "$(id)"], input="fed", env={"X": "1 2"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "out", "err")
    assert node.commands == ["env 'X=1 2' echo 'a b' '$(id)'"]
    assert node.stdin == b"fed"


def test_large_output_on_both_streams_arrives_whole(network: Network) -> None:
    node = network.node(lambda command: (3, "o" * 300_000, "e" * 200_000))
    done = SshRunner(node.address, SshAccess(network.settings)).run(["x"], check=False)
    assert (done.returncode, len(done.stdout), len(done.stderr)) == (3, 300_000, 200_000)


def test_a_failing_command_names_the_node(network: Network) -> None:
    node = network.node(lambda command: (7, "", "no such thing\n"))
    with pytest.raises(RunError, match=rf"`ls /x` on {node.address} exited 7: no such thing"):
        SshRunner(node.address, SshAccess(network.settings)).run(["ls", "/x"])


def test_a_hanging_command_ends_at_its_deadline(network: Network) -> None:
    node = network.node(None)
    deadline = Deadline(10)
    with pytest.raises(RunTimeout, match=r"it did not end within 0\.5 s"):
        SshRunner(node.address, SshAccess(network.settings)).run(["sleep"], timeout=0.5)
    assert not deadline.has_passed()


def test_nobody_listens(network: Network) -> None:
    network.node(lambda command: (0, "", ""))
    with pytest.raises(Unreachable, match="refuses the connection"):
        SshRunner(network.address(), SshAccess(network.settings)).run(["x"])


def test_a_silent_machine_is_given_up(network: Network) -> None:
    address = network.silent()
    deadline = Deadline(10)
    with pytest.raises(Unreachable, match=r"does not respond: connected, but no ssh session within [0-9.]+ s"):
        SshRunner(address, SshAccess(network.settings)).run(["x"])
    assert not deadline.has_passed()


@pytest.mark.parametrize(
    ("key", "why"), [("other", "shows a host key other than the one"), ("unknown", "has no host key in")]
)
def test_host_keys_are_verified(network: Network, key: str, why: str) -> None:
    node = network.node(lambda command: (0, "", ""), key=key)
    with pytest.raises(Unreachable, match=why):
        SshRunner(node.address, SshAccess(network.settings)).run(["x"])
    assert node.commands == []


def test_a_refused_login(network: Network) -> None:
    node = network.node(lambda command: (0, "", ""), accepts="nobody")
    with pytest.raises(Unreachable, match="refuses the login") as caught:
        SshRunner(node.address, SshAccess(network.settings)).run(["x"])
    assert caught.value.hint == "--ssh-user, --ssh-key" and "['" not in caught.value.message


@pytest.mark.parametrize("greeting", [b"SSH-1.99-old\r\n", b"SSH-x\r\n", b"welcome\r\n" * 40])
def test_what_is_no_ssh_server_is_called_so(network: Network, greeting: bytes) -> None:
    node = network.node(lambda command: (0, "", ""))
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken: list[socket.socket] = []  # held: closed with our greeting unread, it would be reset

        def greet() -> None:
            taken.append(other.accept()[0])
            taken[0].sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        settings = replace(network.settings, port=other.getsockname()[1], connect_timeout=20.0)
        network.known_hosts.write_text(
            network.known_hosts.read_text().replace(node.address, f"[127.0.0.1]:{settings.port}")
        )
        with pytest.raises(Unreachable) as caught:
            SshRunner("127.0.0.1", SshAccess(settings)).run(["x"])
    said = caught.value.message
    assert any(words in said for words in ("does not respond", "not a current ssh server", "connection was closed")), (
        said
    )


def test_without_host_keys_nothing_is_asked(network: Network) -> None:
    missing = SshSettings("root", network.known_hosts.with_name("nothing"))
    with pytest.raises(UsageError, match="unknown host keys are not accepted"):
        SshAccess(missing).load_private_key_and_known_hosts()
    with pytest.raises(Absent, match="no private key"):
        SshAccess(
            SshSettings("root", network.known_hosts, network.known_hosts.with_name("nothing"))
        ).load_private_key_and_known_hosts()


def test_a_key_file_that_is_no_key_is_found_before_any_node_is_asked(network: Network) -> None:
    SshAccess(network.settings).load_private_key_and_known_hosts()
    with pytest.raises(UsageError, match="known_hosts is not a private key that can be used"):
        SshAccess(SshSettings("root", network.known_hosts, network.known_hosts)).load_private_key_and_known_hosts()
