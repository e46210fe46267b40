"""Values of Python's and torch's own kinds, and of a program's own classes, as typed JSON and back, without pickle.

A class is written by its name. It is looked up among the modules that the program has imported: reading a checkpoint
imports nothing and calls no constructor that a program wrote. No object is made of a class with a `__del__`: that would
run when the object goes, on attributes that whoever wrote the checkpoint has chosen.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json
import pathlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from hyperpod_kit.errors import CheckpointError

Json = Any
Encode = Callable[[Any, str], Json]
"""The JSON of a part, which is given with its key or number."""
Decode = Callable[[Json], Any]

KINDS = frozenset(
    {"torch", "device", "enum", "deque", "set", "frozenset", "time", "path", "named", "dataclass", "object"}
)
"""The kinds of records that are written here."""

PUBLIC_PACKAGES = ("hyperpod_kit.checkpoint", "hyperpod_kit.data")
"""Their public classes are written as theirs, and read by the names of modules that had them before."""

_HEAP_TYPE = 1 << 9
"""Flag of a class that a class statement has made (Py_TPFLAGS_HEAPTYPE)."""


class _Empty:
    """A class without anything of its own."""


_OBJECT_SIZE = _Empty.__basicsize__
_HOOKS = frozenset(
    (
        "__new__",
        "__slots__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__getnewargs__",
        "__getnewargs_ex__",
        "__copy__",
        "__deepcopy__",
        "__del__",
    )
)
_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_TIMES: dict[type, str] = {
    datetime.datetime: "datetime",
    datetime.date: "date",
    datetime.time: "time",
}
_PATHS = {kind.__name__: kind for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath)}


def encode(value: Any, encode_part: Encode) -> dict[str, Json] | None:
    """Return the record of a value; None for one of another kind. `encode_part` raises
    StateNotSerializable for a part."""
    kind = type(value)
    if isinstance(value, _TORCH):
        return {"$": "torch", "v": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"$": "device", "v": str(value)}
    if isinstance(value, enum.Enum):
        return _encode_enum(value, encode_part)
    if kind is collections.deque:
        items = [encode_part(item, str(number)) for number, item in enumerate(value)]
        return {"$": "deque", "v": items, "most": value.maxlen}
    if kind in (set, frozenset):
        # The order in a set differs from process to process.
        texts = sorted(json.dumps(encode_part(item, "<item>")) for item in value)
        return {"$": kind.__name__, "v": [json.loads(text) for text in texts]}
    if kind in _TIMES:
        return _encode_time(value)
    if kind is datetime.timedelta:
        return {"$": "time", "c": "timedelta", "v": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, pathlib.PurePath):
        name = kind.__name__
        if isinstance(value, pathlib.Path):
            name = "Path"
        return {"$": "path", "c": name, "v": str(value)}
    return _encode_named_tuple_dataclass_or_object(value, encode_part)


def _encode_named_tuple_dataclass_or_object(value: Any, encode_part: Encode) -> dict[str, Json] | None:
    """Return the record of a named tuple, a dataclass or an object that is its attributes; None for
    what is none of these, or of a class that no name leads to."""
    kind = type(value)
    if hasattr(kind, "__del__"):
        return None
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        name = class_name_if_found_in_modules(kind)
        if name is None:
            return None
        return {"$": "named", "c": name, "v": [encode_part(*pair) for pair in zip(value, kind._fields, strict=True)]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = class_name_if_found_in_modules(kind)
        if name is None:
            return None
        return {"$": "dataclass", "c": name, "v": {key: encode_part(item, key) for key, item in _attributes(value)}}
    if is_plain_attribute_class(kind):
        name = class_name_if_found_in_modules(kind)
        if name is None:
            return None
        return {"$": "object", "c": name, "v": {key: encode_part(item, key) for key, item in vars(value).items()}}
    return None


def is_plain_attribute_class(kind: type) -> bool:
    """Return whether an object of that class is the attributes in its `__dict__`, as `copy` and
    `pickle` see it: no slots, no base in C, no code of its own that takes it apart, makes it or
    ends it. What has a `state_dict` is saved by that."""
    *classes, last = kind.__mro__
    if last is not object or not classes or hasattr(kind, "state_dict"):
        return False
    if any(map(has_custom_lifecycle_code, classes)):
        return False
    return kind.__dictoffset__ != 0 and kind.__itemsize__ == 0 and kind.__basicsize__ == _OBJECT_SIZE


def has_custom_lifecycle_code(kind: type) -> bool:
    """Return whether the class defines how its objects are made, copied, pickled or deleted, or is
    written in C."""
    return bool(_HOOKS & vars(kind).keys()) or not kind.__flags__ & _HEAP_TYPE


def decode(body: dict[str, Json], decode_part: Decode, *, plain: bool = False) -> Any:
    """Return the value of a record of `KINDS`. With `plain` a class that the program does not have is
    no error: its values come as a dict, a tuple or what they are by themselves. Raises
    CheckpointError."""
    kind, value = body["$"], body["v"]
    if kind == "torch":
        return _torch_constant(value)
    if kind == "device":
        return _parse_device(value)
    if kind == "deque":
        return collections.deque(map(decode_part, value), body["most"])
    if kind == "set":
        return set(map(decode_part, value))
    if kind == "frozenset":
        return frozenset(map(decode_part, value))
    if kind == "time":
        return _decode_time(body["c"], value)
    if kind == "path":
        return (_PATHS.get(body["c"]) or pathlib.Path)(value)
    return _decode_value_of_program_class(body, decode_part, plain=plain)


def _decode_value_of_program_class(body: dict[str, Json], decode_part: Decode, *, plain: bool) -> Any:
    """Return the value of a record that names a class of the program. Raises CheckpointError."""
    kind, value = body["$"], body["v"]
    try:
        python_class = imported_class_by_name(body["c"])
    except CheckpointError:
        if not plain:
            raise
        python_class = None
    if kind == "enum":
        return _decode_enum(python_class, body, decode_part)
    if kind == "named":
        parts = tuple(map(decode_part, value))
        if python_class is None:
            return parts
        return _require_class_kind(python_class, tuple, body)._make(parts)
    fields = {key: decode_part(item) for key, item in value.items()}
    if python_class is None:
        return fields
    instance = object.__new__(_require_class_kind(python_class, object, body))
    if kind == "object":
        vars(instance).update(fields)
        return instance
    for key, item in fields.items():
        object.__setattr__(instance, key, item)
    return instance


def encoded_children(body: dict[str, Json]) -> list[Json]:
    """Return what a record of `KINDS` holds, still encoded."""
    value = body["v"]
    if body["$"] in ("deque", "set", "frozenset", "named"):
        return list(value)
    if body["$"] in ("dataclass", "object"):
        return list(value.values())
    return []


def class_name_if_found_in_modules(kind: type) -> str | None:
    """Return the name under which a fresh start of the same program has that class; None for one that
    it cannot look up."""
    name = _public_name(kind) or f"{kind.__module__}:{kind.__qualname__}"
    try:
        if imported_class_by_name(name) is kind:
            return name
        return None
    except CheckpointError:
        return None


def imported_class_by_name(name: str) -> type:
    """Return the class of that name, of a module that is imported; nothing is imported. Raises
    CheckpointError."""
    module, _, path = name.partition(":")
    member = _member(sys.modules.get(module), path)
    if not isinstance(member, type):
        member = _member(_public_package_with(module, path), path)
    if not isinstance(member, type):
        raise CheckpointError(
            f"the checkpoint holds a value of the class {name}, which this program does not have",
            hint=f"import {module} before the restore",
        )
    return member


def _member(module: ModuleType | None, path: str) -> Any:
    member: Any = module
    for part in path.split("."):
        member = getattr(member, part, None)
    return member


def _public_name(kind: type) -> str | None:
    """Return the name of a class that hyperpod_kit offers, below the package that offers it: its module may move."""
    package = _public_package_with(kind.__module__, kind.__qualname__)
    if package is None or getattr(package, kind.__qualname__, None) is not kind:
        return None
    return f"{package.__name__}:{kind.__qualname__}"


def _public_package_with(module: str, class_name: str) -> ModuleType | None:
    """Return the package of hyperpod_kit that offers this class of one of its modules, or did when it was saved."""
    for name in PUBLIC_PACKAGES:
        package = sys.modules.get(name)
        if module.startswith(f"{name}.") and class_name in getattr(package, "__all__", ()):
            return package
    return None


def _require_class_kind(python_class: type, base: type, body: dict[str, Json]) -> Any:
    kinds = {
        "named": hasattr(python_class, "_make"),
        "dataclass": dataclasses.is_dataclass(python_class),
        "object": is_plain_attribute_class(python_class),
    }
    if not issubclass(python_class, base) or not kinds[body["$"]] or hasattr(python_class, "__del__"):
        raise CheckpointError(f"{body['c']} is no longer of the kind with which it was saved ({body['$']})")
    return python_class


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return all that a dataclass holds, fields and what the program has added to it."""
    names = dict.fromkeys(field.name for field in dataclasses.fields(value) if hasattr(value, field.name))
    names.update(dict.fromkeys(getattr(value, "__dict__", {})))
    return [(name, getattr(value, name)) for name in names]


def _encode_enum(value: enum.Enum, inner: Encode) -> dict[str, Json] | None:
    name = class_name_if_found_in_modules(type(value))
    if name is None:
        return None
    return {"$": "enum", "c": name, "n": value.name, "v": inner(value.value, "value")}


def _decode_enum(enum_class: type | None, body: dict[str, Json], inner: Decode) -> Any:
    value = inner(body["v"])
    if enum_class is None:
        return value
    if not issubclass(enum_class, enum.Enum):
        raise CheckpointError(f"{body['c']} was an Enum when it was saved, but is not one now")
    member = enum_class.__members__.get(str(body["n"]))
    if member is not None and member.value == value:
        return member
    try:
        return enum_class(value)
    except ValueError:
        raise CheckpointError(f"{body['c']} no longer has {body['n']} or the value {value!r}") from None


def _encode_time(value: Any) -> dict[str, Json] | None:
    zone = getattr(value, "tzinfo", None)
    if zone is not None and not isinstance(zone, datetime.timezone):
        return None  # an offset would come back, and not the zone with its rules
    return {"$": "time", "c": _TIMES[type(value)], "v": value.isoformat()}


def _decode_time(kind: str, value: Any) -> Any:
    if kind == "timedelta":
        return datetime.timedelta(*value)
    classes = {name: cls for cls, name in _TIMES.items()}
    return classes[kind].fromisoformat(value)  # type: ignore[attr-defined]


def _parse_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as err:
        raise CheckpointError(f"the checkpoint holds a device that torch does not support: {err}") from None


def _torch_constant(name: str) -> Any:
    constant = getattr(torch, str(name), None)
    if not isinstance(constant, _TORCH):
        raise CheckpointError(f"the checkpoint holds torch.{name}, which this release of torch does not have")
    return constant
