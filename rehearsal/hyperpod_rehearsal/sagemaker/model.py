"""Requests and answers against the service model that botocore ships: the same file that the AWS CLI goes by."""

from __future__ import annotations

from typing import Any, Callable, Container, Iterator, Mapping

from hyperpod_kit.aws.shapes import Constraint, Path, Violation, service_model, violations

STRUCTURE = (Constraint.REQUIRED, Constraint.UNKNOWN_MEMBER, Constraint.ENUM)
"""What an answer is held to."""


class WrongType(Exception):
    """A JSON value of another type than the model says; AWS does not even start to validate then."""


def request_violations(operation: str, request: Mapping[str, Any]) -> list[str]:
    """Every constraint that the request violates, in AWS's words. Raises WrongType."""
    return list(_violation_messages(service_model("sagemaker").operation_model(operation).input_shape, request))


def response_shape_violations(operation: str, response: Mapping[str, Any]) -> list[str]:
    """Where an answer is not of the model's shape: members it does not know, required ones absent, wrong enum values.

    Raises WrongType.
    """
    shape = service_model("sagemaker").operation_model(operation).output_shape
    return list(_violation_messages(shape, response, only=STRUCTURE))


def validation_message(violations: list[str]) -> str:
    """The message of a ValidationException as AWS words it."""
    count = len(violations)
    return f"{count} validation error{'' if count == 1 else 's'} detected: {'; '.join(violations)}"


def _violation_messages(shape: Any, value: Any, only: Container[Constraint] = tuple(Constraint)) -> Iterator[str]:
    for violation in () if shape is None else violations(shape, value, null_is_absent=True):
        path = _format_member_path(violation.path)
        if violation.constraint is Constraint.TYPE:
            expected_type = _type_with_article(violation.shape.type_name)
            raise WrongType(
                f"{_json_token_name(violation.value)} can not be converted to {expected_type} at '{path or 'request'}'"
            )
        if violation.constraint is Constraint.REQUIRED:
            yield f"Value null at '{path}' failed to satisfy constraint: Member must not be null"
        elif violation.constraint in only:
            yield _violation_message(violation.value, path, _constraint_text(violation))


def _constraint_text(violation: Violation) -> str:
    """The constraint in AWS's words."""
    shape = violation.shape
    if violation.constraint is Constraint.UNKNOWN_MEMBER:
        return f"Member is not one of {sorted(shape.members)}"
    if violation.constraint is Constraint.ONE_MEMBER:
        return "Member must have exactly one of the union's members set"
    if violation.constraint is Constraint.ENUM:
        return f"Member must satisfy enum value set: [{', '.join(shape.enum)}]"
    if violation.constraint is Constraint.PATTERN:
        return f"Member must satisfy regular expression pattern: {shape.metadata['pattern']}"
    has_length = isinstance(violation.value, (list, dict, str))
    if has_length:
        number = len(violation.value)
    else:
        number = violation.value
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if low is not None and number < low:
        side, bound = ("greater", low)
    else:
        side, bound = ("less", high)
    return f"Member must have {'length' if has_length else 'value'} {side} than or equal to {bound}"


def _format_member_path(path: Path) -> str:
    """AWS names members as its Java code does, first letter small, and counts items from 1."""
    steps: dict[str, Callable[[Any], str]] = {
        "member": lambda name: f"{name[:1].lower()}{name[1:]}",
        "item": lambda index: f"{index + 1}.member",
        "key": lambda key: f"{key}.key",
        "value": lambda key: f"{key}.member",
    }
    return ".".join(steps[kind](name) for kind, name in path)


def _violation_message(value: Any, path: str, constraint: str) -> str:
    return f"Value '{_java_text(value)}' at '{path}' failed to satisfy constraint: {constraint}"


def _java_text(value: Any) -> str:
    """A value as Java prints it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_java_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_java_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _json_token_name(value: Any) -> str:
    kinds = (
        (bool, "TRUE_VALUE" if value is True else "FALSE_VALUE"),
        (str, "STRING_VALUE"),
        (int, "NUMBER_VALUE"),
        (float, "DECIMAL_VALUE"),
        (list, "START_ARRAY"),
        (dict, "START_OBJECT"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "NULL_VALUE")


def _type_with_article(kind: str) -> str:
    names = {
        "integer": "an Integer",
        "string": "a String",
        "list": "a List",
        "structure": "an Object",
        "map": "a Map",
        "boolean": "a Boolean",
    }
    return names.get(kind, f"a {kind.capitalize()}")
