"""A btrfs file system in a file, where this machine can have one; an account on moto."""

from __future__ import annotations

import os
import socketserver
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Iterator, List, NamedTuple

import pytest
from moto import mock_aws

from tests.support.aws import as_client
from tests.support.capabilities import require
from tests.unit.checkpoint.conftest import capture

__all__ = ["capture"]


@pytest.fixture
def btrfs() -> Iterator[Path]:
    """Mounted on a loop device, in a place where every user can come to; unmounted at the end."""
    require("mkfs.btrfs", "btrfs")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hpk-btrfs-") as made:
        os.chmod(made, 0o755)
        image, mount = Path(made) / "image", Path(made) / "mnt"
        mount.mkdir()
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True, timeout=60)
        subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True, timeout=60)
        try:
            yield mount
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=True, timeout=60)


@pytest.fixture
def shm(btrfs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shared memory for `capture`, in a place where every user can come to."""
    place = btrfs.parent / "shm"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setenv("HPK_SHM_DIR", str(place))
    for name in ("HPK_RESUME_FROM", "HPK_DIGEST", "HPK_FAILPOINT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return place


def subvolume(mount: Path, name: str, uid: int) -> Path:
    """A new one that belongs to a user."""
    place = mount / name
    subprocess.run(["btrfs", "subvolume", "create", str(place)], check=True, capture_output=True, timeout=60)
    os.chown(place, uid, uid)
    return place


class Mail(NamedTuple):
    """One that came."""

    recipients: List[str]
    text: str


class MailServer(socketserver.ThreadingTCPServer):
    """As much of SMTP as a client needs, on a port of its own."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.received: List[Mail] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Conversation(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self._say("220 here")
        recipients: List[str] = []
        for line in iter(self.rfile.readline, b""):
            word = line.decode().strip()
            if word.upper().startswith("RCPT TO:"):
                recipients.append(word[8:].split()[0].strip("<>"))
            if word.upper() == "DATA":
                self._say("354 go on")
                lines = []
                while (part := self.rfile.readline()) not in (b".\r\n", b""):
                    lines.append(part.decode())
                self.server.received.append(Mail(recipients, "".join(lines).replace("=\r\n", "")))
            if word.upper() == "QUIT":
                self._say("221 bye")
                return
            self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


@pytest.fixture
def mails() -> Iterator[MailServer]:
    """A server that keeps what it gets."""
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    as_client(monkeypatch)
    with mock_aws():
        yield
