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
from hyperpod_kit.remote.sent_report import last_words


def words(command: str, address: str, port: int) -> list[str]:
    """The program and its arguments, `%h` and `%p` filled in, `%%` a percent sign. Raises UsageError."""
    try:
        split = shlex.split(command)
    except ValueError as err:
        raise UsageError(f"--ssh-proxy `{command}` cannot be split into words: {err}") from err
    known = {"%h": address, "%p": str(port), "%%": "%"}
    filled = []
    for word in split:
        text, place = "", 0
        while place < len(word):
            token = word[place : place + 2]
            text += known.get(token, word[place])
            place += 2 if token in known else 1
        filled.append(text)
    if not filled:
        raise UsageError("--ssh-proxy names no program")
    return filled


@contextmanager
def through(argv: list[str]) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """(a socket whose other end is the program's input and output, what it has said on standard error).

    The program is ended with the block. Raises OSError when it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as said:
        try:
            program = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=said)
        finally:
            theirs.close()

        def words_of_it() -> str:
            said.seek(0)
            return last_words(said.read(65536).decode(errors="replace"))

        try:
            yield ours, words_of_it
        finally:
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            for number in (None, signal.SIGTERM, signal.SIGKILL):
                if number is not None:
                    program.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    program.wait(None if number == signal.SIGKILL else 1.0)
                    break
