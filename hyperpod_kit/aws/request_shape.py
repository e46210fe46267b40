"""A request against the service model of the installed botocore, without a call.

botocore itself checks names, types and lower bounds only; AWS refuses patterns, enums and upper bounds too, after the
network. The model is the installed one: a field that AWS has and this botocore has not is named as such.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Iterable, Iterator, Mapping

_TYPES: dict[str, tuple[Any, str]] = {
    "structure": (dict, "an object"),
    "map": (dict, "an object"),
    "list": (list, "a list"),
    "string": (str, "a string"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "long": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
}
"""Type of the model -> what Python has for it. Times and blobs are left to botocore."""


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


def problems(service: str, operation: str, request: dict[str, Any]) -> list[Problem]:
    """What the service would refuse, every problem at once. Empty when nothing. Raises ImportError without botocore."""
    return list(_walk(request, _shape(service, operation), ""))


def limits(service: str, operation: str, path: str) -> dict[str, Any]:
    """What the model says about one field: type_name, min, max, pattern, enum; as far as it says it.

    `path`: like `InstanceGroups[].InstanceType`. Empty for a field that the installed botocore has not.
    """
    shape = _shape(service, operation)
    for step in re.findall(r"[^.\[\]]+|\[\]", path):
        if step == "[]":
            shape = shape.member
        elif step in shape.members:
            shape = shape.members[step]
        else:
            return {}
    found = {key: shape.metadata[key] for key in ("min", "max", "pattern") if key in shape.metadata}
    if getattr(shape, "enum", None):
        found["enum"] = list(shape.enum)
    return {"type_name": shape.type_name, **found}


def version() -> str:
    """`botocore 1.40.1`: whose model it is."""
    import botocore

    return f"botocore {botocore.__version__}"


def _shape(service: str, operation: str) -> Any:
    # The directory is part of the key: whoever points botocore at other models gets those.
    return _model(service, os.environ.get("AWS_DATA_PATH", "")).operation_model(operation).input_shape


@lru_cache(maxsize=8)
def _model(service: str, data_path: str) -> Any:
    # Not through a session, which brings the whole client along: three times the time of `validate`.
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel

    return ServiceModel(create_loader(data_path or None).load_service_model(service, "service-2"), service)


def _walk(value: Any, shape: Any, path: str) -> Iterator[Problem]:
    kind, words = _TYPES.get(shape.type_name, (object, ""))
    if not isinstance(value, kind) or (isinstance(value, bool) and shape.type_name != "boolean"):
        yield Problem(path, f"expected {words}, found {repr(value)[:40]}")
    elif shape.type_name == "structure":
        yield from _structure(value, shape, path)
    elif shape.type_name == "map":
        yield from _bounds(len(value), shape, path, "entries")
        for key, item in value.items():
            yield from _walk(key, shape.key, f"{path}.{key}")
            yield from _walk(item, shape.value, f"{path}.{key}")
    elif shape.type_name == "list":
        yield from _bounds(len(value), shape, path, "items")
        for index, item in enumerate(value):
            yield from _walk(item, shape.member, f"{path}[{index}]")
    elif shape.type_name == "string":
        yield from _text(value, shape, path)
    elif shape.type_name in ("integer", "long", "float", "double"):
        yield from _bounds(value, shape, path, "")


def _structure(value: Mapping[str, Any], shape: Any, path: str) -> Iterator[Problem]:
    for key, item in value.items():
        place = f"{path}.{key}" if path else str(key)
        if key in shape.members:
            yield from _walk(item, shape.members[key], place)
        else:
            what = f"{version()} knows no such field of {shape.name}"
            yield Problem(place, what, newer=True, near=_near(str(key), shape.members))
    for key in shape.required_members:
        if key not in value:
            yield Problem(f"{path}.{key}" if path else key, "missing")
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        yield Problem(path, f"expected exactly one of {', '.join(shape.members)}")


def _near(name: str, names: Iterable[str]) -> str:
    return next(iter(get_close_matches(name, list(names), 1, 0.8)), "")


def _text(value: str, shape: Any, path: str) -> Iterator[Problem]:
    if shape.enum:
        if value not in shape.enum:
            yield Problem(path, f"`{value}` is not known to {version()} ({shape.name})", True, _near(value, shape.enum))
        return
    yield from _bounds(len(value), shape, path, "characters")
    pattern = shape.metadata.get("pattern")
    # Java's \p{…} classes are not Python's: such a pattern (tags) is left to the service.
    if pattern and "\\p{" not in pattern and not re.fullmatch(pattern, value):
        yield Problem(path, f"`{value}` does not match {pattern}")


def _bounds(number: float, shape: Any, path: str, unit: str) -> Iterator[Problem]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and number < low) or (high is not None and number > high):
        expected = f"{low} or more" if high is None else f"{high} or less" if low is None else f"{low} to {high}"
        yield Problem(path, f"{number} {unit}".rstrip() + f": expected {expected}")
