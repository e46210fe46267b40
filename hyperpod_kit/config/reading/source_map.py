"""Where everything stands in the file: a JSON text -> line and column of every key and every value.

The text has been read by the JSON parser before, so the scanner here need not judge it; it only keeps count.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

DEEPEST = 64
"""Levels of nesting that a configuration may have; ours needs seven."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]|[^\s{}\[\]:,"]+', re.DOTALL)
"""A colon is none: which text is a key is known without it."""

_TEXT = json.JSONDecoder(strict=False)


class Position(NamedTuple):
    """A position in the text, both numbers counted from 1; a column is a character."""

    line: int
    column: int


class KeyPosition(NamedTuple):
    """Where one path is written: its key (of a list's item: the item), and its value."""

    key: Position
    value: Position


class TooDeep(Exception):
    """The text nests deeper than DEEPEST."""


@dataclass
class SourceMap:
    """path -> KeyPosition, and (path, first, second) of every key that is written twice in one object."""

    of: dict[str, KeyPosition] = field(default_factory=dict)
    doubles: list[tuple[str, Position, Position]] = field(default_factory=list)

    def add(self, path: str, key: Position, value: Position, *, written_before: bool = False) -> None:
        """Note one key or item. `written_before`: the same object has the same key already."""
        if written_before:
            self.doubles.append((path, self.of[path].key, key))
        self.of[path] = KeyPosition(key, value)

    def find_nearest_position(self, path: str, *, key: bool = False) -> Optional[Position]:
        """Position of the path, of its key if that is asked for; of the nearest thing around it if it is not written.

        What is missing is pointed at by the key of the object that lacks it.
        """
        if path in self.of:
            if key:
                return self.of[path].key
            return self.of[path].value
        cut = max(path.rfind("."), path.rfind("["))
        while cut > 0:
            path = path[:cut]
            if path in self.of:
                return self.of[path].key
            cut = max(path.rfind("."), path.rfind("["))
        return None


class _Open:
    """An object or list that the scanner is inside of. `key`: the last one read, None between two entries."""

    def __init__(self, path: str, is_object: bool) -> None:
        self.path, self.is_object = path, is_object
        self.keys: set[str] = set()
        self.index = 0
        self.key: Optional[tuple[str, Position]] = None


def child_path(path: str, key: str) -> str:
    """The path of a key: `hyperpod_kit.mounts`."""
    if path:
        return f"{path}.{key}"
    return key


def map_json_positions(text: str) -> SourceMap:
    """Positions in a text that is JSON. Raises TooDeep."""
    positions = SourceMap()
    stack: list[_Open] = []
    starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1]
    line = 1
    for match in _TOKEN.finditer(text):
        token = match.group()
        inside = None
        if stack:
            inside = stack[-1]
        if token in ("}", "]"):
            stack.pop()
            continue
        if token == ",":
            assert inside is not None
            inside.index += 1
            continue
        start = match.start()
        while starts[line] <= start:
            line += 1
        position = Position(line, start - starts[line - 1] + 1)
        if inside is not None and inside.is_object and inside.key is None:
            inside.key = (_TEXT.decode(token) if "\\" in token else token[1:-1], position)
        else:
            if inside is None:
                path = ""
            else:
                path = _record_position_and_return_path(positions, inside, position)
            if token in ("{", "["):
                if len(stack) >= DEEPEST:
                    raise TooDeep
                stack.append(_Open(path, token == "{"))
    return positions


def _record_position_and_return_path(positions: SourceMap, inside: _Open, position: Position) -> str:
    if inside.key is None:
        path = f"{inside.path}[{inside.index}]"
        positions.add(path, position, position)
        return path
    name, key_mark = inside.key
    inside.key = None
    path = child_path(inside.path, name)
    positions.add(path, key_mark, position, written_before=name in inside.keys)
    inside.keys.add(name)
    return path
