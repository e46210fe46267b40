"""The file as it was written: JSON or YAML text -> plain values, and the line of every path.

JSON is read by the JSON parser (its errors are the ones that a user of JSON expects); lines come from a YAML parse of
the same text, because JSON is YAML once its tabs are blanks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

from hyperpod_kit.config import credentials
from hyperpod_kit.config.findings import Finding
from hyperpod_kit.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Document:
    """`values`: the top-level object; `lines`: path -> 1-based line; `findings`: keys that were written twice."""

    path: Path
    values: dict[str, Any]
    lines: dict[str, int]
    findings: tuple[Finding, ...]


def read(path: Path) -> Document:
    """Read a configuration file.

    Raises UsageError when there is no such file, ConfigError when it is not JSON or YAML or holds no object.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"there is no configuration file {path}", hint="hyperpod-kit init") from None
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"cannot read {path}: {err}") from err
    is_json = path.suffix.lower() not in (".yaml", ".yml")
    values = _json(path, text) if is_json else _yaml(path, text)
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds {_kind(values)}, expected an object with keys", hint="hyperpod-kit init --from-example"
        )
    lines: dict[str, int] = {}
    doubles: list[Finding] = []
    for place, key_line, first_line in _keys(text.replace("\t", " ") if is_json else text):
        if first_line:
            doubles.append(
                Finding(
                    "HPK-C004",
                    place,
                    f"the key is written twice, first on line {first_line}",
                    "Keep one of the two",
                    line=key_line,
                )
            )
        lines[place] = key_line
    return Document(path, values, lines, tuple(doubles))


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as err:
        if not text.strip():
            raise ConfigError(f"{path} is empty", hint="hyperpod-kit init --from-example --force") from err
        # A file that stops too early is wrong on a line that it does not have.
        line = next(iter(text.splitlines()[err.lineno - 1 :]), "").strip()[:80] or "the end of the file"
        if any(credentials.in_text(line)):
            line = "(a line that is not shown: it looks like a secret)"
        raise ConfigError(
            f"{path} is not JSON: {err.msg} at line {err.lineno}, column {err.colno}: {line}",
            hint=f"correct line {err.lineno}, or name the file .yaml if it is YAML",
        ) from err


def _yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as err:
        # The message quotes the line.
        secret = any(credentials.in_text(str(err)))
        why = "a line that is not shown: it looks like a secret" if secret else " ".join(str(err).split())
        raise ConfigError(f"{path} is not YAML: {why}") from err


def _keys(text: str) -> Iterator[tuple[str, int, int]]:
    """(path, line, line of its first spelling or 0) of every key and list item, in file order."""
    try:
        import yaml
    except ImportError:
        return  # a JSON file can be judged without PyYAML, only without lines

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return  # valid JSON that YAML refuses: findings go without lines
    if root is not None:
        yield from _walk(root, "")


def _walk(node: Any, path: str) -> Iterator[tuple[str, int, int]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            place = f"{path}.{name}" if path else name
            line = key.start_mark.line + 1
            yield place, line, seen.get(name, 0)
            seen[name] = line
            yield from _walk(value, place)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{path}[{index}]", value.start_mark.line + 1, 0
            yield from _walk(value, f"{path}[{index}]")


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", type(None): "nothing"}.get(type(value), f"a {type(value).__name__}")
