"""A keyed permutation of 0 … n-1 that needs no table: a Feistel network over the next power of four, walked until it is
back in the range. Vectorised over numpy arrays, with a key for each element or one for all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Uint64Array = npt.NDArray[np.uint64]

_ROUNDS = 5
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix_key(*parts: int) -> int:
    """Compute a 64-bit key from several numbers, by splitmix64."""
    state = 0
    for part in parts:
        state = _mix_word((state + part + _GOLDEN) & _MASK)
    return state


def mix_keys(key: int, numbers: Numbers) -> Uint64Array:
    """Derive one 64-bit key for each number from a common key, by the rounds of splitmix64."""
    return _mix_words(numbers.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))


def permute(values: Numbers, size: int, keys: Uint64Array | int) -> Numbers:
    """Map each of `values` (0 <= value < size) to its place; `keys`: one, or one for each value."""
    return _permute_by_cycle_walking(values, size, keys, range(_ROUNDS))


def invert(values: Numbers, size: int, keys: Uint64Array | int) -> Numbers:
    """Map each place back to its value: the inverse of `permute`."""
    return _permute_by_cycle_walking(values, size, keys, range(_ROUNDS - 1, -1, -1))


def permutations(size: int, keys: Uint64Array) -> Numbers:
    """For each key, in a row, `permute` of 0 … size-1. A round depends on half of a value's bits and on the key, so it
    is looked up in a short table."""
    if size <= 1:
        return np.zeros((len(keys), size), dtype=np.int64)
    half = _half_bits(size)
    mask = (1 << half) - 1
    halves = np.arange(mask + 1, dtype=np.uint64)
    tables = [
        (_mix_words((halves + _round_salt(number)) ^ keys[:, None]) & np.uint64(mask)).astype(np.int64).ravel()
        for number in range(_ROUNDS)
    ]
    rows = np.repeat(np.arange(len(keys), dtype=np.int64) << half, size)
    permuted = _apply_feistel_tables(np.tile(np.arange(size, dtype=np.int64), len(keys)), rows, tables, half)
    outside = np.flatnonzero(permuted >= size)
    while outside.size:
        values = _apply_feistel_tables(permuted[outside], rows[outside], tables, half)
        permuted[outside] = values
        outside = outside[values >= size]
    return permuted.reshape(len(keys), size)


def _apply_feistel_tables(values: Numbers, table_row_offsets: Numbers, tables: list[Numbers], half: int) -> Numbers:
    high, low = values >> half, values & ((1 << half) - 1)
    for table in tables:
        high, low = low, high ^ table[table_row_offsets + low]
    joined: Numbers = (high << half) | low
    return joined


def _half_bits(size: int) -> int:
    """Compute how many bits half a value has."""
    return max(1, (max(1, size - 1).bit_length() + 1) // 2)


def _round_salt(number: int) -> np.uint64:
    """Compute the salt of a round."""
    salt: np.uint64 = np.uint64((number + 1) * _GOLDEN & _MASK)
    return salt


def _permute_by_cycle_walking(values: Numbers, size: int, keys: Uint64Array | int, rounds: range) -> Numbers:
    if size <= 1:
        return np.array(values, dtype=np.int64)
    half = _half_bits(size)
    key_of_each = keys if isinstance(keys, np.ndarray) else np.full(values.shape, keys, dtype=np.uint64)
    permuted = _apply_feistel_rounds(values.astype(np.uint64), half, key_of_each, rounds)
    outside = np.flatnonzero(permuted >= size)
    while outside.size:
        permuted[outside] = _apply_feistel_rounds(permuted[outside], half, key_of_each[outside], rounds)
        outside = outside[permuted[outside] >= size]
    result: Numbers = permuted.astype(np.int64)
    return result


def _apply_feistel_rounds(values: Uint64Array, half: int, keys: Uint64Array, rounds: range) -> Uint64Array:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    high, low = values >> shift, values & mask
    forward = rounds.step > 0
    for number in rounds:
        salt = _round_salt(number)
        if forward:
            high, low = low, high ^ (_mix_words((low + salt) ^ keys) & mask)
        else:
            high, low = low ^ (_mix_words((high + salt) ^ keys) & mask), high
    joined: Uint64Array = (high << shift) | low
    return joined


def _mix_word(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)


def _mix_words(hashes: Uint64Array) -> Uint64Array:
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes
