"""A connection through a program, as OpenSSH's ProxyCommand: how a node in a private subnet is reached."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from typing import Callable, Iterator

from hyperpod_kit.errors import UsageError
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word


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
