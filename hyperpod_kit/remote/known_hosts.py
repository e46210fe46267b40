"""The host keys that nodes are verified by, read once for a whole fleet.

paramiko's own reader compares every line with all lines before it, and its client reads the file for each connection:
minutes for a thousand nodes.
"""

from __future__ import annotations

import base64
import hmac
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko


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
