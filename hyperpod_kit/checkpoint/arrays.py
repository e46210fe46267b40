"""Numbers and arrays of numpy as records, and back: a number by its bytes, an array as a tensor."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean

Record = dict[str, Any]

ARRAY = "array"
"""The kind of an array's record."""

_CODES = "?bhilqBHILQefdFD"
"""Codes of numpy's number types with the same bits on every machine: not long double."""


_DTYPE_CODE = re.compile(r"[<>|=]?[?a-zA-Z][0-9]{0,2}")
"""A type as `dtype.str` writes it."""


def is_number(value: object) -> bool:
    """Whether it is one of numpy's numbers."""
    numpy = sys.modules.get("numpy")  # nobody has such a number before numpy was imported
    return numpy is not None and isinstance(value, numpy.generic) and value.dtype.char in _CODES


def encode_number(value: Any) -> Record:
    """The record of a number."""
    return {"$": "numpy", "t": value.dtype.str, "v": base64.b64encode(value.tobytes()).decode()}


def decode_number(body: Record) -> Any:
    """The number of a record. Raises CheckpointError."""
    numpy = _require_numpy("a numpy number", body)
    return numpy.frombuffer(base64.b64decode(body["v"]), dtype=_dtype_code(body))[0]


def is_array(value: Any) -> bool:
    """Whether it is an array of numbers, of numpy's own class."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and value.dtype.char in _CODES


def encode_array(value: Any, take: Callable[[torch.Tensor], Any]) -> Record:
    """The record of an array. `take` is given a copy of its numbers, and gives the tensor's record."""
    import numpy

    by_columns = value.flags.f_contiguous and not value.flags.c_contiguous
    native = value.dtype.newbyteorder("=")
    rows = value
    if by_columns:
        rows = value.T
    numbers = numpy.array(rows, dtype=native, order="C", copy=True)
    return {"$": ARRAY, "t": value.dtype.str, "f": int(by_columns), "of": take(torch.from_numpy(numbers))}


def decode_array(body: Record, numbers: Any) -> Any:
    """The array of a record, with its type, its byte order and its order in memory. It has the memory of `numbers`
    where it can; what stands for a tensor that nobody reads is given back. Raises CheckpointError."""
    if not isinstance(numbers, torch.Tensor):
        return numbers
    kind = _require_numpy("a numpy array", body).dtype(_dtype_code(body))
    values = numbers.detach().cpu().numpy()
    if kind.newbyteorder("=") != values.dtype:
        raise CheckpointError(f"the checkpoint holds an array of {body['t']} as numbers of {values.dtype}")
    values = values.astype(kind, copy=False)
    if body["f"]:
        return values.T
    return values


def _dtype_code(body: Record) -> str:
    """The type of its numbers. Raises CheckpointError: numpy takes longer words for expressions of Python's."""
    word = body["t"]
    if not isinstance(word, str) or _DTYPE_CODE.fullmatch(word) is None:
        raise CheckpointError(f"the checkpoint holds numbers of a type {clean(word)[:40]!r}")
    return word


def _require_numpy(what: str, body: Record) -> Any:
    try:
        import numpy
    except ImportError:
        raise CheckpointError(
            f"the checkpoint holds {what} ({body['t']}), and numpy is not installed here", hint="pip install numpy"
        ) from None
    return numpy
