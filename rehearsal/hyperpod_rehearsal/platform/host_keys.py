"""ssh identities: the host keys the cloud gives its nodes, the known_hosts that follows them, the admin's key."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Dict

from hyperpod_kit.run import LocalRunner
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor


def create_key_pair_if_missing(path: Path, comment: str) -> None:
    """Make an ed25519 key pair at `path` and `path`.pub unless it is there. Raises RunError."""
    if not path.exists():
        LocalRunner().run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)], timeout=20)


class HostKeys:
    """Keys by address. `known_hosts` is rewritten whenever an address gets a new machine."""

    def __init__(self, known_hosts: Path) -> None:
        self._path = known_hosts
        self._lock = threading.Lock()
        self._lines: Dict[str, str] = {}
        by_descriptor.touch(known_hosts, 0o644)

    def generate_and_record_host_key(self, ip: str, host: str) -> str:
        """Generate the host key of the machine at `ip`, put it into known_hosts, return the private key.

        The key of the machine that had the address before is removed there.
        """
        with tempfile.TemporaryDirectory(prefix="hostkey-") as directory:
            key = Path(directory) / "key"
            create_key_pair_if_missing(key, host)
            public = " ".join((key.parent / "key.pub").read_text().split()[:2])
            private = key.read_text()
        with self._lock:
            self._lines[ip] = f"{ip},{host},{host}.ec2.internal {public}\n"
            lines = "".join(self._lines[address] for address in sorted(self._lines))
            atomic_file.write_atomically(self._path, lines.encode(), 0o644)
        return private
