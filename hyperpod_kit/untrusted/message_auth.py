"""Proof that a message comes from somebody who has the same key, is whole, new, and in its place: HMAC-SHA256.

The key itself is never sent. It proves who speaks and hides nothing: what is said can be read on the way.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Union

from hyperpod_kit.errors import Untrusted

_MAC = 64


def nonce() -> str:
    """128 bits that nobody has had before, in hexadecimal."""
    return secrets.token_hex(16)


def proof(key: bytes, *parts: Union[str, int]) -> str:
    """Return the HMAC-SHA256 of these parts with the key, in hexadecimal."""
    return hmac.digest(key, _encode_parts(parts), "sha256").hex()


def derive_key(key: bytes, *parts: Union[str, int]) -> bytes:
    """Return a key of its own for the purpose that the parts name."""
    return hmac.digest(key, b"key" + _encode_parts(parts), "sha256")


def matches(received: object, expected: str) -> bool:
    """Whether another said what was expected; takes the same time whatever he said."""
    return hmac.compare_digest(str(received).encode("utf-8", "replace"), expected.encode())


def _encode_parts(parts: object) -> bytes:
    """No two lists of parts are the same bytes."""
    assert isinstance(parts, tuple)
    encoded_parts = [str(part).encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(b"%d:%s," % (len(encoded), encoded) for encoded in encoded_parts)


class Seal:
    """One direction of one connection. The place of each message is in its proof, so none can be left out, repeated,
    put elsewhere or given to another connection: `opened` then fails, and nothing after it is believed either."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def _next_mac(self, body: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, b"%d:" % self._count + body, "sha256").hex().encode()

    def seal_next(self, body: bytes) -> bytes:
        """Return the next message to send with its MAC, as a line without its end."""
        return self._next_mac(body) + b" " + body

    def verify_next(self, line: bytes) -> bytes:
        """Check the MAC of the next received line, and return its message. Raises Untrusted."""
        body = line[_MAC + 1 :]
        if line[_MAC : _MAC + 1] != b" " or not hmac.compare_digest(line[:_MAC], self._next_mac(body)):
            raise Untrusted("a message without a valid proof: it has another sender, or was changed on the way")
        return body
