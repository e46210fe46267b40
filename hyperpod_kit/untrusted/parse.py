"""JSON that another wrote: whatever it is, the answer is a value or ValueError.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Union

LARGEST = 4 << 20
"""Bytes or characters of a document where nothing else is said."""


def document(data: Union[bytes, str], most: int = LARGEST) -> Any:
    """The value of a JSON document. Raises ValueError: too large, too deep, no UTF-8, no JSON."""
    if len(data) > most:
        raise ValueError(f"{len(data)} bytes of JSON, expected at most {most}")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def json_object(data: Union[bytes, str], most: int = LARGEST) -> Dict[str, Any]:
    """The same for a document that must be an object. Raises ValueError."""
    value = document(data, most)
    if not isinstance(value, dict):
        raise ValueError(f"its JSON is of type {type(value).__name__}, expected an object")
    return value
