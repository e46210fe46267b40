"""Numbers and arrays of numpy as records, and back: a number by its bytes, an array as a tensor."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean_one_line

Record = dict[str, Any]

ARRAY = "array"
"""The kind of an array's record."""

_CODES = "?bhilqBHILQefdFD"
"""Codes of numpy's number types with the same bits on every machine: not long double."""


_DTYPE_CODE = re.compile(r"[<>|=]?[?a-zA-Z][0-9]{0,2}")
"""A type as `dtype.str` writes it."""


def is_numpy_scalar(value: object) -> bool:
    """Return whether `value` is a scalar of numpy, of a type with the same bits on every machine."""
    numpy = sys.modules.get("numpy")  # nobody has such a number before numpy was imported
    return numpy is not None and isinstance(value, numpy.generic) and value.dtype.char in _CODES


def encode_numpy_scalar(value: Any) -> Record:
    """Return the record of a scalar of numpy: its type and its bytes."""
    return {"$": "numpy", "t": value.dtype.str, "v": base64.b64encode(value.tobytes()).decode()}


def decode_numpy_scalar(record: Record) -> Any:
    """Return the scalar of numpy that a record describes. Raises CheckpointError."""
    numpy = _require_numpy("a numpy number", record)
    return numpy.frombuffer(base64.b64decode(record["v"]), dtype=_validated_dtype_code(record))[0]


def is_numpy_array(value: Any) -> bool:
    """Return whether `value` is an array of numbers, of numpy's own class."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and value.dtype.char in _CODES


def encode_numpy_array(value: Any, record_tensor: Callable[[torch.Tensor], Any]) -> Record:
    """Return the record of an array of numpy; `record_tensor` is given a copy of its numbers as a
    tensor and returns the tensor's record."""
    import numpy

    by_columns = value.flags.f_contiguous and not value.flags.c_contiguous
    native = value.dtype.newbyteorder("=")
    rows = value
    if by_columns:
        rows = value.T
    numbers = numpy.array(rows, dtype=native, order="C", copy=True)
    return {"$": ARRAY, "t": value.dtype.str, "f": int(by_columns), "of": record_tensor(torch.from_numpy(numbers))}


def decode_numpy_array(record: Record, numbers: Any) -> Any:
    """Return the array that a record describes, with its type, byte order and order in memory, over
    the memory of `numbers` where that is possible.

    A placeholder in the place of a tensor that is not read is returned as it is. Raises
    CheckpointError.
    """
    if not isinstance(numbers, torch.Tensor):
        return numbers
    kind = _require_numpy("a numpy array", record).dtype(_validated_dtype_code(record))
    values = numbers.detach().cpu().numpy()
    if kind.newbyteorder("=") != values.dtype:
        raise CheckpointError(f"the checkpoint holds an array of {record['t']} as numbers of {values.dtype}")
    values = values.astype(kind, copy=False)
    if record["f"]:
        return values.T
    return values


def _validated_dtype_code(body: Record) -> str:
    """Return the type code of a record's numbers.

    Raises CheckpointError for what is no such code: numpy takes longer words for expressions of
    Python's.
    """
    word = body["t"]
    if not isinstance(word, str) or _DTYPE_CODE.fullmatch(word) is None:
        raise CheckpointError(f"the checkpoint holds numbers of a type {clean_one_line(word)[:40]!r}")
    return word


def _require_numpy(what: str, body: Record) -> Any:
    try:
        import numpy
    except ImportError:
        raise CheckpointError(
            f"the checkpoint holds {what} ({body['t']}), and numpy is not installed here", hint="pip install numpy"
        ) from None
    return numpy
