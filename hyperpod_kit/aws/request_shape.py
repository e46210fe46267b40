"""A request against the service model of the installed botocore, without a call.

botocore itself checks names, types and lower bounds only; AWS refuses patterns, enums and upper bounds too, after the
network. The model is the installed one: a field that AWS has and this botocore has not is named as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Iterable

from hyperpod_kit.aws.shapes import Constraint, Path, Violation, service_model, violations

_TYPE_NAMES = {
    "structure": "an object",
    "map": "an object",
    "list": "a list",
    "string": "a string",
    "boolean": "true or false",
    "integer": "a whole number",
    "long": "a whole number",
    "float": "a number",
    "double": "a number",
}
"""Times and blobs are left to botocore."""

_UNITS = {"list": "items", "map": "entries", "string": "characters"}


@dataclass(frozen=True)
class Problem:
    """What the service would refuse at `path`, such as `InstanceGroups[0].InstanceType`.

    newer: it may be right for a newer botocore, which has more fields and values; near: the name that it looks like.
    """

    path: str
    message: str
    newer: bool = False
    near: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def find_request_problems(service: str, operation: str, request: dict[str, Any]) -> list[Problem]:
    """List everything that the service would refuse in the request. Raises ImportError without botocore."""
    return [
        _problem_from_violation(violation)
        for violation in violations(_input_shape(service, operation), request)
        if _is_checkable(violation)
    ]


def field_constraints(service: str, operation: str, path: str) -> dict[str, Any]:
    """Return the constraints of one field: type_name, min, max, pattern, enum; those that the model has.

    `path`: like `InstanceGroups[].InstanceType`. Empty for a field that the installed botocore has not.
    """
    shape = _input_shape(service, operation)
    for step in re.findall(r"[^.\[\]]+|\[\]", path):
        if step == "[]":
            shape = shape.member
        elif step in shape.members:
            shape = shape.members[step]
        else:
            return {}
    constraints = {key: shape.metadata[key] for key in ("min", "max", "pattern") if key in shape.metadata}
    if getattr(shape, "enum", None):
        constraints["enum"] = list(shape.enum)
    return {"type_name": shape.type_name, **constraints}


def botocore_version() -> str:
    """Return the version of the installed botocore, whose model is used: `botocore 1.40.1`."""
    import botocore

    return f"botocore {botocore.__version__}"


def field_names(service: str, operation: str, path: str) -> list[str]:
    """Return the names of the fields at a place of a request, such as `InstanceGroups`: of an item where it is a
    list."""
    shape = _input_shape(service, operation)
    for step in path.split("."):
        shape = shape.members[step]
        if shape.type_name == "list":
            shape = shape.member
    return list(shape.members)


def _input_shape(service: str, operation: str) -> Any:
    return service_model(service).operation_model(operation).input_shape


def _is_checkable(violation: Violation) -> bool:
    """Whether the model tells enough of it."""
    if violation.constraint is Constraint.TYPE:
        return violation.shape.type_name in _TYPE_NAMES
    # Java's \p{…} classes are not quite Python's: such a pattern (tags) is left to the service.
    return violation.constraint is not Constraint.PATTERN or "\\p{" not in violation.shape.metadata["pattern"]


def _problem_from_violation(violation: Violation) -> Problem:
    path, shape, value = _format_path(violation.path), violation.shape, violation.value
    if violation.constraint is Constraint.TYPE:
        return Problem(path, f"expected {_TYPE_NAMES[shape.type_name]}, found {repr(value)[:40]}")
    if violation.constraint is Constraint.UNKNOWN_MEMBER:
        near = _closest_name(str(violation.path[-1][1]), shape.members)
        return Problem(path, f"{botocore_version()} has no such field of {shape.name}", newer=True, near=near)
    if violation.constraint is Constraint.REQUIRED:
        return Problem(path, "missing")
    if violation.constraint is Constraint.ONE_MEMBER:
        return Problem(path, f"expected exactly one of {', '.join(shape.members)}")
    if violation.constraint is Constraint.ENUM:
        message = f"`{value}` is not a known {shape.name} in {botocore_version()}"
        return Problem(path, message, newer=True, near=_closest_name(value, shape.enum))
    if violation.constraint is Constraint.PATTERN:
        return Problem(path, f"`{value}` does not match {shape.metadata['pattern']}")
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if high is None:
        expected = f"{low} or more"
    elif low is None:
        expected = f"{high} or less"
    else:
        expected = f"{low} to {high}"
    unit = _UNITS.get(shape.type_name, "")
    size = value
    if unit:
        size = len(value)
    return Problem(path, f"{size} {unit}".rstrip() + f": expected {expected}")


def _format_path(path: Path) -> str:
    return "".join(f"[{name}]" if kind == "item" else f".{name}" for kind, name in path).lstrip(".")


def _closest_name(name: str, names: Iterable[str]) -> str:
    return next(iter(get_close_matches(name, list(names), 1, 0.8)), "")
