"""A line of JSON as `json.loads` decodes it, by orjson where it is installed and gives the same.

orjson refuses what it does not know (NaN, lone surrogates, other encodings, numbers beyond a double): `json` decides
then. In two things it says something else without a word: an integer beyond 64 bits becomes a float, and containers
that lie deeper in each other than Python's stack allows are decoded. Neither can be in a record of texts, integers and
words alone, which most are; of others the floats and the depth are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

import numpy as np

_SCAN: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_PLAIN = frozenset((str, int, bool, type(None)))
_CONTAINERS = frozenset((dict, list))
_MIN_LARGE_INTEGER = float(1 << 63)
"""The least that an integer beyond 64 bits can have become."""
_MAX_DEPTH = 100
"""Containers in each other, from which on `json` decides: how many it takes depends on what has called it."""
_LONG_LINE_BYTES = 4096
"""Bytes of a line whose text is looked at before its values are."""
_UPPER_HALVES = np.uint64(0xF0F0F0F0F0F0F0F0)
_DIGITS = np.uint64(0x3030303030303030)
_OPENING = (np.uint8(ord("[")), np.uint8(ord("{")))


def decode_by_json(record: bytes) -> Any:
    """Decode as `json.loads` does, without its checks for encodings and white space, which cost as much as a short
    line."""
    try:
        text = record.decode()
        decoded, end = _SCAN(text, 0)
    except (ValueError, StopIteration):
        return json.loads(record)
    if end == len(text):
        return decoded
    return json.loads(record)


def decoder_with_orjson(loads: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Make the decoder that tries orjson's `loads` first."""

    def decode(record: bytes) -> Any:
        try:
            decoded = loads(record)
        except ValueError:
            return json.loads(record)
        kind = type(decoded)
        if kind is dict and _PLAIN.issuperset(map(type, decoded.values())):
            return decoded
        if kind in _CONTAINERS:
            same = (
                len(record) >= _LONG_LINE_BYTES and _is_free_of_long_numbers_and_nesting(record)
            ) or _is_decoded_alike_by_json(decoded)
        else:
            same = kind is not float or -_MIN_LARGE_INTEGER < decoded < _MIN_LARGE_INTEGER
        if same:
            return decoded
        return json.loads(record)

    return decode


def _is_free_of_long_numbers_and_nesting(record: bytes) -> bool:
    """Whether a text has neither long numbers nor many containers: some nineteen digits in a row fill eight bytes that
    begin at a multiple of eight. The six characters behind the digits count as such."""
    chunks = np.frombuffer(record, np.uint64, len(record) >> 3)
    if ((chunks & _UPPER_HALVES) == _DIGITS).any():
        return False
    characters = np.frombuffer(record, np.uint8)
    return sum(int(np.count_nonzero(characters == character)) for character in _OPENING) < _MAX_DEPTH


def _is_decoded_alike_by_json(container: Any) -> bool:
    """Whether no float is so large, and no container so deep, that `json` may say something else."""
    level = [container]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for value_container in level:
            values: Collection[Any] = value_container
            if type(value_container) is dict:
                values = value_container.values()
            kinds = set(map(type, values))
            if float in kinds and any(
                type(value) is float and not -_MIN_LARGE_INTEGER < value < _MIN_LARGE_INTEGER for value in values
            ):
                return False
            if not kinds.isdisjoint(_CONTAINERS):
                below += [value for value in values if type(value) in _CONTAINERS]
        if not below:
            return True
        level = below
    return False


def _choose_decoder() -> Callable[[bytes], Any]:
    try:
        return decoder_with_orjson(import_module("orjson").loads)
    except ImportError:
        return decode_by_json


decode: Callable[[bytes], Any] = _choose_decoder()
"""What `json.loads` gives of a line. Raises what it raises: ValueError, RecursionError."""
