"""A Runner over ssh: host keys verified, every phase with a deadline, nothing left open."""

from __future__ import annotations

import logging
import select
import shlex
import socket
import time
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from hyperpod_kit.errors import RunError, RunTimeout, Unreachable, UsageError
from hyperpod_kit.remote.target import SshSettings
from hyperpod_kit.run import Completed

if TYPE_CHECKING:
    import paramiko

OUTPUT_LIMIT = 8 << 20
"""Bytes of output after which a command is cut off."""


class SshRunner:
    """Runs commands on the node at `address`, one connection each.

    `run` raises Unreachable when no session comes about, and what the Runner protocol says.
    """

    def __init__(self, address: str, settings: SshSettings) -> None:
        self.target = address
        self._settings = settings

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> Completed:
        """Run `argv` there. The login shell sees it quoted word by word; `env` travels as a prefix of `env`."""
        words = [*(["env", *(f"{key}={value}" for key, value in env.items())] if env else []), *argv]
        client = self._connect()
        try:
            returncode, out, err = self._execute(client, argv, shlex.join(words), timeout, input)
        finally:
            client.close()
        if check and returncode != 0:
            raise RunError(argv, returncode, out, err, target=self.target)
        return Completed(tuple(argv), returncode, out, err)

    def _connect(self) -> paramiko.SSHClient:
        ssh = _paramiko()
        settings = self._settings
        client: paramiko.SSHClient = ssh.SSHClient()
        client.set_missing_host_key_policy(ssh.RejectPolicy())
        where = f"{settings.user}@{self.target}" + ("" if settings.port == 22 else f":{settings.port}")
        try:
            client.load_host_keys(str(settings.known_hosts))
            client.connect(
                self.target,
                settings.port,
                settings.user,
                # The key itself, not its file: paramiko tries a file as every kind of key and reports the last attempt.
                pkey=ssh.PKey.from_path(settings.key) if settings.key else None,
                allow_agent=settings.key is None,
                look_for_keys=settings.key is None,
                timeout=settings.connect_timeout,
                banner_timeout=settings.connect_timeout,
                auth_timeout=settings.connect_timeout,
            )
        except Exception as err:
            client.close()
            raise _unreachable(where, settings, err) from err
        return client

    def _execute(
        self, client: paramiko.SSHClient, argv: Sequence[str], line: str, timeout: float, given: Optional[str]
    ) -> tuple[int, str, str]:
        ssh = _paramiko()
        deadline = time.monotonic() + timeout
        out, err = bytearray(), bytearray()
        try:
            transport = client.get_transport()
            assert transport is not None
            channel = transport.open_session(timeout=timeout)
            channel.settimeout(timeout)
            channel.exec_command(line)
            if given is not None:
                channel.sendall(given.encode())
            channel.shutdown_write()
            while not channel.eof_received or channel.recv_ready() or channel.recv_stderr_ready():
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([channel], [], [], left)[0]:
                    raise socket.timeout
                if channel.recv_ready():
                    out += channel.recv(65536)
                if channel.recv_stderr_ready():
                    err += channel.recv_stderr(65536)
                if len(out) + len(err) > OUTPUT_LIMIT:
                    raise RunError(argv, -1, stderr=f"more than {OUTPUT_LIMIT >> 20} MiB of output", target=self.target)
            if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
                raise socket.timeout
            return channel.recv_exit_status(), out.decode(errors="replace"), err.decode(errors="replace")
        except socket.timeout:
            raise RunTimeout(
                argv, -9, out.decode(errors="replace"), f"no end within {timeout:g} s", target=self.target
            ) from None
        except (ssh.SSHException, OSError, EOFError) as failure:
            raise Unreachable(
                f"the connection to {self.target} broke: {failure or type(failure).__name__}"
            ) from failure


def require_usable(settings: SshSettings) -> None:
    """Raise UsageError when no host key could be verified, or the private key cannot be used."""
    if not settings.known_hosts.is_file():
        raise UsageError(
            f"there are no host keys at {settings.known_hosts}, and none is taken on trust",
            hint="--known-hosts FILE, or HPK_KNOWN_HOSTS; ssh-keyscan collects keys on a network that you trust",
        )
    if settings.key is None:
        return
    if not settings.key.is_file():
        raise UsageError(f"there is no private key {settings.key}", hint="--ssh-key FILE, or HPK_SSH_KEY")
    try:
        _paramiko().PKey.from_path(settings.key)
    except (OSError, TypeError, ValueError, _paramiko().SSHException) as err:
        raise UsageError(
            f"{settings.key} is not a private key that can be used: {str(err).split('.')[0]}",
            hint="a key with a passphrase: ssh-add it, and leave --ssh-key out",
        ) from err


def _paramiko() -> Any:
    import paramiko

    # Its thread writes stack traces of broken connections to stderr; we report them as rows.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
    return paramiko


def _unreachable(where: str, settings: SshSettings, err: Exception) -> Unreachable:
    """What went wrong between here and a session, in one sentence."""
    ssh = _paramiko()
    address = where.split("@")[1]
    host = f"'[{address.split(':')[0]}]:{settings.port}'" if ":" in address else address
    if isinstance(err, ssh.BadHostKeyException):
        return Unreachable(
            f"{where} shows a host key other than the one in {settings.known_hosts}",
            hint=f"if the node was replaced: ssh-keygen -R {host}, and collect its new key",
        )
    if isinstance(err, ssh.AuthenticationException):
        return Unreachable(f"{where} refuses the login: {err}", hint="--ssh-user, --ssh-key")
    if isinstance(err, (socket.timeout, TimeoutError)):
        return Unreachable(f"{where} is silent: no answer within {settings.connect_timeout:g} s")
    if isinstance(err, ssh.SSHException):
        text = str(err)
        if "not found in known_hosts" in text:
            return Unreachable(f"{where} has no host key in {settings.known_hosts}", hint="--known-hosts FILE")
        # When time is up before the greeting, paramiko goes on and finds that there is no session.
        if "banner" in text or "No existing session" in text:
            return Unreachable(
                f"{where} is silent: connected, but no ssh session within {settings.connect_timeout:g} s"
            )
        return Unreachable(f"{where}: {text}")
    if isinstance(err, OSError):
        refused = "Unable to connect" in str(err) or isinstance(err, ConnectionRefusedError)
        return Unreachable(f"{where} refuses the connection" if refused else f"{where}: {err}")
    return Unreachable(f"{where}: {type(err).__name__}: {err}")
