"""Pickles of others, of which a few classes are made and nothing else is called.

Python's own unpickler in C makes room for as many objects as a pickle of ten bytes says that it has, which ends the
process; the one in Python does not. The words of a pickle that it follows are those that torch's files need.
"""

from __future__ import annotations

import enum
import io
import pickle
import struct
from collections.abc import Callable
from typing import Any

_ALLOWED_OPCODES = frozenset(
    bytes(opcode)[0]
    for opcode in (
        pickle.PROTO,
        pickle.FRAME,
        pickle.STOP,
        pickle.MARK,
        pickle.POP,
        pickle.POP_MARK,
        pickle.NONE,
        pickle.NEWTRUE,
        pickle.NEWFALSE,
        pickle.BININT,
        pickle.BININT1,
        pickle.BININT2,
        pickle.LONG1,
        pickle.BINFLOAT,
        pickle.BINUNICODE,
        pickle.SHORT_BINUNICODE,
        pickle.BINBYTES,
        pickle.SHORT_BINBYTES,
        pickle.EMPTY_TUPLE,
        pickle.TUPLE,
        pickle.TUPLE1,
        pickle.TUPLE2,
        pickle.TUPLE3,
        pickle.EMPTY_LIST,
        pickle.APPEND,
        pickle.APPENDS,
        pickle.EMPTY_DICT,
        pickle.SETITEM,
        pickle.SETITEMS,
        pickle.EMPTY_SET,
        pickle.ADDITEMS,
        pickle.FROZENSET,
        pickle.GLOBAL,
        pickle.STACK_GLOBAL,
        pickle.REDUCE,
        pickle.NEWOBJ,
        pickle.BUILD,
        pickle.BINPERSID,
        pickle.MEMOIZE,
        pickle.BINPUT,
        pickle.LONG_BINPUT,
        pickle.BINGET,
        pickle.LONG_BINGET,
    )
)
UNPICKLE_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    struct.error,
)
"""What a pickle that is damaged ends in."""


_PythonUnpickler: Any = pickle._Unpickler


def _load_build_refusing_classes(unpickler: Any) -> None:
    """Set the state of an object that the pickle has made; refuse a class or an enum member, which others use
    too."""
    instance = unpickler.stack[-2]
    if isinstance(instance, enum.Enum) or callable(instance):
        raise pickle.UnpicklingError(f"it changes {instance!r}")
    _PythonUnpickler.load_build(unpickler)


_MIN_OPCODES = 1 << 20
_BYTES_PER_OPCODE = 3
"""Bytes of a pickle for each of its words, beyond the first words: a container of one byte takes seventy in memory."""


class LimitedOpcodes(dict[int, Callable[[Any], None]]):
    """Words that are followed, each time one more, until there are more than records need."""

    def __init__(self, handlers: dict[int, Callable[[Any], None]], limit: int) -> None:
        super().__init__(handlers)
        self._remaining = limit

    def __getitem__(self, opcode: int) -> Callable[[Any], None]:
        self._remaining -= 1
        if self._remaining < 0:
            raise pickle.UnpicklingError("it has more objects than such a file can have")
        return super().__getitem__(opcode)


_OPCODE_HANDLERS: dict[int, Callable[[Any], None]] = {
    **{opcode: handler for opcode, handler in _PythonUnpickler.dispatch.items() if opcode in _ALLOWED_OPCODES},
    pickle.BUILD[0]: _load_build_refusing_classes,
}


class RestrictedUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Derive it with a `find_class` that knows what may be named."""

    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data)
        self.dispatch = LimitedOpcodes(_OPCODE_HANDLERS, _MIN_OPCODES + len(data.getbuffer()) // _BYTES_PER_OPCODE)
