"""Dataclasses and NamedTuples as JSON objects, and back by the types of their fields: a value or ValueError.

    dataclass_to_json(User("ann", 1001, 1001))                      {"name": "ann", "uid": 1001, "gid": 1001}
    dataclass_from_json(User, {"name": "ann", "uid": "x", ...})     ValueError: User.uid is 'x', expected a whole number

A field is a text, a number, a bool, an enum (written as its value), another such class, a tuple or a list of these, a
mapping, None where it is Optional, or `Any`: a value that is JSON already. A bool is no number, a number lies between
-2**63 and 2**63 unless the caller says otherwise, and no value is converted. Bounds that a type does not tell (at least
0, at most 200 characters) are the caller's to check.

The types are evaluated on every Python that a node may have, so there they are written as `typing` names them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import collections.abc
import enum
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache, partial
from itertools import repeat
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")


class _Rules(NamedTuple):
    """The options of `dataclass_from_json`."""

    ignore_unknown: bool
    require_all: bool
    any_number: bool


_Reader = Callable[[Any, _Rules], Any]
"""From a value of JSON to that of the field. Raises ValueError with what follows the field's name in the message."""

_MOST = 1 << 63
_UNIONS = (Union, getattr(types, "UnionType", Union))
_SHOWN = 80
"""Characters of a wrong value in a message."""

ONLY_WHEN_SET = "json_only_when_set"
"""Name of a class attribute: true of a class of which a field is written only when it is not its default."""


def json_field(key: str = "", left_out: Any = MISSING) -> Mapping[str, Any]:
    """Return the metadata of a dataclass' field whose key is another word, or that is not written when its value is
    `left_out`, which is also read where the key is missing."""
    return {"json_key": key, "json_left_out": left_out}


def dataclass_to_json(instance: Any) -> Dict[str, Any]:
    """Return the JSON object, its keys in the order of the fields."""
    body: Dict[str, Any] = {}
    cls: Any = type(instance)
    for field in _fields_of(cls):
        value = getattr(instance, field.name)
        if field.left_out is MISSING or value != field.left_out:
            body[field.key] = field.write(value)
    return body


def dataclass_from_json(
    cls: Type[T], raw: Any, *, ignore_unknown: bool = False, require_all: bool = False, any_number: bool = False
) -> T:
    """Return the instance that a JSON object describes.

    Args:
        cls: The dataclass or NamedTuple.
        raw: The object, as `json.loads` returns it. It may be anything.
        ignore_unknown: Whether keys without a field are passed over, here and in objects below, or refused.
        require_all: Whether a field must be there although it has a default.
        any_number: Whether numbers have no bounds, as in what the configuration says. Not for what others write.

    Raises:
        ValueError: A key is missing or unknown, or a value is not of its field's type.
    """
    try:
        instance: T = _read_object(cls, raw, _Rules(ignore_unknown, require_all, any_number))
    except ValueError as err:
        raise ValueError(f"{cls.__name__}{err}") from None
    return instance


def field_types(cls: Any) -> Dict[str, Any]:
    """Return the evaluated type of each field of a dataclass or NamedTuple, by name, in their order."""
    return _field_types(cls)


@lru_cache(maxsize=None)
def _field_types(cls: Any) -> Dict[str, Any]:
    hints = get_type_hints(cls)
    if is_dataclass(cls):
        return {field.name: hints[field.name] for field in fields(cls)}
    return {name: hints[name] for name in cls._fields}


class _JsonField(NamedTuple):
    """`write`: from the value to JSON; `left_out`: what is not written; `default`: whether the class has one."""

    name: str
    key: str
    write: Callable[[Any], Any]
    read: _Reader
    left_out: Any
    default: bool


@lru_cache(maxsize=None)
def _fields_of(cls: Any) -> Tuple[_JsonField, ...]:
    declared: Dict[str, Any] = {}
    if is_dataclass(cls):
        declared = {field.name: field for field in fields(cls)}
    return tuple(_field_of(cls, name, hint, declared.get(name)) for name, hint in field_types(cls).items())


def _field_of(cls: Any, name: str, hint: Any, declared: Any) -> _JsonField:
    """`declared`: the field of a dataclass, None of a NamedTuple."""
    write: Callable[[Any], Any] = _to_json
    if hint in _JSON_ALREADY:
        write = _as_it_is
    if declared is None:
        return _JsonField(name, name, write, _reader_of(hint), MISSING, name in cls._field_defaults)
    left_out = declared.metadata.get("json_left_out", MISSING)
    if getattr(cls, ONLY_WHEN_SET, False):
        left_out = declared.default
    has_default = declared.default is not MISSING or declared.default_factory is not MISSING
    key = declared.metadata.get("json_key") or name
    return _JsonField(name, key, write, _reader_of(hint), left_out, has_default)


def _is_object(cls: Any) -> bool:
    return isinstance(cls, type) and (is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")))


def _as_it_is(value: Any) -> Any:
    return value


def _to_json(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        if _PLAIN.keys() >= set(map(type, value)):
            return list(value)
        return [_to_json(entry) for entry in value]
    if _is_object(kind):
        return dataclass_to_json(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, collections.abc.Mapping):
        return {_to_json(key): _to_json(entry) for key, entry in value.items()}
    return value


def _read_object(cls: Any, raw: Any, rules: _Rules) -> Any:
    if not isinstance(raw, dict):
        raise _mismatch(raw, "an object")
    known = _fields_of(cls)
    if not rules.ignore_unknown:
        unknown = sorted(raw.keys() - {field.key for field in known})
        if unknown:
            raise ValueError(f" has no {', '.join(unknown)[:_SHOWN]}")
    values: Dict[str, Any] = {}
    for field in known:
        if field.key in raw:
            try:
                values[field.name] = field.read(raw[field.key], rules)
            except ValueError as err:
                raise ValueError(f".{field.key}{err}") from None
        elif field.left_out is not MISSING:
            values[field.name] = field.left_out
        elif rules.require_all or not field.default:
            raise ValueError(f" lacks {field.key}")
    return cls(**values)


@lru_cache(maxsize=None)
def _reader_of(hint: Any) -> _Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin in _UNIONS:
        return partial(_read_union, [_reader_of(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return partial(_read_tuple, [_reader_of(argument) for argument in arguments])
    if origin in (tuple, collections.abc.Sequence):
        return partial(_read_entries, tuple, _reader_of(arguments[0]))
    if origin is list:
        return partial(_read_entries, list, _reader_of(arguments[0]))
    if origin in (dict, collections.abc.Mapping):
        return partial(_read_mapping, _reader_of(arguments[0]), _reader_of(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return partial(_read_enum, hint)
    if _is_object(hint):
        return partial(_read_object, hint)
    return _refuse


def _read_union(readers: Sequence[_Reader], raw: Any, rules: _Rules) -> Any:
    problems = []
    for read in readers:
        try:
            return read(raw, rules)
        except ValueError as err:
            problems.append(err)
    raise problems[0]  # the others are None's


def _read_tuple(readers: Sequence[_Reader], raw: Any, rules: _Rules) -> Tuple[Any, ...]:
    if not isinstance(raw, list) or len(raw) != len(readers):
        raise _mismatch(raw, f"a list of {len(readers)}")
    return tuple(_read_each(zip(readers, raw), rules))


def _read_entries(kind: Callable[[List[Any]], Any], read: _Reader, raw: Any, rules: _Rules) -> Any:
    if not isinstance(raw, list):
        raise _mismatch(raw, "a list")
    return kind(_read_each(zip(repeat(read), raw), rules))


def _read_each(pairs: Iterable[Tuple[_Reader, Any]], rules: _Rules) -> List[Any]:
    values: List[Any] = []
    try:
        for read, entry in pairs:
            values.append(read(entry, rules))
    except ValueError as err:
        raise ValueError(f"[{len(values)}]{err}") from None
    return values


def _read_mapping(read_key: _Reader, read: _Reader, raw: Any, rules: _Rules) -> Dict[Any, Any]:
    if not isinstance(raw, dict):
        raise _mismatch(raw, "an object")
    values: Dict[Any, Any] = {}
    for key, entry in raw.items():
        try:
            values[read_key(key, rules)] = read(entry, rules)
        except ValueError as err:
            raise ValueError(f"[{key[:_SHOWN]!r}]{err}") from None
    return values


def _read_enum(kind: Type[enum.Enum], raw: Any, _: _Rules) -> enum.Enum:
    try:
        if type(raw) in (str, int):
            return kind(raw)
    except ValueError:
        pass
    raise _mismatch(raw, f"one of {', '.join(str(member.value) for member in kind)}")


def _read_any(raw: Any, _: _Rules) -> Any:
    return raw


def _read_none(raw: Any, _: _Rules) -> None:
    if raw is not None:
        raise _mismatch(raw, "null")


def _read_text(raw: Any, _: _Rules) -> str:
    if type(raw) is not str:
        raise _mismatch(raw, "a text")
    return raw


def _read_bool(raw: Any, _: _Rules) -> bool:
    if type(raw) is not bool:
        raise _mismatch(raw, "true or false")
    return raw


def _read_int(raw: Any, rules: _Rules) -> int:
    if type(raw) is not int or not (rules.any_number or -_MOST < raw < _MOST):
        raise _mismatch(raw, "a whole number")
    return raw


def _read_number(raw: Any, rules: _Rules) -> float:
    if type(raw) not in (int, float) or not (rules.any_number or -_MOST < raw < _MOST):
        raise _mismatch(raw, "a number")
    number: float = raw
    return number


def _refuse(raw: Any, _: _Rules) -> Any:
    raise _mismatch(raw, "nothing: JSON has no such type")


_PLAIN: Dict[Any, _Reader] = {
    Any: _read_any,
    type(None): _read_none,
    str: _read_text,
    bool: _read_bool,
    int: _read_int,
    float: _read_number,
}

_JSON_ALREADY = (Any, Dict[str, Any], Mapping[str, Any])
"""Types of fields that may be large, and that hold nothing but JSON."""


def _mismatch(raw: Any, expected: str) -> ValueError:
    # The start of a large value is enough, and a number of many digits cannot be printed.
    if isinstance(raw, (str, bool, float, type(None))):
        return ValueError(f" is {raw!r:.{_SHOWN}}, expected {expected}")
    return ValueError(f" is of type {type(raw).__name__}, expected {expected}")
