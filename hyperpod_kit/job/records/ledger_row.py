"""Check the rows of a ledger, which whoever may write to a checkpoint root may have written. Pure."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from hyperpod_kit.untrusted.text import clean_one_line


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 63


def _amount(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e11


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_count, value))


def _pairs(value: Any) -> bool:
    return isinstance(value, list) and all(map(_pair, value))


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(element, kind) for element in value)


FIELDS: Dict[str, Callable[[Any], bool]] = {
    "event": _text,
    "attempt": _text,
    "job": _text,
    "life": _text,
    "restart": _count,
    "t": _amount,
    "from": _text,
    "step": _count,
    "nodes": _list_of(str),
    "starts": _pairs,
    "rejected": _list_of(dict),
    "seconds": _amount,
    "class": _text,
    "code": _count,
    "lost": _list_of(str),
    "first": lambda value: isinstance(value, dict),
    "reached": _count,
    "begins": _count,
    "tier": _text,
    "error": _text,
    "words": _text,
    "hang": _text,
    "order": _pair,
}
"""Maps a field to the check of its value; a field may be missing, or null."""


def problem(row: Mapping[str, Any]) -> str:
    """Return why no `job run` can have written this row, "" when one can."""
    for name, good in FIELDS.items():
        value = row.get(name)
        if value is not None and not good(value):
            return f"its {name} is {clean_one_line(value, 60)!r}"
    return ""
