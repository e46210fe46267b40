"""A Runner over ssh: host keys verified, every phase with a deadline, nothing left open."""

from __future__ import annotations

import shlex
import socket
import threading
import time
from typing import TYPE_CHECKING, Mapping, Optional, Sequence

from hyperpod_kit.errors import RunError, RunTimeout, Unreachable
from hyperpod_kit.remote.connect.ssh_access import SshAccess, shut_down_socket
from hyperpod_kit.run import Completed, env_arguments

if TYPE_CHECKING:
    import paramiko

OUTPUT_LIMIT = 8 << 20
"""Bytes of output after which a command is cut off."""


class TooMuchOutput(RunError):
    """The command was cut off: it said more than a caller can want."""


class SshRunner:
    """Runs commands on the node at `address`, one connection each. `limit`: bytes of output that are too many.

    `run` raises Unreachable when no session comes about, and what the Runner protocol says.
    """

    def __init__(self, address: str, access: SshAccess, *, limit: int = OUTPUT_LIMIT) -> None:
        self.target = address
        self._access = access
        self._limit = limit

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        """Run `argv` there. The login shell sees it quoted word by word; `env` travels as a prefix of `env`."""
        if env:
            command = ["env", *env_arguments(env), *argv]
        else:
            command = list(argv)
        with self._access.session(self.target) as client:
            returncode, out, err = self._execute(client, argv, shlex.join(command), timeout, input)
        if check and returncode != 0:
            raise RunError(argv, returncode, out, err, target=self.target)
        return Completed(tuple(argv), returncode, out, err)

    def _execute(
        self, client: paramiko.SSHClient, argv: Sequence[str], line: str, timeout: float, stdin_text: Optional[str]
    ) -> tuple[int, str, str]:
        until = time.monotonic() + timeout
        out, err = bytearray(), bytearray()
        # A node that never says whether it will run the command is waited for without end inside of paramiko.
        with self._access.deadlines.within(timeout, lambda: _cut_connection(client)) as deadline:
            try:
                returncode = self._run_on_channel(client, argv, line, until, stdin_text, out, err)
            except RunError:
                raise
            except Exception as failure:  # what a peer sends may raise anything inside of paramiko
                if deadline.expired or isinstance(failure, socket.timeout):
                    raise RunTimeout(
                        argv,
                        -9,
                        out.decode(errors="replace"),
                        f"it did not end within {timeout:g} s",
                        target=self.target,
                    ) from None
                cause = str(failure) or type(failure).__name__
                raise Unreachable(f"the connection to {self.target} broke: {cause}") from failure
        return returncode, out.decode(errors="replace"), err.decode(errors="replace")

    def _run_on_channel(
        self,
        client: paramiko.SSHClient,
        argv: Sequence[str],
        line: str,
        until: float,
        stdin_text: Optional[str],
        out: bytearray,
        err: bytearray,
    ) -> int:
        transport = client.get_transport()
        if transport is None:
            raise EOFError("closed")
        channel = transport.open_session(timeout=max(0.0, until - time.monotonic()))
        channel.settimeout(max(0.0, until - time.monotonic()))
        # One event for both streams, no descriptors: select(2) takes none above 1023, and a pipe each would add up.
        # Only our own reads clear it, and both buffers are looked at after them.
        output_event = threading.Event()
        channel.in_buffer.set_event(output_event)
        channel.in_stderr_buffer.set_event(output_event)
        channel.exec_command(line)
        if stdin_text is not None:
            channel.sendall(stdin_text.encode())
        channel.shutdown_write()
        while not channel.eof_received or channel.recv_ready() or channel.recv_stderr_ready():
            if channel.recv_ready():
                out += channel.recv(65536)
            if channel.recv_stderr_ready():
                err += channel.recv_stderr(65536)
            if len(out) + len(err) > self._limit:
                raise TooMuchOutput(argv, -1, stderr=f"more than {self._limit >> 10} KiB of output", target=self.target)
            if channel.recv_ready() or channel.recv_stderr_ready() or channel.eof_received:
                continue
            if channel.closed:
                break
            if not output_event.wait(max(0.0, until - time.monotonic())):
                raise socket.timeout
        if not channel.status_event.wait(max(0.0, until - time.monotonic())):
            raise socket.timeout
        returncode = channel.recv_exit_status()
        if returncode < 0 and not transport.is_active():
            raise EOFError("it was closed before the command ended")
        return returncode


def _cut_connection(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    if transport is not None:
        shut_down_socket(transport.sock)
