"""Requests and answers against the service model that botocore ships: the same file that the AWS CLI goes by."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Iterator, Mapping

import botocore.session
from botocore.model import ServiceModel, Shape

JSON_TYPES = {
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
JAVA_CLASSES = {"\\p{L}": "\\w", "\\p{N}": "\\d", "\\p{Z}": "\\s", "\\p{IsAlphabetic}": "\\w", "\\p{M}": ""}
"""Classes of Java's regular expressions that Python lacks, and what comes near."""


@lru_cache(maxsize=1)
def service_model() -> ServiceModel:
    """SageMaker's model as installed."""
    return botocore.session.get_session().get_service_model("sagemaker")


class WrongType(Exception):
    """A JSON value of another type than the model says; AWS does not even start to validate then."""


def check_request(operation: str, request: Mapping[str, Any]) -> list[str]:
    """Every constraint that the request violates, in AWS's words. Raises WrongType."""
    shape = service_model().operation_model(operation).input_shape
    return [] if shape is None else list(_violations(shape, request, "", strict=True))


def check_answer(operation: str, answer: Mapping[str, Any]) -> list[str]:
    """Where an answer is not of the model's shape: members it does not know, required ones absent, wrong enum values.

    Raises WrongType.
    """
    shape = service_model().operation_model(operation).output_shape
    return [] if shape is None else list(_violations(shape, answer, "", strict=False))


def validation_message(violations: list[str]) -> str:
    """The message of a ValidationException as AWS words it."""
    count = len(violations)
    return f"{count} validation error{'' if count == 1 else 's'} detected: {'; '.join(violations)}"


def _violations(shape: Shape, value: Any, path: str, *, strict: bool) -> Iterator[str]:
    kind = shape.type_name
    expected: Any = JSON_TYPES[kind]
    if not isinstance(value, expected) or (isinstance(value, bool) and kind != "boolean"):
        raise WrongType(f"{_json_kind(value)} can not be converted to {_article(kind)} at '{path or 'request'}'")
    if kind == "structure":
        yield from _structure_violations(shape, value, path, strict=strict)
    elif kind == "list":
        if strict:
            yield from _length(shape, len(value), value, path)
        for position, item in enumerate(value, 1):
            yield from _violations(shape.member, item, f"{path}.{position}.member", strict=strict)
    elif kind == "map":
        if strict:
            yield from _length(shape, len(value), value, path)
        for key, item in value.items():
            yield from _violations(shape.key, key, f"{path}.{key}.key", strict=strict)
            yield from _violations(shape.value, item, f"{path}.{key}.member", strict=strict)
    elif kind == "string":
        if shape.enum and value not in shape.enum:
            yield _failed(value, path, f"Member must satisfy enum value set: [{', '.join(shape.enum)}]")
        if strict:
            yield from _length(shape, len(value), value, path)
            pattern = shape.metadata.get("pattern")
            if pattern and not _matches(pattern, value):
                yield _failed(value, path, f"Member must satisfy regular expression pattern: {pattern}")
    elif kind in ("integer", "long", "float", "double") and strict:
        low, high = shape.metadata.get("min"), shape.metadata.get("max")
        if low is not None and value < low:
            yield _failed(value, path, f"Member must have value greater than or equal to {low}")
        if high is not None and value > high:
            yield _failed(value, path, f"Member must have value less than or equal to {high}")


def _structure_violations(shape: Shape, value: Mapping[str, Any], path: str, *, strict: bool) -> Iterator[str]:
    for name in shape.required_members:
        if value.get(name) is None:
            yield f"Value null at '{_join(path, name)}' failed to satisfy constraint: Member must not be null"
    given = [name for name, item in value.items() if item is not None]
    if strict and getattr(shape, "is_tagged_union", False) and len(given) != 1:
        yield _failed(value, path, "Member must have exactly one of the union's members set")
    for name in given:
        if name not in shape.members:
            yield _failed(value[name], _join(path, name), f"Member is not one of {sorted(shape.members)}")
        else:
            yield from _violations(shape.members[name], value[name], _join(path, name), strict=strict)


def _length(shape: Shape, length: int, value: Any, path: str) -> Iterator[str]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if low is not None and length < low:
        yield _failed(value, path, f"Member must have length greater than or equal to {low}")
    if high is not None and length > high:
        yield _failed(value, path, f"Member must have length less than or equal to {high}")


def _matches(pattern: str, value: str) -> bool:
    for java, python in JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:
        return True  # a pattern that Python cannot read checks nothing


def _failed(value: Any, path: str, constraint: str) -> str:
    return f"Value '{_shown(value)}' at '{path}' failed to satisfy constraint: {constraint}"


def _shown(value: Any) -> str:
    """A value as Java prints it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_shown(item)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _join(path: str, name: str) -> str:
    """AWS names members as its Java code does: first letter small."""
    small = name[:1].lower() + name[1:]
    return f"{path}.{small}" if path else small


def _json_kind(value: Any) -> str:
    kinds = (
        (bool, "TRUE_VALUE" if value is True else "FALSE_VALUE"),
        (str, "STRING_VALUE"),
        (int, "NUMBER_VALUE"),
        (float, "DECIMAL_VALUE"),
        (list, "START_ARRAY"),
        (dict, "START_OBJECT"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "NULL_VALUE")


def _article(kind: str) -> str:
    names = {
        "integer": "an Integer",
        "string": "a String",
        "list": "a List",
        "structure": "an Object",
        "map": "a Map",
        "boolean": "a Boolean",
    }
    return names.get(kind, f"a {kind.capitalize()}")
