"""Real ssh servers on loopback addresses of their own, one port for all, as nodes of a cluster are."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Callable, Iterator, Optional

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from hyperpod_kit.remote.target import SshSettings
from tests.support.wait import scaled

Answer = Callable[[str], "tuple[int, str, str]"]
"""Command line -> (exit code, stdout, stderr)."""


class _Session(paramiko.ServerInterface):
    def __init__(self, node: SshNode) -> None:
        self._node = node

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        allowed = self._node.accepts is None or key == self._node.accepts
        return AUTH_SUCCESSFUL if allowed else AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._node.execute, args=(channel, command.decode()), daemon=True).start()
        return True


class SshNode:
    """One server. `answer`: None keeps every command running for ever; `accepts`: the only key it lets in."""

    def __init__(self, address: str, port: int, answer: Optional[Answer], accepts: Optional[paramiko.PKey]) -> None:
        self.address, self.answer, self.accepts = address, answer, accepts
        self.host_key = paramiko.ECDSAKey.generate()
        self.commands: list[str] = []
        self.stdin = b""
        self._transports: list[paramiko.Transport] = []
        self._listener = socket.create_server((address, port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def execute(self, channel: paramiko.Channel, command: str) -> None:
        self.commands.append(command)
        if self.answer is None:
            return
        while chunk := channel.recv(65536):
            self.stdin += chunk
        code, out, err = self.answer(command)
        channel.sendall(out.encode())
        channel.sendall_stderr(err.encode())
        channel.send_exit_status(code)
        channel.close()

    def close(self) -> None:
        self._listener.close()
        for transport in self._transports:
            transport.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.host_key)
            self._transports.append(transport)
            try:
                transport.start_server(server=_Session(self))
            except (paramiko.SSHException, EOFError, OSError):
                transport.close()


class Network:
    """127.77.x.y addresses that share one port; `settings` logs in with the one client key and the known host keys."""

    def __init__(self, directory: Path) -> None:
        self.key = paramiko.ECDSAKey.generate()
        self.key_file = directory / "id_ecdsa"
        self.key.write_private_key_file(str(self.key_file))
        self.known_hosts = directory / "known_hosts"
        self.known_hosts.touch()
        self.port = 0
        self.connect_timeout = scaled(3.0)
        self._closers: list[Callable[[], None]] = []
        self._next = 1

    def node(self, answer: Optional[Answer], *, key: str = "known", accepts: str = "client") -> SshNode:
        """A server. key: "known", "other" (another key is known of it) or "unknown"; accepts: "client" or "nobody"."""
        allowed = self.key if accepts == "client" else paramiko.ECDSAKey.generate()
        node = SshNode(self.address(), self.port, answer, allowed)
        self.port = node.port
        if key != "unknown":
            shown = node.host_key if key == "known" else paramiko.ECDSAKey.generate()
            with self.known_hosts.open("a") as file:
                file.write(f"[{node.address}]:{self.port} {shown.get_name()} {shown.get_base64()}\n")
        self._closers.append(node.close)
        return node

    def silent(self) -> str:
        """The address of a machine that takes connections and never says a word."""
        listener = socket.create_server((self.address(), self.port))
        self.port = listener.getsockname()[1]
        self._closers.append(listener.close)
        return str(listener.getsockname()[0])

    def address(self) -> str:
        """A loopback address where nothing listens yet."""
        self._next += 1
        return f"127.77.{self._next // 250}.{self._next % 250 + 1}"

    @property
    def settings(self) -> SshSettings:
        return SshSettings("root", self.known_hosts, self.key_file, self.port, connect_timeout=self.connect_timeout)

    def close(self) -> None:
        for closer in self._closers:
            closer()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    yield made
    made.close()
