"""A value against a shape of botocore's service models: every constraint that it violates. Words are for the callers.

The model is the installed one: the same file that the AWS CLI goes by.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Iterator, Mapping, Union

JSON_TYPES: dict[str, Any] = {
    "structure": dict,
    "map": dict,
    "list": list,
    "string": str,
    "boolean": bool,
    "blob": str,
    "integer": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
}
"""Type of the model -> what a JSON value of it is in Python."""

JAVA_CLASSES = {"\\p{L}": "\\w", "\\p{N}": "\\d", "\\p{Z}": "\\s", "\\p{IsAlphabetic}": "\\w", "\\p{M}": ""}
"""Classes of Java's regular expressions that Python lacks, and what comes near."""

Path = tuple[tuple[str, Union[str, int]], ...]
"""The way to a value: ("member", name), ("item", index), ("key", key) or ("value", key) for each step."""


class Constraint(Enum):
    """What a value can violate. UNKNOWN_MEMBER: the model has no such member."""

    TYPE = "type"
    UNKNOWN_MEMBER = "known"
    REQUIRED = "required"
    ONE_MEMBER = "one member"
    ENUM = "enum"
    BOUNDS = "bounds"
    PATTERN = "pattern"


@dataclass(frozen=True)
class Violation:
    """`shape`: of the value, or of the structure whose member it would be (UNKNOWN_MEMBER, REQUIRED)."""

    constraint: Constraint
    path: Path
    shape: Any
    value: Any = None


@lru_cache(maxsize=8)
def service_model_loader(data_path: str) -> Any:
    """Return botocore's loader of models, made once for each directory of more of them ("": none). It keeps what it has
    read: endpoints.json alone costs 0.15 s of CPU each time."""
    from botocore.loaders import create_loader

    return create_loader(data_path or None)


@lru_cache(maxsize=8)
def _load_service_model(service: str, data_path: str) -> Any:
    # Not through a session, which brings the whole client along: three times the time of `validate`.
    from botocore.model import ServiceModel

    return ServiceModel(service_model_loader(data_path).load_service_model(service, "service-2"), service)


def service_model(service: str) -> Any:
    """Return botocore's ServiceModel of a service. Raises ImportError without botocore."""
    # The directory is part of the key: whoever points botocore at other models gets those.
    return _load_service_model(service, os.environ.get("AWS_DATA_PATH", ""))


def violations(shape: Any, value: Any, path: Path = (), *, null_is_absent: bool = False) -> Iterator[Violation]:
    """Yield every constraint that a JSON value violates. `null_is_absent`: as AWS takes a member that is null."""
    kind = shape.type_name
    if not isinstance(value, JSON_TYPES.get(kind, object)) or (isinstance(value, bool) and kind != "boolean"):
        yield Violation(Constraint.TYPE, path, shape, value)
    elif kind == "structure":
        yield from _structure_violations(shape, value, path, null_is_absent)
    elif kind == "list":
        yield from _bounds_violations(shape, value, len(value), path)
        for index, item in enumerate(value):
            yield from violations(shape.member, item, (*path, ("item", index)), null_is_absent=null_is_absent)
    elif kind == "map":
        yield from _bounds_violations(shape, value, len(value), path)
        for key, item in value.items():
            yield from violations(shape.key, key, (*path, ("key", key)), null_is_absent=null_is_absent)
            yield from violations(shape.value, item, (*path, ("value", key)), null_is_absent=null_is_absent)
    elif kind == "string" and shape.enum:
        if value not in shape.enum:
            yield Violation(Constraint.ENUM, path, shape, value)
    elif kind == "string":
        yield from _bounds_violations(shape, value, len(value), path)
        pattern = shape.metadata.get("pattern")
        if pattern and not _matches_or_cannot_read_java_pattern(pattern, value):
            yield Violation(Constraint.PATTERN, path, shape, value)
    elif kind in ("integer", "long", "float", "double"):
        yield from _bounds_violations(shape, value, value, path)


def _structure_violations(
    shape: Any, value: Mapping[str, Any], path: Path, null_is_absent: bool
) -> Iterator[Violation]:
    given = {name: item for name, item in value.items() if item is not None or not null_is_absent}
    for name in shape.required_members:
        if name not in given:
            yield Violation(Constraint.REQUIRED, (*path, ("member", name)), shape)
    if getattr(shape, "is_tagged_union", False) and len(given) != 1:
        yield Violation(Constraint.ONE_MEMBER, path, shape, value)
    for name, item in given.items():
        there = (*path, ("member", name))
        if name in shape.members:
            yield from violations(shape.members[name], item, there, null_is_absent=null_is_absent)
        else:
            yield Violation(Constraint.UNKNOWN_MEMBER, there, shape, item)


def _bounds_violations(shape: Any, value: Any, number: float, path: Path) -> Iterator[Violation]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and number < low) or (high is not None and number > high):
        yield Violation(Constraint.BOUNDS, path, shape, value)


def _matches_or_cannot_read_java_pattern(pattern: str, value: str) -> bool:
    for java, python in JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:
        return True  # a pattern that Python cannot read checks nothing
