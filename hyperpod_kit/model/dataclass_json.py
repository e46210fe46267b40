"""JSON of `dataclasses.asdict` back into the dataclass, by the types of its fields.

A field may be a text, a number, a bool, a mapping, another dataclass or None in its place, or a tuple of these. The
types are evaluated on every Python that a node may have, so they are written as `typing` names them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Dict, Mapping, Type, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def dataclass_from_json(cls: Type[T], raw: Mapping[str, Any]) -> T:
    """Return the dataclass. Raises TypeError for a field that is missing or unknown."""
    hints = field_types(cast(Any, cls))
    unknown = sorted(set(raw) - set(hints))
    if unknown:
        raise TypeError(f"{cls.__name__} has no {', '.join(unknown)}")
    values = {name: _field_from_json(hints[name], value) for name, value in raw.items()}
    return cls(**values)


@lru_cache(maxsize=None)
def field_types(cls: Any) -> Dict[str, Any]:
    """Return the evaluated type of each field of a dataclass, by name."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _field_from_json(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Union:
        return _field_from_json(arguments[0], value)
    if origin is tuple:
        return tuple(_field_from_json(arguments[0], entry) for entry in value)
    if is_dataclass(hint):
        return dataclass_from_json(cast(Type[Any], hint), value)
    return value
