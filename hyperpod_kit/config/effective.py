"""The effective configuration: every key with its value, and a word beside those that nobody wrote.

Read again, it is the same configuration.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Iterator

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.load import load
from hyperpod_kit.config.reading import document
from hyperpod_kit.config.settings import access_points
from hyperpod_kit.config.settings.schema_recorder import KeyPath, KeyRead, build_effective_values

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@=-]*")
_NOT_TEXT = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Words that this reader or another one takes for something else than text."""


def load_effective_values(path: Path) -> tuple[dict[str, Any], set[KeyPath]]:
    """Return (every value with defaults, key paths of the defaults).

    Raises UsageError, and ConfigError when anything is wrong with the file.
    """
    load(path)
    reads: list[KeyRead] = []
    decode_settings(document.read_document(path).values, access_points.read_access_points_or_empty(path), reads)
    return build_effective_values(reads)


def load_written_values(path: Path) -> dict[str, Any]:
    """Read the values of the file without defaults, with anchors and merges resolved.

    Raises UsageError, and ConfigError when anything is wrong with the file.
    """
    load(path)
    return document.read_document(path).values


def render_yaml_marking_defaults(values: dict[str, Any], defaults: set[KeyPath]) -> str:
    """Render the values as YAML, one key a line, with `# default` beside every default."""
    return "".join(f"{line}\n" for line in _yaml_lines(values, (), "", defaults))


def _yaml_lines(values: dict[str, Any], key_path: KeyPath, indent: str, defaults: set[KeyPath]) -> Iterator[str]:
    for key, value in values.items():
        child_path = (*key_path, key)
        name = _yaml_text(str(key))
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, child_path, indent + "  ", defaults)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield f"{indent}{name}:"
            for index, item in enumerate(value):
                yield from _yaml_item_lines(item, (*child_path, index), indent, defaults)
        else:
            marker = ""
            if child_path in defaults:
                marker = "  # default"
            yield f"{indent}{name}: {_yaml_value(value)}" + marker


def _yaml_item_lines(item: Any, key_path: KeyPath, indent: str, defaults: set[KeyPath]) -> Iterator[str]:
    if not isinstance(item, dict) or not item:
        yield f"{indent}- {_yaml_value(item)}"
        return
    for number, line in enumerate(_yaml_lines(item, key_path, indent + "  ", defaults)):
        if number == 0:
            yield f"{indent}- {line[len(indent) + 2 :]}"
        else:
            yield line


def _yaml_value(value: Any) -> str:
    if isinstance(value, str):
        return _yaml_text(value)
    if isinstance(value, list):
        return f"[{', '.join(_yaml_value(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml_text(str(key))}: {_yaml_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _yaml_text(text: str) -> str:
    """Return a text as a plain YAML scalar where no reader takes it for another type, else in quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
