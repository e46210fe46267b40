"""What all connections to a fleet share: the private key, the host keys, and who ends those whose time is up."""

from __future__ import annotations

import base64
import hmac
import logging
import shlex
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

from hyperpod_kit.environment import HPK_KNOWN_HOSTS, HPK_SSH_KEY
from hyperpod_kit.errors import Absent, Unreachable, UsageError
from hyperpod_kit.remote.connect.deadlines import Deadlines
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word
from hyperpod_kit.remote.target import SshSettings

if TYPE_CHECKING:
    import paramiko


class SshAccess:
    """Opens sessions with one key and one file of host keys, both read once, by `load` or the first `session`."""

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self.deadlines = Deadlines()
        self._known_hosts: Optional[KnownHosts] = None
        self._key: Optional[paramiko.PKey] = None

    def load_private_key_and_known_hosts(self) -> KnownHosts:
        """Read both keys; raise UsageError where no host key could be verified, or the private key cannot be used."""
        if self._known_hosts is None:
            self._key = _load_private_key(self.settings)
            self._known_hosts = _read_known_hosts(self.settings)
        return self._known_hosts

    def __enter__(self) -> SshAccess:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        """End all connections after an error, Ctrl-C among them."""
        if kind is not None:
            self.deadlines.expire_present_and_later()

    @contextmanager
    def session(self, address: str) -> Iterator[paramiko.SSHClient]:
        """Open a session with the node at `address`, its host key verified, and close it at the end.

        Raises Unreachable, UsageError.
        """
        settings = self.settings
        with ExitStack() as stack:
            proxy_output: Callable[[], str] = str
            if settings.proxy:
                argv = expand_command(settings.proxy, address, settings.port)
                try:
                    sock, proxy_output = stack.enter_context(connect_through_program(argv))
                except OSError as err:
                    raise UsageError(f"{argv[0]} cannot be started: {err.strerror}", hint="--ssh-proxy") from err
            else:
                sock = stack.enter_context(_create_unconnected_socket(address, settings.port))
            client = stack.enter_context(load_paramiko().SSHClient())
            self._connect_and_log_in(client, sock, address, proxy_output)
            yield client

    def _connect_and_log_in(
        self, client: paramiko.SSHClient, sock: socket.socket, address: str, proxy_output: Callable[[], str]
    ) -> None:
        """Connect and log in within the time limit. Raises Unreachable.

        `proxy_output`: what the program behind the connection wrote to standard error, "" without one.
        """
        known_hosts, settings = self.load_private_key_and_known_hosts(), self.settings
        client.set_missing_host_key_policy(load_paramiko().RejectPolicy())
        if settings.port == 22:
            name = address
        else:
            name = f"[{address}]:{settings.port}"
        for key in known_hosts.keys(name):
            client.get_host_keys().add(name, key.get_name(), key)
        limit = settings.connect_timeout
        connected = bool(settings.proxy)
        # The phases have a limit each inside of paramiko; this one is for all of them.
        with self.deadlines.within(limit, lambda: shut_down_socket(sock)) as deadline:
            try:
                sock.settimeout(limit)
                if not connected:
                    sock.connect((address, settings.port))
                    connected = True
                client.connect(
                    address,
                    settings.port,
                    settings.user,
                    sock=sock,
                    pkey=self._key,
                    allow_agent=self._key is None,
                    look_for_keys=self._key is None,
                    timeout=limit,
                    banner_timeout=limit,
                    auth_timeout=limit,
                )
            except Exception as err:
                client.close()
                if settings.port == 22:
                    port_suffix = ""
                else:
                    port_suffix = f":{settings.port}"
                where = f"{settings.user}@{address}" + port_suffix
                cause: Exception = err
                if deadline.expired:
                    cause = socket.timeout()
                failure = _unreachable_error_of(where, settings, cause, connected=connected)
                if settings.proxy:
                    failure = Unreachable(f"{failure.message}; its proxy printed: {proxy_output()}", hint=failure.hint)
                raise failure from err


def shut_down_socket(sock: socket.socket | paramiko.Channel) -> None:
    """End a connection, or the attempt to make one, under the threads that wait for it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _create_unconnected_socket(address: str, port: int) -> socket.socket:
    family, kind, protocol, _, _ = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    # Login and command are short messages, one after the other: held back, they would wait 40 ms for each other.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def load_paramiko() -> Any:
    """Import paramiko, with its log of broken connections silenced: those are answers here."""
    import paramiko

    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
    return paramiko


def _read_known_hosts(settings: SshSettings) -> KnownHosts:
    try:
        return KnownHosts(settings.known_hosts)
    except OSError as err:
        raise UsageError(
            f"there are no host keys at {settings.known_hosts}, and unknown host keys are not accepted",
            hint=f"--known-hosts FILE, or {HPK_KNOWN_HOSTS}; ssh-keyscan collects keys on a network that you trust",
        ) from err


def _load_private_key(settings: SshSettings) -> Optional[paramiko.PKey]:
    """Read the private key: paramiko would try its file as every kind of key and report the last attempt."""
    if settings.key is None:
        return None
    if not settings.key.is_file():
        raise Absent(f"there is no private key {settings.key}", hint=f"--ssh-key FILE, or {HPK_SSH_KEY}")
    ssh = load_paramiko()
    try:
        key: paramiko.PKey = ssh.PKey.from_path(settings.key)
    except (OSError, TypeError, ValueError, ssh.SSHException) as err:
        raise UsageError(
            f"{settings.key} is not a private key that can be used: {str(err).split('.')[0]}",
            hint="a key with a passphrase: ssh-add it, and leave --ssh-key out",
        ) from err
    return key


def _unreachable_error_of(where: str, settings: SshSettings, err: Exception, *, connected: bool) -> Unreachable:
    """Return the error that says in one sentence what went wrong between here and a session.

    `connected`: whether TCP was.
    """
    ssh = load_paramiko()
    if isinstance(err, ssh.BadHostKeyException):
        return _changed_host_key_error(where, settings)
    if isinstance(err, ssh.AuthenticationException):
        return _refused_login_error(where, err)
    text = str(err)
    # When time is up before the greeting, paramiko goes on and finds that there is no session.
    silent = "banner" in text or "No existing session" in text
    if isinstance(err, (socket.timeout, TimeoutError)) or (isinstance(err, ssh.SSHException) and silent):
        how = "no answer"
        if connected:
            how = "connected, but no ssh session"
        return Unreachable(f"{where} does not respond: {how} within {settings.connect_timeout:g} s")
    if isinstance(err, ssh.SSHException):
        if "not found in known_hosts" in text:
            return Unreachable(f"{where} has no host key in {settings.known_hosts}", hint="--known-hosts FILE")
        if "protocol version" in text or "Incompatible version" in text:
            return Unreachable(f"{where}: the server there is not a current ssh server: {text[-60:]}")
        return Unreachable(f"{where}: {text}")
    if isinstance(err, ConnectionRefusedError):
        return Unreachable(f"{where} refuses the connection")
    if isinstance(err, (OSError, EOFError)):
        return Unreachable(f"{where}: {text or 'the connection was closed'}")
    return Unreachable(f"{where}: {type(err).__name__}: {err}")


def _changed_host_key_error(where: str, settings: SshSettings) -> Unreachable:
    """The error for a node whose host key is not the one on file."""
    host = where.split("@")[1]
    if ":" in host:
        host = f"'[{host.split(':')[0]}]:{settings.port}'"
    return Unreachable(
        f"{where} shows a host key other than the one in {settings.known_hosts}",
        hint=f"if the node was replaced: ssh-keygen -R {host}, and collect its new key",
    )


def _refused_login_error(where: str, err: Exception) -> Unreachable:
    """The error for a login that the node refuses, with the methods that it takes."""
    methods = [method for method in getattr(err, "allowed_types", ()) if method]
    accepted = ""
    if methods:
        accepted = f": it accepts {', '.join(methods)} only"
    return Unreachable(f"{where} refuses the login{accepted}", hint="--ssh-user, --ssh-key")


# A connection through a program, as OpenSSH's ProxyCommand: how a node in a private subnet is reached.


def expand_command(command: str, address: str, port: int) -> list[str]:
    """The program and its arguments, `%h` and `%p` filled in, `%%` a percent sign. Raises UsageError."""
    try:
        split = shlex.split(command)
    except ValueError as err:
        raise UsageError(f"--ssh-proxy `{command}` cannot be split into words: {err}") from err
    replacements = {"%h": address, "%p": str(port), "%%": "%"}
    filled = []
    for word in split:
        text, offset = "", 0
        while offset < len(word):
            token = word[offset : offset + 2]
            text += replacements.get(token, word[offset])
            offset += 2 if token in replacements else 1
        filled.append(text)
    if not filled:
        raise UsageError("--ssh-proxy names no program")
    return filled


@contextmanager
def connect_through_program(argv: list[str]) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """(a socket whose other end is the program's input and output, what it has said on standard error).

    The program is ended with the block. Raises OSError when it cannot be started.
    """
    local_socket, program_socket = socket.socketpair()
    with local_socket, tempfile.TemporaryFile() as stderr_file:
        try:
            program = subprocess.Popen(
                argv, stdin=program_socket.fileno(), stdout=program_socket.fileno(), stderr=stderr_file
            )
        finally:
            program_socket.close()

        def read_stderr() -> str:
            stderr_file.seek(0)
            return last_line_or_nothing_word(stderr_file.read(65536).decode(errors="replace"))

        try:
            yield local_socket, read_stderr
        finally:
            with suppress(OSError):
                local_socket.shutdown(socket.SHUT_RDWR)
            for number in (None, signal.SIGTERM, signal.SIGKILL):
                if number is not None:
                    program.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    program.wait(None if number == signal.SIGKILL else 1.0)
                    break


# The host keys that nodes are verified by, read once for a whole fleet.
#
# paramiko's own reader compares every line with all lines before it, and its client reads the file for each
# connection: minutes for a thousand nodes.

REVOKED = "@revoked"

LONGEST_KEY = 16 << 10
"""Bytes: an RSA key of 16,384 bits has two thousand."""


class KnownHosts:
    """An OpenSSH known_hosts file. A key that a line revokes is no host's, whatever that line and others name.

    Lines of certificate authorities and patterns say nothing here: what is verified by them alone is refused.
    Raises OSError when the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._clear: dict[str, list[str]] = {}
        self._hashed: list[tuple[bytes, bytes, str]] = []
        self._revoked: set[bytes] = set()
        for line in path.read_text(errors="replace").splitlines():
            names, *rest = line.split(None, 1) or [""]
            if names == REVOKED:
                self._revoked |= _key_blobs(rest)
            if not names or names[0] in "#@":
                continue
            for name in names.split(","):
                if name.startswith("|1|"):
                    self._add_hashed(name, line.strip())
                else:
                    self._clear.setdefault(name, []).append(line.strip())

    def keys(self, name: str) -> list[paramiko.PKey]:
        """Return the keys that a host may show. `name`: its address, or `[address]:port` where that is not 22."""
        from paramiko.hostkeys import HostKeyEntry

        encoded_name = name.encode()
        lines = list(self._clear.get(name, ()))
        # Debian's clients hash all names by default: each lookup goes through them all, a microsecond each.
        lines += [line for salt, digest, line in self._hashed if hmac.digest(salt, encoded_name, "sha1") == digest]
        host_keys = []
        for line in lines:
            if not _has_complete_key(line):
                continue
            try:
                entry = HostKeyEntry.from_line(line)
            except Exception:  # paramiko's classes of keys raise whatever their parsers do
                continue
            if entry is not None and entry.key is not None and entry.key.asbytes() not in self._revoked:
                host_keys.append(entry.key)
        return host_keys

    def _add_hashed(self, name: str, line: str) -> None:
        """Add a line with a hashed name, `|1|salt|digest`: HMAC-SHA1 of the name, both in base64 (sshd(8))."""
        parts = name.split("|")
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[2:4])
        except ValueError:
            return
        self._hashed.append((salt, digest, line))


def _has_complete_key(line: str) -> bool:
    """Whether a line `names type key comment` has a key that is whole. paramiko takes minutes over one that is
    not."""
    fields = line.split(" ")
    try:
        blob = b""
        if len(fields) > 2:
            blob = base64.b64decode(fields[2], validate=True)
    except ValueError:
        return False
    at = 0
    while at + 4 <= len(blob) <= LONGEST_KEY:
        at += 4 + int.from_bytes(blob[at : at + 4], "big")
    return 0 < at == len(blob)


def _key_blobs(rest: list[str]) -> set[bytes]:
    """Return the decoded key of a line `names type key comment`, the empty set without one."""
    if rest:
        fields = rest[0].split()
    else:
        fields = []
    try:
        if len(fields) > 2:
            return {base64.b64decode(fields[2])}
        return set()
    except ValueError:
        return set()
