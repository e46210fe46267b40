"""Pickles of others, of which a few classes are made and nothing else is called.

Python's own unpickler in C makes room for as many objects as a pickle of ten bytes says that it has, which ends the
process; the one in Python does not. The words of a pickle that it follows are those that torch's files need.
"""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

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
)
"""What a pickle that is damaged ends in."""


_InPython: Any = pickle._Unpickler


def _build(unpickler: Any) -> None:
    """The state of an object that the pickle has made, and not of a class or a member that others use too."""
    made = unpickler.stack[-2]
    if isinstance(made, enum.Enum) or callable(made):
        raise pickle.UnpicklingError(f"it changes {made!r}")
    _InPython.load_build(unpickler)


class CarefulUnpickler(_InPython):  # type: ignore[misc]
    """Derive it with a `find_class` that knows what may be named."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{word: follow for word, follow in _InPython.dispatch.items() if word in _FOLLOWED},
        pickle.BUILD[0]: _build,
    }
