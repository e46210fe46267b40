"""The route of a value through the code, as it runs: which functions are given it, in which files, under which names.

The figures say how much a reader has to open to follow one value: a value that passes many functions, and returns to
files that it had left, is hard to follow however short each function is.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Collection
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

import hyperpod_kit

_PACKAGE = str(Path(hyperpod_kit.__file__).parent)


class Passage(NamedTuple):
    """A call that was given the value: `file` below the package, the function, and the parameters that it came by."""

    file: str
    function: str
    parameters: tuple[str, ...]


class RouteFigures(NamedTuple):
    """`returns`: the ways on which it comes back to a file that it had left. `names`: of parameters, without self."""

    functions: int
    files: int
    returns: int
    names: int


class ValueRoute:
    """Follows values through the calls of hyperpod_kit that this thread makes in a `with` block.

    A value is followed by its identity, and so is what a function makes of it: an object of a class of hyperpod_kit, or
    a list, tuple or dict, that a call returns which was given a followed value, and a copy by `dataclasses.replace`.
    Members of enums and the empty tuple are not: they are the same object everywhere.

    A call that is given a holder of the value is on the route, too: a list, tuple, dict or dataclass that has it as an
    element or a field, such as `[mount]` or a context with the options. What is made of a holder is not followed.
    Threads and other processes that a value is handed to are not seen.

    Example:
        >>> route = ValueRoute(state)
        >>> with route:
        ...     manager.save(7, state)
        >>> route.figures().files
    """

    def __init__(self, *values: object) -> None:
        self.passages: list[Passage] = []
        # The objects themselves: an id is another object's once its own is freed.
        self._followed: dict[int, object] = {id(value): value for value in values}
        self._open_frames: set[int] = set()

    def __enter__(self) -> ValueRoute:
        sys.setprofile(self._on_event)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def figures(self) -> RouteFigures:
        """Return what a reader has to open to follow the value."""
        names = {name for passage in self.passages for name in passage.parameters} - {"self", "cls"}
        functions = {(passage.file, passage.function) for passage in self.passages}
        files = {passage.file for passage in self.passages}
        return RouteFigures(len(functions), len(files), count_returns(self.passages), len(names))

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code is _REPLACE:
            if event == "return" and self._is_followed(_first_argument(frame)):
                self._follow_result(argument)
            return
        if not code.co_filename.startswith(_PACKAGE):
            return
        if event == "call":
            parameters = self._followed_parameters(frame, code)
            if parameters:
                file = code.co_filename[len(_PACKAGE) + 1 :]
                function = getattr(code, "co_qualname", code.co_name)  # Python 3.11
                self.passages.append(Passage(file, function, parameters))
                if any(self._is_followed(frame.f_locals[name]) for name in parameters):
                    self._open_frames.add(id(frame))
        elif event == "return" and id(frame) in self._open_frames:
            self._open_frames.discard(id(frame))
            self._follow_result(argument)

    def _followed_parameters(self, frame: FrameType, code: CodeType) -> tuple[str, ...]:
        count = code.co_argcount + code.co_kwonlyargcount
        values = frame.f_locals
        return tuple(name for name in code.co_varnames[:count] if self._is_followed_or_holder(values.get(name)))

    def _is_followed(self, value: object) -> bool:
        return id(value) in self._followed

    def _is_followed_or_holder(self, value: object) -> bool:
        return self._is_followed(value) or any(map(self._is_followed, _parts(value)))

    def _follow_result(self, value: object) -> None:
        if isinstance(value, enum.Enum) or (isinstance(value, tuple) and not value):
            return
        if isinstance(value, (list, tuple, dict)) or _is_of_kit(value):
            self._followed[id(value)] = value


_REPLACE = dataclasses.replace.__code__


def _first_argument(frame: FrameType) -> object:
    return frame.f_locals.get(frame.f_code.co_varnames[0])


def _is_of_kit(value: object) -> bool:
    return type(value).__module__.startswith("hyperpod_kit")


def _parts(value: object) -> Collection[object]:
    """Return the elements of a list, tuple or dict, and the fields of a dataclass of hyperpod_kit."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if dataclasses.is_dataclass(value) and _is_of_kit(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return ()


def count_returns(passages: list[Passage]) -> int:
    """Count the ways back to a file that was left; one that a loop takes many times is one."""
    returns: set[tuple[str, str, str]] = set()
    entered: set[str] = set()
    before = ""
    for passage in passages:
        if passage.file != before and passage.file in entered:
            returns.add((before, passage.file, passage.function))
        entered.add(passage.file)
        before = passage.file
    return len(returns)
