"""The digest of a file's bytes, piece by piece, as fast as memory where xxHash is there."""

from __future__ import annotations

from collections.abc import Callable

from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.errors import DigestUnavailable

PIECE_BYTES = 16 << 20
"""Bytes of a piece. Part of the digest."""


def fastest_algorithm() -> str:
    """Name the digest that new indexes use here."""
    try:
        return digest.algorithm("xxh3").name
    except DigestUnavailable:
        return "blake2b"


def digest_of_piece(data: bytes | memoryview) -> bytes:
    """Digest one piece, with the fastest algorithm."""
    return digest.algorithm(fastest_algorithm()).wide(data)


def digests_of_pieces(read: Callable[[int, int], bytes], size: int, advance: Callable[[int], None]) -> list[bytes]:
    """Digest a file's pieces, read one after another by `read(at, bytes)`. Raises what that raises."""
    piece_digests = []
    for at in range(0, size, PIECE_BYTES):
        data = read(at, PIECE_BYTES)
        piece_digests.append(digest_of_piece(data))
        advance(len(data))
    return piece_digests


def digest_of_file(pieces: list[bytes], size: int) -> str:
    """Digest a file from its pieces' digests: 32 hexadecimal digits."""
    return digest.algorithm(fastest_algorithm()).wide(b"".join(pieces) + size.to_bytes(8, "little")).hex()


def has_digest(read: Callable[[int, int], bytes], size: int, expected: str) -> bool | None:
    """Whether a file has this digest; None where that cannot be said here, as it may be xxHash's. Raises what `read`
    raises."""
    if digest_of_file(digests_of_pieces(read, size, lambda count: None), size) == expected:
        return True
    if fastest_algorithm() == "xxh3":
        return False
    return None
