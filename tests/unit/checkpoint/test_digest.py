from __future__ import annotations

import hashlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository import digest
from hyperpod_kit.errors import DigestUnavailable


@given(st.integers(1, 10**9), st.integers(1, 1 << 24))
def test_the_size_alone_says_where_the_leaves_begin(data_bytes: int, chunk: int) -> None:
    count = digest.leaf_count(data_bytes, chunk)
    assert digest.split(data_bytes + count * digest.LEAF_BYTES, chunk) == (data_bytes, count)


def test_sizes_that_no_shard_has_are_refused() -> None:
    for size in (0, 1, 8, digest.CHUNK + 8 + 4):
        with pytest.raises(ValueError):
            digest.split(size)


def test_leaves_are_those_of_standard_tools_and_do_not_depend_on_threads() -> None:
    data = memoryview(bytes(range(256)) * 40)
    alg = digest.algorithm("blake2b")
    one = digest.leaves_of(alg, data, chunk=1000)
    assert one == digest.leaves_of(alg, data, chunk=1000, threads=3)
    assert one[:8] == hashlib.blake2b(data[:1000], digest_size=8).digest()
    assert digest.small(b"x") == "blake2b:" + hashlib.blake2b(b"x", digest_size=16).hexdigest()


def test_without_xxhash_the_reader_says_that_it_cannot_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(DigestUnavailable, match=r"xxh3.*not importable") as caught:
        digest.algorithm("xxh3")
    assert caught.value.exit_code == 3
    assert digest.available() == {"blake2b": True, "xxh3": False}
    with pytest.raises(DigestUnavailable):
        digest.algorithm("sha1")
