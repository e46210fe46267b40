"""Somebody on the training network who has no key: connections, and what has been seen to pass by."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple


def ended(sock: socket.socket, seconds: float = 60.0) -> bool:
    """Whether the other side ends this connection; what it says before does not matter."""
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        return True
    except socket.timeout:
        return False
    return True


@contextlib.contextmanager
def strangers(address: Tuple[str, int], count: int, say: bytes = b"") -> Iterator[List[socket.socket]]:
    """So many connections, each of which says this and then nothing."""
    socks = [socket.create_connection(address, timeout=60) for _ in range(count)]
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.sendall(say)
    try:
        yield socks
    finally:
        for sock in socks:
            sock.close()


class Between:
    """A machine on the way: it passes lines on, keeps them, and `change`s those that go up as it likes.

    `change(number, line)`: what is passed on in the place of line `number` (0 is the greeting).
    """

    def __init__(self, target: Tuple[str, int], change: Callable[[int, bytes], bytes] = lambda _, line: line) -> None:
        self._target = target
        self._change = change
        self.up: List[bytes] = []
        self.down: List[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                for source, to, kept, change in (
                    (near, far, self.up, self._change),
                    (far, near, self.down, lambda _, line: line),
                ):
                    threading.Thread(target=self._pass, args=(source, to, kept, change), daemon=True).start()

    @staticmethod
    def _pass(
        source: socket.socket, to: socket.socket, kept: List[bytes], change: Callable[[int, bytes], bytes]
    ) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as file:
            for number, line in enumerate(file):
                kept.append(line)
                to.sendall(change(number, line))
        for sock in (source, to):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def flipped(line: bytes, at: int) -> bytes:
    """With one bit of one byte changed; not into the line's end."""
    at %= len(line) - 1
    new = line[at] ^ 1
    return line[:at] + bytes([new if new != 10 else line[at] ^ 2]) + line[at + 1 :]


Seen = List[Tuple[int, Optional[Dict[str, Any]]]]
