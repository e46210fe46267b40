"""The effective configuration: every key with its value, and a word beside those that nobody wrote.

Read again, it is the same configuration.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Iterator

from hyperpod_kit.config import access_points, document
from hyperpod_kit.config.decode import decode
from hyperpod_kit.config.load import load
from hyperpod_kit.config.schema_recorder import KeyPath, KeyRead, complete

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@=-]*")
_NOT_TEXT = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Words that this reader or another one takes for something else than text."""


def effective(path: Path) -> tuple[dict[str, Any], set[KeyPath]]:
    """(every value, where the default counts). Raises UsageError, ConfigError when anything is wrong with the file."""
    load(path)
    reads: list[KeyRead] = []
    decode(document.read(path).values, access_points.read(path), reads)
    return complete(reads)


def without_defaults(path: Path) -> dict[str, Any]:
    """Read the values of the file without defaults, with anchors and merges resolved. Raises as `effective` does."""
    load(path)
    return document.read(path).values


def as_yaml(values: dict[str, Any], defaults: set[KeyPath]) -> str:
    """The text, one key a line, `# default` beside every default."""
    return "".join(f"{line}\n" for line in _lines(values, (), "", defaults))


def _lines(values: dict[str, Any], key_path: KeyPath, indent: str, defaults: set[KeyPath]) -> Iterator[str]:
    for key, value in values.items():
        child_path = (*key_path, key)
        name = _text(str(key))
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, child_path, indent + "  ", defaults)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield f"{indent}{name}:"
            for index, item in enumerate(value):
                yield from _item(item, (*child_path, index), indent, defaults)
        else:
            marker = ""
            if child_path in defaults:
                marker = "  # default"
            yield f"{indent}{name}: {_value(value)}" + marker


def _item(item: Any, key_path: KeyPath, indent: str, defaults: set[KeyPath]) -> Iterator[str]:
    if not isinstance(item, dict) or not item:
        yield f"{indent}- {_value(item)}"
        return
    for number, line in enumerate(_lines(item, key_path, indent + "  ", defaults)):
        if number == 0:
            yield f"{indent}- {line[len(indent) + 2 :]}"
        else:
            yield line


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(str(key))}: {_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _text(text: str) -> str:
    """A word as it is where nobody takes it for anything else; everything else in quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
