"""The file as it was written: JSON or YAML text -> plain values, and where each of them stands."""

from __future__ import annotations

import json
import os
import select
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperpod_kit.config.reading import credentials, source_map, yaml_text
from hyperpod_kit.config.reading.source_map import SourceMap
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.errors import Absent, ConfigError, UsageError

LARGEST = 4 << 20
"""Bytes of a configuration: ten thousand users and their comments."""

PIPE_SECONDS = 10

YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Document:
    """`values`: the top-level object; `source_map`: path -> where; `findings`: keys that were written twice."""

    path: Path
    values: dict[str, Any]
    source_map: SourceMap
    findings: tuple[Finding, ...]


def read_document(path: Path) -> Document:
    """Read a configuration file.

    Raises UsageError when there is no such file, ConfigError when it is not JSON or YAML or holds no object.
    """
    values, where = parse_text(path, _read_bounded_text(path))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds {_describe_type(values)}, expected an object with keys",
            hint="hyperpod-kit init --from-example",
        )
    doubles = tuple(
        Finding(
            "HPK-C004",
            key_path,
            f"the key is written twice, first on line {first.line}",
            "Keep one of the two",
            line=second.line,
            column=second.column,
        )
        for key_path, first, second in where.doubles
    )
    return Document(path, values, where, doubles)


def read_values(path: Path) -> Any:
    """Read the values of any JSON or YAML file. Raises UsageError, ConfigError."""
    return parse_text(path, _read_bounded_text(path))[0]


def parse_text(path: Path, text: str) -> tuple[Any, SourceMap]:
    """Values and positions of a text; the name of `path` says what it is, messages name it. Raises ConfigError."""
    if not text.strip():
        raise ConfigError(f"{path} is empty", hint="hyperpod-kit init --from-example --force")
    try:
        if path.suffix.lower() in YAML:
            return yaml_text.parse_yaml(text)
        return _parse_json(path, text)
    except yaml_text.Refused as err:
        where, shown, hint = "", "", None
        if err.position:
            where = f" at line {err.position.line}, column {err.position.column}"
            shown = _displayable_line_hiding_secrets(text, err.position.line)
            hint = f"correct line {err.position.line}"
        if shown:
            where = f"{where}: {shown}"
        raise ConfigError(
            f"{path} is not YAML that can be read: {_escape_unprintable(str(err))}{where}", hint=hint
        ) from err
    except (source_map.TooDeep, RecursionError):
        raise ConfigError(f"{path} is nested deeper than {source_map.DEEPEST} levels") from None


def _read_bounded_text(path: Path) -> str:
    """The file's text. No more is read than a configuration can have, whatever the file is."""
    try:
        # Not waiting: a pipe that nobody writes to would never be open.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                _wait_for_pipe_input(path, file.fileno())
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise UsageError(f"{path} has more than {LARGEST >> 20} MiB: that is not a configuration")
        # Line ends of Windows and of old Macs count as line ends.
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise Absent(f"there is no configuration file {path}", hint="hyperpod-kit init") from None
    except UnicodeDecodeError as err:
        raise UsageError(
            f"cannot read {path}: byte {err.start} is not UTF-8", hint="save it as UTF-8; PowerShell's > writes UTF-16"
        ) from err
    except (OSError, ValueError) as err:
        raise UsageError(f"cannot read {path}: {err}") from err


def _wait_for_pipe_input(path: Path, pipe: int) -> None:
    """What a shell gives for `<(…)` is a pipe too; what comes through it may take a while. Raises UsageError."""
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    if not poller.poll(PIPE_SECONDS * 1000):
        raise UsageError(f"{path} is a pipe, and nothing has come through it within {PIPE_SECONDS} s")
    os.set_blocking(pipe, True)


def _parse_json(path: Path, text: str) -> tuple[Any, SourceMap]:
    try:
        values = json.loads(text, parse_constant=_reject_json_constant)
        return values, source_map.map_json_positions(text)
    except json.JSONDecodeError as err:
        if text.split("\n")[err.lineno - 1].lstrip().startswith(("//", "#", "/*")):
            hint = f"remove line {err.lineno}: JSON takes no comments"
        else:
            hint = f"correct line {err.lineno}, or name the file .yaml if it is YAML"
        raise ConfigError(
            f"{path} is not JSON: {err.msg} at line {err.lineno}, column {err.colno}: "
            f"{_displayable_line_hiding_secrets(text, err.lineno) or 'the end of the file'}",
            hint=hint,
        ) from err
    except ValueError as err:
        problem = str(err)  # of NaN
        if "digits" in problem:
            problem = "it has a number of thousands of digits"
        raise ConfigError(f"{path} is not JSON that can be read: {problem}") from err


def _reject_json_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON's")


def _displayable_line_hiding_secrets(text: str, number: int) -> str:
    """A line to show; empty where the text has no such line: a file that stops too early is wrong behind its end."""
    line = next(iter(text.split("\n")[number - 1 :]), "").strip()
    if any(credentials.find_secrets_in_text(line)):
        return "(a line that is not shown: it looks like a secret)"
    return _escape_unprintable(line)[:80]


def _escape_unprintable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _describe_type(value: object) -> str:
    type_names = {list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return type_names.get(type(value), "nothing")
