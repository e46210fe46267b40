from __future__ import annotations

import hashlib
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.errors import DigestUnavailable


@given(st.integers(1, 10**9), st.integers(1, 1 << 24))
def test_the_size_alone_says_where_the_leaves_begin(data_bytes: int, chunk: int) -> None:
    count = digest.leaf_count(data_bytes, chunk)
    assume(count * digest.LEAF_BYTES <= digest.MOST_LEAVES)
    assert digest.split_size_into_data_and_leaf_count(data_bytes + count * digest.LEAF_BYTES, chunk) == (
        data_bytes,
        count,
    )


def test_sizes_that_no_shard_has_are_refused() -> None:
    for size in (0, 1, 8, digest.CHUNK + 8 + 4):
        with pytest.raises(ValueError):
            digest.split_size_into_data_and_leaf_count(size)


def test_leaves_are_those_of_standard_tools_and_do_not_depend_on_threads() -> None:
    data = memoryview(bytes(range(256)) * 40)
    alg = digest.algorithm("blake2b")
    one = digest.leaves_of(alg, data, chunk=1000)
    assert one == digest.leaves_of(alg, data, chunk=1000, threads=3)
    assert one[:8] == hashlib.blake2b(data[:1000], digest_size=8).digest()
    assert digest.small_object_digest(b"x") == "blake2b:" + hashlib.blake2b(b"x", digest_size=16).hexdigest()


def without_xxh3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the package nor the library."""
    monkeypatch.setitem(sys.modules, "xxhash", None)
    monkeypatch.setattr(digest, "load_library_functions", lambda: None)


def test_without_xxh3_the_reader_says_that_it_cannot_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    without_xxh3(monkeypatch)
    with pytest.raises(DigestUnavailable, match=r"xxh3.*neither the xxhash package nor libxxhash") as caught:
        digest.algorithm("xxh3")
    assert caught.value.exit_code == 3
    assert (
        digest.available_algorithms() == {"blake2b": True, "xxh3": False}
        and digest.fastest_common_algorithm() == "blake2b"
    )
    with pytest.raises(DigestUnavailable):
        digest.algorithm("sha1")


def test_the_best_is_what_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "available_algorithms", lambda: {"xxh3": True, "blake2b": True})
    assert digest.fastest_common_algorithm() == digest.fastest_common_algorithm(["xxh3", "blake2b"]) == "xxh3"
    assert digest.fastest_common_algorithm(["xxh3", "blake2b"], ["blake2b"]) == "blake2b"


needs_library = pytest.mark.needs("xxhash-library")


@needs_library
@given(st.binary(max_size=5000))
def test_the_library_and_the_package_agree(data: bytes) -> None:
    package, library = pytest.importorskip("xxhash"), digest.load_library_functions()
    assert library is not None
    writable = memoryview(bytearray(b"x" + data))[1:]
    for given_data in (data, memoryview(data), bytearray(data), writable):
        assert library.leaf(given_data) == package.xxh3_64_digest(data)
        assert library.wide(given_data) == package.xxh3_128_digest(data)


@needs_library
def test_the_library_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    # https://github.com/Cyan4973/xxHash/blob/v0.8.2/tests/sanity_test_vectors.h: XXH3 of nothing, seed 0.
    assert digest.algorithm("xxh3").leaf(b"").hex() == "2d06800538d394c2"
    assert digest.algorithm("xxh3").wide(b"").hex() == "99aa06d3014798d86001c324468d497f"
    with pytest.raises((BufferError, TypeError)):
        digest.algorithm("xxh3").leaf("text")


@pytest.mark.parametrize("what", ["old", "absent", "other"])
def test_a_library_that_does_not_do_is_none(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "old":
        monkeypatch.setattr(digest, "FINAL", 10**6)
    else:
        monkeypatch.setattr(digest, "LIBRARY", "libnothing.so.0" if what == "absent" else "libc.so.6")
    digest.load_library_functions.cache_clear()
    try:
        assert digest.load_library_functions() is None
    finally:
        digest.load_library_functions.cache_clear()
