"""A request against the service model of the installed botocore, without a call.

botocore itself checks names, types and lower bounds only; AWS refuses patterns, enums and upper bounds too, after the
network.
"""

from __future__ import annotations

import re
from typing import Any, Iterator


def problems(service: str, operation: str, request: dict[str, Any]) -> list[str]:
    """What the service would refuse, one line each: `InstanceGroups[0].InstanceType: …`. Empty when nothing."""
    import botocore.session
    from botocore.validate import ParamValidator

    model = botocore.session.get_session().get_service_model(service)
    shape = model.operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        return [line.strip() for line in report.generate_report().splitlines()]
    return list(_walk(request, shape, ""))


def _walk(value: Any, shape: Any, path: str) -> Iterator[str]:
    if shape.type_name == "structure":
        for key, item in value.items():
            yield from _walk(item, shape.members[key], f"{path}.{key}" if path else key)
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            yield f"{path}: expected exactly one of {', '.join(shape.members)}"
    elif shape.type_name == "list":
        yield from _bounds(len(value), shape, path, "items")
        for index, item in enumerate(value):
            yield from _walk(item, shape.member, f"{path}[{index}]")
    elif shape.type_name == "string":
        yield from _bounds(len(value), shape, path, "characters")
        pattern = shape.metadata.get("pattern")
        # Java's \p{…} classes are not Python's: such a pattern (tags) is left to the service.
        if pattern and "\\p{" not in pattern and not re.fullmatch(pattern, value):
            yield f"{path}: `{value}` does not match {pattern}"
        if shape.enum and value not in shape.enum:
            yield f"{path}: `{value}` is not known to the installed botocore ({shape.name})"
    elif shape.type_name in ("integer", "long"):
        yield from _bounds(value, shape, path, "")


def _bounds(number: int, shape: Any, path: str, unit: str) -> Iterator[str]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and number < low) or (high is not None and number > high):
        yield (
            f"{path}: {number} {unit}".rstrip()
            + f": expected {low if low is not None else 'at most'} to {high if high is not None else 'more'}"
        )
