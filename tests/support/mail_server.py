"""A mail server on loopback: as much of SMTP as a client needs, over real sockets."""

from __future__ import annotations

import socketserver
import threading
from contextlib import contextmanager
from typing import Iterator, List, NamedTuple, Set


class Mail(NamedTuple):
    """One that came."""

    recipients: List[str]
    text: str


class MailServer(socketserver.ThreadingTCPServer):
    """`refused`: addresses that it does not take; `silent_after`: mails after which it answers nothing more, until it
    has `ended`; `calls`: how often somebody has connected."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Conversation)
        self.received: List[Mail] = []
        self.refused: Set[str] = set()
        self.silent_after = 1 << 30
        self.calls = 0
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Conversation(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self.server.calls += 1
        self._say("220 here")
        recipients: List[str] = []
        for line in iter(self.rfile.readline, b""):
            word = line.decode().strip()
            if word.upper().startswith("MAIL FROM:"):
                recipients = []
            if word.upper().startswith("RCPT TO:"):
                address = word[8:].split()[0].strip("<>")
                if address in self.server.refused:
                    self._say("550 no such user")
                    continue
                recipients.append(address)
            if word.upper() == "DATA":
                self._say("354 go on")
                lines = []
                while (part := self.rfile.readline()) not in (b".\r\n", b""):
                    lines.append(part.decode())
                if len(self.server.received) >= self.server.silent_after:
                    self.server.ended.wait()
                    return
                self.server.received.append(Mail(recipients, "".join(lines).replace("=\r\n", "")))
            if word.upper() == "QUIT":
                self._say("221 bye")
                return
            self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


@contextmanager
def mail_server(port: int = 0) -> Iterator[MailServer]:
    """Until the block ends, on a port of its own or on that of one that was there before."""
    with MailServer(port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
