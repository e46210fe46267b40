"""What ranks tell each other, as bytes and back: JSON with types, and bytes beside it. Nothing is pickled.

gloo authenticates nobody, so what arrives makes nothing but plain values and the classes that are `register_type`, with
fields of the types that they declare; anything else is a CheckpointError.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from typing import Any, TypeVar

from hyperpod_kit import errors
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.errors import CheckpointError, HyperpodKitError
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.dataclass_json import field_types

PROTOCOL = "hpk-ranks/5"

LARGEST = 1 << 30
"""Bytes of JSON of one value."""

_LENGTH = 8
_PLAIN = frozenset({type(None), bool, int, float, str})
_EXCEPTIONS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HyperpodKitError)
}
_registered: dict[str, type] = {}

_Class = TypeVar("_Class", bound=type)


def register_type(kind: _Class) -> _Class:
    """Register a dataclass, a NamedTuple or an Enum of words as a type that may be sent to other
    ranks; a decorator."""
    _registered[kind.__name__] = kind
    return kind


for _kind in (identity.RunIdentity, layout.CheckpointId, manifest.FileRecord, manifest.Manifest):
    register_type(_kind)


def pack(value: Any) -> bytes:
    """Return the bytes of a value for other ranks. Raises TypeError for what cannot be sent."""
    blobs: list[bytes] = []
    encoded = _encode(value, blobs)
    text = json.dumps(
        {"protocol": PROTOCOL, "value": encoded, "blobs": [len(blob) for blob in blobs]}, separators=(",", ":")
    ).encode()
    return b"".join((len(text).to_bytes(_LENGTH, "little"), text, *blobs))


def unpack(data: bytes, sender: str) -> Any:
    """Return the value of the bytes of `pack`. `sender`: for the error. Raises CheckpointError."""
    size = int.from_bytes(data[:_LENGTH], "little")
    try:
        body = parse.parse_json_object(data[_LENGTH : _LENGTH + size], LARGEST)
    except ValueError:
        body = {}
    if body.get("protocol") != PROTOCOL:
        raise CheckpointError(
            f"{sender} runs another release of hyperpod-kit: all ranks of a run need the same release",
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
        return _decode(body["value"], blobs)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as err:
        raise CheckpointError(f"{sender} sent an invalid message: {type(err).__name__}: {err}") from None


# --- telling --------------------------------------------------------------------------------------------------------


def _encode(value: Any, blobs: list[bytes]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return _encode_list(value, blobs)
    if kind is tuple:
        return {"tuple": _encode(list(value), blobs)}
    if kind is bytes:
        blobs.append(value)
        return {"bytes": len(blobs) - 1}
    if kind is dict:
        return {"dict": [_encode(list(value), blobs), _encode(list(value.values()), blobs)]}
    if kind is set:
        return {"set": _encode(sorted(value), blobs)}
    if isinstance(value, BaseException):
        return _encode_error(value)
    if _registered.get(kind.__name__) is not kind:
        raise TypeError(f"{kind.__name__} cannot be sent to other ranks")
    if isinstance(value, enum.Enum):
        return {"is": kind.__name__, "of": value.value}
    return {"is": kind.__name__, "of": [_encode(getattr(value, name), blobs) for name in field_types(kind)]}


def _encode_list(elements: list[Any], blobs: list[bytes]) -> list[Any]:
    """Encode the elements; a list of plain ones stays as it is."""
    if _PLAIN.issuperset(map(type, elements)):
        return elements
    return [_encode(element, blobs) for element in elements]


def _encode_error(err: BaseException) -> Any:
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
        raise TypeError(f"{type(err).__name__} cannot be sent to other ranks: {err}")
    return {"error": kind.__name__, "of": {name: value for name, value in vars(err).items() if type(value) in _PLAIN}}


# --- understanding --------------------------------------------------------------------------------------------------


def _decode(encoded: Any, blobs: list[bytes]) -> Any:
    kind = type(encoded)
    if kind in _PLAIN:
        return encoded
    if kind is list:
        if _PLAIN.issuperset(map(type, encoded)):
            return encoded
        return [_decode(element, blobs) for element in encoded]
    if "is" in encoded:
        return _decode_instance(encoded["is"], encoded["of"], blobs)
    if "error" in encoded:
        return _decode_error(encoded["error"], encoded["of"])
    ((word, rest),) = encoded.items()
    if word == "bytes":
        return blobs[_require_type(rest, int)]
    elements = _require_type(_decode(rest, blobs), list)
    if word == "tuple":
        return tuple(elements)
    if word == "set":
        return set(elements)
    if word == "dict":
        names, values = elements
        return dict(zip(names, values, strict=True))
    raise ValueError(f"{word!r} is not a type")


def _decode_instance(name: str, encoded_fields: Any, blobs: list[bytes]) -> Any:
    kind = _registered[name]
    if issubclass(kind, enum.Enum):
        return kind(_require_type(encoded_fields, str))
    fields = field_types(kind)
    values = _require_type(_decode(encoded_fields, blobs), list)
    for (field, hint), value in zip(fields.items(), values, strict=True):
        if not _matches_type(value, hint):
            raise ValueError(f"{field} of {name} is {value!r:.80}")
    return kind(*values)


def _decode_error(name: str, encoded_fields: dict[str, Any]) -> Exception:
    if name == "OSError":
        return OSError(
            _require_type(encoded_fields["errno"], int, type(None)),
            _require_type(encoded_fields["strerror"], str, type(None)),
            _require_type(encoded_fields["filename"], str, type(None)),
        )
    kind = _EXCEPTIONS[name]
    message = _require_type(encoded_fields["message"], str)
    err: Exception = kind.__new__(kind, message)
    err.args = (message,)
    for field, value in encoded_fields.items():
        if type(value) in _PLAIN and not field.startswith("_"):
            setattr(err, field, value)
    return err


def _require_type(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise ValueError(f"{value!r:.80} is no {kinds[0].__name__}")
    return value


def _matches_type(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type."""
    if hint is Any:
        return True
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches_type(value, alternative) for alternative in of)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        if of[-1] is Ellipsis:
            return all(_matches_type(element, of[0]) for element in value)
        return len(value) == len(of) and all(map(_matches_type, value, of))
    if origin is list:
        return type(value) is list and all(_matches_type(element, of[0]) for element in value)
    if origin is dict:
        return type(value) is dict and all(
            _matches_type(name, of[0]) and _matches_type(element, of[1]) for name, element in value.items()
        )
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint
