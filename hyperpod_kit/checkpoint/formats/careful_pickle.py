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

_FOLLOWED = frozenset(
    bytes(word)[0]
    for word in (
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
WRONG = (
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


_InPython: Any = pickle._Unpickler


def _build(unpickler: Any) -> None:
    """The state of an object that the pickle has made, and not of a class or a member that others use too."""
    made = unpickler.stack[-2]
    if isinstance(made, enum.Enum) or callable(made):
        raise pickle.UnpicklingError(f"it changes {made!r}")
    _InPython.load_build(unpickler)


_FEW = 1 << 20
_WORD_BYTES = 3
"""Bytes of a pickle for each of its words, beyond the first words: a container of one byte takes seventy in memory."""


class CountedWords(dict[int, Callable[[Any], None]]):
    """Words that are followed, each time one more, until there are more than records need."""

    def __init__(self, words: dict[int, Callable[[Any], None]], most: int) -> None:
        super().__init__(words)
        self._left = most

    def __getitem__(self, word: int) -> Callable[[Any], None]:
        self._left -= 1
        if self._left < 0:
            raise pickle.UnpicklingError("it is made of more objects than records are")
        return super().__getitem__(word)


_WORDS: dict[int, Callable[[Any], None]] = {
    **{word: follow for word, follow in _InPython.dispatch.items() if word in _FOLLOWED},
    pickle.BUILD[0]: _build,
}


class CarefulUnpickler(_InPython):  # type: ignore[misc]
    """Derive it with a `find_class` that knows what may be named."""

    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data)
        self.dispatch = CountedWords(_WORDS, _FEW + len(data.getbuffer()) // _WORD_BYTES)
