"""A keyed permutation of 0 … n-1 that needs no table: a Feistel network over the next power of four, walked until it is
back in the range. Vectorised over numpy arrays, with a key for each element or one for all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ROUNDS = 5
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mixed(*parts: int) -> int:
    """A 64-bit key out of several numbers, by splitmix64."""
    state = 0
    for part in parts:
        state = _one((state + part + _GOLDEN) & _MASK)
    return state


def mixed_each(key: int, numbers: Numbers) -> Words:
    """`mixed(key, number)` in spirit: one key for each number."""
    return _many(numbers.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))


def permuted(values: Numbers, size: int, keys: Words | int) -> Numbers:
    """Where each of `values` (0 <= value < size) goes; `keys`: one, or one for each value."""
    return _walk(values, size, keys, range(_ROUNDS))


def restored(values: Numbers, size: int, keys: Words | int) -> Numbers:
    """The inverse of `permuted`."""
    return _walk(values, size, keys, range(_ROUNDS - 1, -1, -1))


def permutations(size: int, keys: Words) -> Numbers:
    """For each key, in a row, `permuted` of 0 … size-1. A round depends on half of a value's bits and on the key, so it
    is looked up in a short table."""
    if size <= 1:
        return np.zeros((len(keys), size), dtype=np.int64)
    half = _half(size)
    mask = (1 << half) - 1
    halves = np.arange(mask + 1, dtype=np.uint64)
    tables = [
        (_many((halves + _salt(number)) ^ keys[:, None]) & np.uint64(mask)).astype(np.int64).ravel()
        for number in range(_ROUNDS)
    ]
    rows = np.repeat(np.arange(len(keys), dtype=np.int64) << half, size)
    found = _looked_up(np.tile(np.arange(size, dtype=np.int64), len(keys)), rows, tables, half)
    outside = np.flatnonzero(found >= size)
    while outside.size:
        values = _looked_up(found[outside], rows[outside], tables, half)
        found[outside] = values
        outside = outside[values >= size]
    return found.reshape(len(keys), size)


def _looked_up(values: Numbers, rows: Numbers, tables: list[Numbers], half: int) -> Numbers:
    left, right = values >> half, values & ((1 << half) - 1)
    for table in tables:
        left, right = right, left ^ table[rows + right]
    joined: Numbers = (left << half) | right
    return joined


def _half(size: int) -> int:
    """Bits of half a value."""
    return max(1, (max(1, size - 1).bit_length() + 1) // 2)


def _salt(number: int) -> np.uint64:
    """Of a round."""
    salt: np.uint64 = np.uint64((number + 1) * _GOLDEN & _MASK)
    return salt


def _walk(values: Numbers, size: int, keys: Words | int, rounds: range) -> Numbers:
    if size <= 1:
        return np.array(values, dtype=np.int64)
    half = _half(size)
    each = keys if isinstance(keys, np.ndarray) else np.full(values.shape, keys, dtype=np.uint64)
    found = _network(values.astype(np.uint64), half, each, rounds)
    outside = np.flatnonzero(found >= size)
    while outside.size:
        found[outside] = _network(found[outside], half, each[outside], rounds)
        outside = outside[found[outside] >= size]
    whole: Numbers = found.astype(np.int64)
    return whole


def _network(values: Words, half: int, keys: Words, rounds: range) -> Words:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    forward = rounds.step > 0
    for number in rounds:
        salt = _salt(number)
        if forward:
            left, right = right, left ^ (_many((right + salt) ^ keys) & mask)
        else:
            left, right = right ^ (_many((left + salt) ^ keys) & mask), left
    joined: Words = (left << shift) | right
    return joined


def _one(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)


def _many(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
