"""JSON and numbers that another wrote: whatever it is, the answer is a value or ValueError.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

LARGEST = 4 << 20
"""Bytes or characters of a document where nothing else is said."""


def parse_json(
    data: Union[bytes, bytearray, str],
    most: int = LARGEST,
    pairs: Optional[Callable[[List[Tuple[str, Any]]], Any]] = None,
) -> Any:
    """The value of a JSON document. Raises ValueError: too large, too deep, no UTF-8, no JSON."""
    if len(data) > most:
        raise ValueError(f"{len(data)} bytes of JSON, expected at most {most}")
    try:
        return json.loads(data, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def parse_json_object(
    data: Union[bytes, bytearray, str], most: int = LARGEST, *, refuse_repeated_names: bool = False
) -> Dict[str, Any]:
    """The same for a document that must be an object. Raises ValueError; with `distinct` also for a name that is twice
    in an object of it."""
    value = parse_json(data, most, _object_without_repeats if refuse_repeated_names else None)
    if not isinstance(value, dict):
        raise ValueError(f"its JSON is of type {type(value).__name__}, expected an object")
    return value


def parse_decimal(text: str) -> Optional[int]:
    """Return the number that up to 18 ASCII digits write, None for anything else. `str.isdigit` is true of "²"
    and of 4,301 nines, too, of which `int` makes no number."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    return None


def _object_without_repeats(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    made: Dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"it has the key {name[:80]!r} twice")
        made[name] = value
    return made
