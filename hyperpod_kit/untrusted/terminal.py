"""The one place through which words leave for a terminal: whoever wrote them, none moves a cursor or sets a title.

Where the admin's program has colours (cli/terminal/output.py) it cleans by the same functions and styles what is clean.
JSON needs none of it: its own escapes keep control characters out.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from typing import Any, Dict, List, Optional, TextIO

from hyperpod_kit.untrusted.text import replace_unprintable_in_lines, shortened

_KIT_LINE = re.compile(r"\n((?:error|hint):)")

LONGEST_LINE = 4096
"""Characters of one line: more of them are nobody's reading."""


def print_stdout(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Write sanitized text to standard output."""
    write_escaping_unencodable(sys.stdout, sanitize_lines(text) + end)
    if flush:
        sys.stdout.flush()


def print_stderr(text: str) -> None:
    """Write a sanitized line to standard error. Where that cannot be written, as when a job's log was on a
    mount that is lost, the program ends as it would have all the same."""
    try:
        write_escaping_unencodable(sys.stderr, sanitize_lines(text) + "\n")
        sys.stderr.flush()
    except OSError:
        redirect_to_devnull(sys.stderr)


def print_error_and_hint(message: object, hint: Optional[str] = None) -> None:
    """Write an error message and its hint to standard error. No line of the message can pass for one of ours."""
    print_stderr("error: " + indent_continuation_lines(str(message)))
    if hint:
        print_stderr("hint: " + indent_continuation_lines(hint))


def print_json(value: Any, *, indent: Optional[int] = None) -> None:
    """Write one value as JSON to standard output, for `--json`."""
    write_escaping_unencodable(sys.stdout, json_text_without_nan(value, indent=indent) + "\n")


def sanitize_lines(text: str) -> str:
    """Text of several lines as it may be shown: printable, no line without end, and none but the first that passes for
    an error or a hint of ours: names of files have line ends too."""
    if not printable_already(text):
        text = replace_unprintable_in_lines(text)
    clean = _KIT_LINE.sub(r"\n  \1", text)
    if len(clean) <= LONGEST_LINE:
        return clean
    return "\n".join(shortened(line, LONGEST_LINE) for line in clean.split("\n"))


def printable_already(text: str) -> bool:
    """Whether there is nothing to clean, as with nearly every text."""
    return text.isprintable() or all(line.isprintable() for line in text.split("\n"))


def indent_continuation_lines(text: str) -> str:
    """The text with each line after the first set in by at least two blanks."""
    first, *rest = text.split("\n")
    return "\n".join([first, *(line if line.startswith("  ") or not line else "  " + line for line in rest)])


def json_text_without_nan(value: Any, *, indent: Optional[int] = None) -> str:
    """JSON that every program reads: numbers that are none (NaN, Infinity) are null. ASCII, so nothing to clean."""
    try:
        return json.dumps(value, indent=indent, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_replace_non_finite(value), indent=indent, default=str)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    if isinstance(value, dict):
        mapping: Dict[Any, Any] = {key: _replace_non_finite(inner) for key, inner in value.items()}
        return mapping
    if isinstance(value, (list, tuple)):
        listed: List[Any] = [_replace_non_finite(inner) for inner in value]
        return listed
    return value


def redirect_to_devnull(stream: TextIO) -> None:
    """Redirect a stream to /dev/null: Python flushes it at its end, and would exit with 120."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, stream.fileno())
    os.close(null)


def write_escaping_unencodable(stream: TextIO, text: str) -> None:
    """Write what is clean already; a character that the terminal's encoding lacks becomes its number."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
