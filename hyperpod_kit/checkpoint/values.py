"""What ranks tell each other, as bytes and back: JSON with types, and bytes beside it. Nothing is pickled.

gloo authenticates nobody, so what arrives makes nothing but plain values and the classes that are `carried`, with
fields of the types that they declare; anything else is a CheckpointError.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from typing import Any, TypeVar

from hyperpod_kit import errors
from hyperpod_kit.checkpoint.repository import identity, layout, manifest
from hyperpod_kit.errors import CheckpointError, HyperpodKitError
from hyperpod_kit.untrusted import parse

PROTOCOL = "hpk-ranks/5"

LARGEST = 1 << 30
"""Bytes of JSON of one value."""

_LENGTH = 8
_PLAIN = frozenset({type(None), bool, int, float, str})
_EXCEPTIONS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HyperpodKitError)
}
_carried: dict[str, type] = {}
_known: dict[type, dict[str, Any]] = {}

_Class = TypeVar("_Class", bound=type)


def carried(kind: _Class) -> _Class:
    """Let a dataclass, a NamedTuple or an Enum of words be told to other ranks."""
    _carried[kind.__name__] = kind
    return kind


for _kind in (identity.RunIdentity, layout.CheckpointId, manifest.FileRecord, manifest.Manifest):
    carried(_kind)


def pack(value: Any) -> bytes:
    """The bytes of a value. Raises TypeError for what cannot be told."""
    blobs: list[bytes] = []
    said = _said(value, blobs)
    text = json.dumps(
        {"protocol": PROTOCOL, "value": said, "blobs": [len(blob) for blob in blobs]}, separators=(",", ":")
    ).encode()
    return b"".join((len(text).to_bytes(_LENGTH, "little"), text, *blobs))


def unpack(data: bytes, whose: str) -> Any:
    """The value of `pack`. `whose`: for the error. Raises CheckpointError."""
    size = int.from_bytes(data[:_LENGTH], "little")
    try:
        body = parse.json_object(data[_LENGTH : _LENGTH + size], LARGEST)
    except ValueError:
        body = {}
    if body.get("protocol") != PROTOCOL:
        raise CheckpointError(
            f"{whose} runs another release of hyperpod-kit: all ranks of a run need the same one",
            hint="python -c 'import hyperpod_kit; print(hyperpod_kit.__version__, "
            "hyperpod_kit.__file__)' on each node, in its container",
        )
    try:
        blobs, at = [], _LENGTH + size
        for length in body["blobs"]:
            if type(length) is not int or not 0 <= length <= len(data) - at:
                raise ValueError("bytes are missing")
            blobs.append(data[at : at + length])
            at += length
        return _meant(body["value"], blobs)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as err:
        raise CheckpointError(f"{whose} told what cannot be understood: {type(err).__name__}: {err}") from None


# --- telling --------------------------------------------------------------------------------------------------------


def _said(value: Any, blobs: list[bytes]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return value if _PLAIN.issuperset(map(type, value)) else [_said(one, blobs) for one in value]
    if kind is tuple:
        return {"tuple": _said(list(value), blobs)}
    if kind is bytes:
        blobs.append(value)
        return {"bytes": len(blobs) - 1}
    if kind is dict:
        return {"dict": [_said(list(value), blobs), _said(list(value.values()), blobs)]}
    if kind is set:
        return {"set": _said(sorted(value), blobs)}
    if isinstance(value, BaseException):
        return _said_error(value)
    if _carried.get(kind.__name__) is not kind:
        raise TypeError(f"{kind.__name__} cannot be told to other ranks")
    if isinstance(value, enum.Enum):
        return {"is": kind.__name__, "of": value.value}
    return {"is": kind.__name__, "of": [_said(getattr(value, name), blobs) for name in _fields(kind)]}


def _said_error(err: BaseException) -> Any:
    if isinstance(err, OSError):
        return {
            "error": "OSError",
            "of": {
                "errno": err.errno,
                "strerror": err.strerror,
                "filename": None if err.filename is None else str(err.filename),
            },
        }
    kind = next((kind for kind in type(err).__mro__ if _EXCEPTIONS.get(kind.__name__) is kind), None)
    if kind is None:
        raise TypeError(f"{type(err).__name__} cannot be told to other ranks: {err}")
    return {"error": kind.__name__, "of": {name: value for name, value in vars(err).items() if type(value) in _PLAIN}}


# --- understanding --------------------------------------------------------------------------------------------------


def _meant(said: Any, blobs: list[bytes]) -> Any:
    kind = type(said)
    if kind in _PLAIN:
        return said
    if kind is list:
        return said if _PLAIN.issuperset(map(type, said)) else [_meant(one, blobs) for one in said]
    if "is" in said:
        return _made(said["is"], said["of"], blobs)
    if "error" in said:
        return _error(said["error"], said["of"])
    ((word, rest),) = said.items()
    if word == "bytes":
        return blobs[_checked(rest, int)]
    found = _checked(_meant(rest, blobs), list)
    if word == "tuple":
        return tuple(found)
    if word == "set":
        return set(found)
    if word == "dict":
        names, values = found
        return dict(zip(names, values, strict=True))
    raise ValueError(f"{word!r} is no type")


def _made(name: str, of: Any, blobs: list[bytes]) -> Any:
    kind = _carried[name]
    if issubclass(kind, enum.Enum):
        return kind(_checked(of, str))
    fields = _fields(kind)
    values = _checked(_meant(of, blobs), list)
    for (field, hint), value in zip(fields.items(), values, strict=True):
        if not _fits(value, hint):
            raise ValueError(f"{field} of {name} is {value!r:.80}")
    return kind(*values)


def _error(name: str, of: dict[str, Any]) -> Exception:
    if name == "OSError":
        return OSError(
            _checked(of["errno"], int, type(None)),
            _checked(of["strerror"], str, type(None)),
            _checked(of["filename"], str, type(None)),
        )
    kind = _EXCEPTIONS[name]
    message = _checked(of["message"], str)
    err: Exception = kind.__new__(kind, message)
    err.args = (message,)
    for field, value in of.items():
        if type(value) in _PLAIN and not field.startswith("_"):
            setattr(err, field, value)
    return err


def _checked(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise ValueError(f"{value!r:.80} is no {kinds[0].__name__}")
    return value


def _fields(kind: type) -> dict[str, Any]:
    """The fields of a carried class, in the order in which they are given to it, and their types."""
    if kind in _known:
        return _known[kind]
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        names = list(getattr(kind, "_fields"))  # noqa: B009  # a NamedTuple's
    hints = typing.get_type_hints(kind)
    _known[kind] = {name: hints[name] for name in names}
    return _known[kind]


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type."""
    if hint is Any:
        return True
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in of)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        if of[-1] is Ellipsis:
            return all(_fits(one, of[0]) for one in value)
        return len(value) == len(of) and all(map(_fits, value, of))
    if origin is list:
        return type(value) is list and all(_fits(one, of[0]) for one in value)
    if origin is dict:
        return type(value) is dict and all(_fits(name, of[0]) and _fits(one, of[1]) for name, one in value.items())
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint
