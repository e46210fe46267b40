"""A state tree as typed JSON plus named tensors, and back. Nothing is ever pickled.

Plain JSON stands for None, bool, int, str, finite float, list, and a dict with string keys. Everything else is an
object with the key `$`: float (nan, inf), complex, numpy and array (see below), bytes, tuple, dict (other keys),
tensor (by name), subclass (of Tensor, by its parts: see `subclasses`), and what `typed_values` has.
Numbers come back with the type and the bits that they were saved with.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.codec import subclasses, typed_values
from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.checkpoint.codec.sharding import PLAIN, is_sharded
from hyperpod_kit.errors import CheckpointError, StateNotSerializable
from hyperpod_kit.untrusted.text import clean_one_line

# Numbers and arrays of numpy as records, and back: a number by its bytes, an array as a tensor.

Record = dict[str, Any]

ARRAY = "array"
"""The kind of an array's record."""

_CODES = "?bhilqBHILQefdFD"
"""Codes of numpy's number types with the same bits on every machine: not long double."""


_DTYPE_CODE = re.compile(r"[<>|=]?[?a-zA-Z][0-9]{0,2}")
"""A type as `dtype.str` writes it."""


def is_numpy_scalar(value: object) -> bool:
    """Return whether `value` is a scalar of numpy, of a type with the same bits on every machine."""
    numpy = sys.modules.get("numpy")  # nobody has such a number before numpy was imported
    return numpy is not None and isinstance(value, numpy.generic) and value.dtype.char in _CODES


def encode_numpy_scalar(value: Any) -> Record:
    """Return the record of a scalar of numpy: its type and its bytes."""
    return {"$": "numpy", "t": value.dtype.str, "v": base64.b64encode(value.tobytes()).decode()}


def decode_numpy_scalar(record: Record) -> Any:
    """Return the scalar of numpy that a record describes. Raises CheckpointError."""
    numpy = _require_numpy("a numpy number", record)
    return numpy.frombuffer(base64.b64decode(record["v"]), dtype=_validated_dtype_code(record))[0]


def is_numpy_array(value: Any) -> bool:
    """Return whether `value` is an array of numbers, of numpy's own class."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and value.dtype.char in _CODES


def encode_numpy_array(value: Any, record_tensor: Callable[[torch.Tensor], Any]) -> Record:
    """Return the record of an array of numpy; `record_tensor` is given a copy of its numbers as a
    tensor and returns the tensor's record."""
    import numpy

    by_columns = value.flags.f_contiguous and not value.flags.c_contiguous
    native = value.dtype.newbyteorder("=")
    rows = value
    if by_columns:
        rows = value.T
    numbers = numpy.array(rows, dtype=native, order="C", copy=True)
    return {"$": ARRAY, "t": value.dtype.str, "f": int(by_columns), "of": record_tensor(torch.from_numpy(numbers))}


def decode_numpy_array(record: Record, numbers: Any) -> Any:
    """Return the array that a record describes, with its type, byte order and order in memory, over
    the memory of `numbers` where that is possible.

    A placeholder in the place of a tensor that is not read is returned as it is. Raises
    CheckpointError.
    """
    if not isinstance(numbers, torch.Tensor):
        return numbers
    kind = _require_numpy("a numpy array", record).dtype(_validated_dtype_code(record))
    values = numbers.detach().cpu().numpy()
    if kind.newbyteorder("=") != values.dtype:
        raise CheckpointError(f"the checkpoint holds an array of {record['t']} as numbers of {values.dtype}")
    values = values.astype(kind, copy=False)
    if record["f"]:
        return values.T
    return values


def _validated_dtype_code(body: Record) -> str:
    """Return the type code of a record's numbers.

    Raises CheckpointError for what is no such code: numpy takes longer words for expressions of
    Python's.
    """
    word = body["t"]
    if not isinstance(word, str) or _DTYPE_CODE.fullmatch(word) is None:
        raise CheckpointError(f"the checkpoint holds numbers of a type {clean_one_line(word)[:40]!r}")
    return word


def _require_numpy(what: str, body: Record) -> Any:
    try:
        import numpy
    except ImportError:
        raise CheckpointError(
            f"the checkpoint holds {what} ({body['t']}), and numpy is not installed", hint="pip install numpy"
        ) from None
    return numpy


# Dicts of other classes than dict: what their records say of the class, and how one is made again.
#
# No code of a program runs: a class of its own is one that adds methods to dict and keeps nothing besides the items.

CLASS, FACTORY = "c", "f"
"""Keys of a dict's record: the name of its class, and of what a defaultdict makes its values with."""

_OF_COLLECTIONS: dict[str, type] = {kind.__name__: kind for kind in (collections.Counter, collections.OrderedDict)}
_FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, str, bytes, list, dict, set, tuple)}


def record_fields_naming_class(value: dict[Any, Any]) -> dict[str, str]:
    """What the record of a dict says of its class: nothing of one that comes back as a plain dict."""
    kind = type(value)
    if kind is dict:
        return {}
    if _OF_COLLECTIONS.get(kind.__name__) is kind:
        return {CLASS: kind.__name__}
    if isinstance(value, collections.defaultdict):
        return _record_fields_naming_defaultdict(value)
    name = None
    if _is_dict_subclass_without_lifecycle_code(kind) and not vars(value):
        name = typed_values.class_name_if_found_in_modules(kind)
    if name is None:
        return {}
    return {CLASS: name}


def _record_fields_naming_defaultdict(value: collections.defaultdict[Any, Any]) -> dict[str, str]:
    factory: Any = value.default_factory
    if type(value) is not collections.defaultdict:
        return {}
    if factory is None:
        return {CLASS: "defaultdict"}
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is factory:
        return {CLASS: "defaultdict", FACTORY: name}
    return {}


def rebuild_dict_of_saved_class(record: dict[str, Any], items: dict[Any, Any], *, plain: bool) -> dict[Any, Any]:
    """The dict of a record. With `plain` one of a class that the program does not have is a plain dict.

    Raises CheckpointError.
    """
    name = record.get(CLASS)
    if name is None:
        return items
    if name == "defaultdict":
        return collections.defaultdict(_FACTORIES.get(record.get(FACTORY, "")), items)
    if name in _OF_COLLECTIONS:
        mapping: dict[Any, Any] = _OF_COLLECTIONS[name]()
        mapping.update(items)
        return mapping
    try:
        kind = typed_values.imported_class_by_name(name)
    except CheckpointError:
        if plain:
            return items
        raise
    if not _is_dict_subclass_without_lifecycle_code(kind):
        raise CheckpointError(f"{name} is no longer of the kind with which it was saved (dict)")
    mapping = dict.__new__(kind)
    dict.update(mapping, items)
    return mapping


def _is_dict_subclass_without_lifecycle_code(kind: type) -> bool:
    """Whether an object of that class is the items of a dict, as `copy` and `pickle` see it."""
    *classes, base, _ = kind.__mro__
    return base is dict and bool(classes) and not any(map(typed_values.has_custom_lifecycle_code, classes))


# --- Trees of values -------------------------------------------------------------------------------------------------

Json = Any
Take = Callable[[str, torch.Tensor], "str | dict[str, Json]"]
"""Notes a tensor under its path: the name under which it is stored, or all of its record."""

RECORDS = extra_state.RECORDS
"""Key of a tree: which kinds of records are in it. 2: tensors whose shape or type their owner may change say both.
3: subclasses of Tensor, numpy's arrays, or values of `typed_values.KINDS`, which readers of builds before 0.1.0 do not
know."""

DIVIDED = "d"
"""Key of a described tensor's record: how a DTensor lies on its mesh, a word for each dimension of that."""

PLAIN_RECORDS, TYPED_RECORDS = 2, int(extra_state.TYPED)
_TYPED_MARKS = tuple(f'"$":"{kind}"'.encode() for kind in ("subclass", ARRAY, *sorted(typed_values.KINDS)))

_SIZE = {CLASS: "Size"}
"""What the record of a tuple says that is a torch.Size."""
GRADIENT = "g"
"""Key of a tensor's record that its reader makes: 1 for one that requires a gradient, 2 for a Parameter, 3 for a
Parameter that requires none."""

_CONTAINERS = frozenset((dict, list, tuple))
_TEXT = frozenset((str,))

NO_WHOLES: Mapping[str, torch.Tensor] = {}

_RECORD_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a record leads to that was not made by `encode`: whoever may write to a root may have written any."""

_DEPTH = 200
_LARGEST = 10**4300
"""Python writes and reads no number of more digits."""
_SUGGESTIONS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((torch.Generator,), "x.get_state()"),
    ((tuple,), "tuple(x)"),
    ((bytearray, memoryview), "bytes(x)"),
)


def encode(value: Any, path: str, record_tensor: Take, *, classes: bool = False) -> Json:
    """Return the JSON of `value`; `record_tensor(path, tensor)` records each of its tensors and
    returns the name to write down. With `classes` the records of dicts and tuples name their class,
    where it is another one.

    Raises StateNotSerializable with the path of a leaf that is neither a tensor nor typed JSON, and
    of a container that lies in itself.
    """
    return _Encoder(record_tensor, classes).encode(value, path)


class _Encoder:
    """One walk over a value."""

    def __init__(self, take: Take, classes: bool) -> None:
        self._take = take
        self._classes = classes
        self._outer: dict[int, str] = {}
        """The containers around what is encoded, by id, with their paths."""

    def encode(self, value: Any, path: str) -> Json:
        kind = type(value)
        if kind in PLAIN:  # before the questions that cost more: a state has thousands of tensors, and of dicts
            return self._encode_tensor(value, path)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return _int_or_refuse_too_large(value, path)
        if kind is float:
            return _encode_float(value)
        if kind in _CONTAINERS:
            return self._encode_nested_refusing_cycles(value, path)
        if isinstance(value, torch.Tensor) or is_sharded(value):
            return self._encode_tensor(value, path)
        if kind is bytes:
            return {"$": "bytes", "v": base64.b64encode(value).decode()}
        if kind is complex:
            return {"$": "complex", "v": [repr(value.real), repr(value.imag)]}
        return self._encode_numpy_or_nested(value, path)

    def _encode_numpy_or_nested(self, value: Any, path: str) -> Json:
        if is_numpy_scalar(value):
            return encode_numpy_scalar(value)
        if is_numpy_array(value):
            return encode_numpy_array(value, lambda numbers: self._encode_tensor(numbers, path))
        return self._encode_nested_refusing_cycles(value, path)

    def _encode_tensor(self, value: Any, path: str) -> Json:
        taken = self._take(path, value)
        if isinstance(taken, str):
            return {"$": "tensor", "name": taken}
        return taken

    def _encode_nested_refusing_cycles(self, value: Any, path: str) -> Json:
        """Encode a container; raise StateNotSerializable for one that lies in itself or too deep."""
        kind, outer = type(value), self._outer
        if id(value) in outer:
            raise StateNotSerializable(
                path, f"{kind.__name__} that contains itself, as {outer[id(value)]}", hint=f"take {path} out"
            )
        if len(outer) >= _DEPTH:
            raise StateNotSerializable(path[:200], f"{kind.__name__} inside {_DEPTH} others")
        outer[id(value)] = path
        try:
            return self._encode_container(value, path)
        finally:
            del outer[id(value)]

    def _encode_container(self, value: Any, path: str) -> Json:
        kind = type(value)
        if isinstance(value, dict):
            return self._encode_dict(value, path)
        if kind in (list, tuple, torch.Size):
            items = [self.encode(item, f"{path}.{index}") for index, item in enumerate(value)]
            if kind is list:
                return items
            if self._classes and kind is torch.Size:
                return {"$": "tuple", "v": items, **_SIZE}
            return {"$": "tuple", "v": items}
        record = typed_values.encode(value, lambda item, key: self.encode(item, f"{path}.{key}"))
        if record is None:
            raise StateNotSerializable(
                path, f"{kind.__module__}.{kind.__qualname__}", hint=_hint_what_to_save_instead(value, path)
            )
        return record

    def _encode_dict(self, value: dict[Any, Any], path: str) -> Json:
        # Without `classes` an OrderedDict comes back as dict, in the same order.
        class_fields = {}
        if self._classes:
            class_fields = record_fields_naming_class(value)
        if not class_fields and _TEXT.issuperset(map(type, value)) and "$" not in value:
            return {key: self.encode(item, f"{path}.{key}") for key, item in value.items()}
        pairs = []
        for key, item in value.items():
            if type(key) not in (str, int, bool, float, tuple, bytes, type(None)) and not _is_allowed_nonprimitive_key(
                key
            ):
                raise StateNotSerializable(
                    f"{path}, key {key!r}", type(key).__name__, hint=_hint_what_to_save_instead(key, "the key")
                )
            pairs.append([self.encode(key, f"{path}.<key>"), self.encode(item, f"{path}.{key}")])
        return {"$": "dict", "v": pairs, **class_fields}


def _int_or_refuse_too_large(value: int, path: str) -> int:
    if not -_LARGEST < value < _LARGEST:
        raise StateNotSerializable(path, f"int of {value.bit_length()} bits", hint=f"in place of {path} save hex(x)")
    return value


def _encode_float(value: float) -> Json:
    """Write nan and the infinities as records: JSON has no number for them."""
    if math.isfinite(value):
        return value
    return {"$": "float", "v": repr(value)}


def _is_allowed_nonprimitive_key(value: object) -> bool:
    return is_numpy_scalar(value) or isinstance(value, (enum.Enum, torch.dtype, torch.device, frozenset))


def _hint_what_to_save_instead(value: Any, path: str) -> str:
    """Return the hint what to save in place of a value that cannot be saved."""
    kind = type(value)
    instead = next((text for kinds, text in _SUGGESTIONS if isinstance(value, kinds)), None)
    if instead is None and isinstance(value, enum.Enum):
        instead = "x.value"
    elif instead is None and dataclasses.is_dataclass(value):
        instead = "dataclasses.asdict(x)"
    elif instead is None and kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        instead = "x.tolist()"
    elif instead is None and hasattr(value, "state_dict"):
        return f"give the object of {path} to State under its own name: State(..., name=x)"
    elif instead is None and hasattr(value, "__iter__"):
        instead = "list(x)"
    for base in (int, float, str, bytes):
        if instead is None and isinstance(value, base):
            instead = f"{base.__name__}(x)"
    return f"in place of {path} save {instead or 'the numbers and strings from which it can be rebuilt'}"


def tensor_names(body: Json) -> Iterator[str]:
    """The names of all tensors that an encoded tree refers to; a tied one more than once."""
    if isinstance(body, list):
        for item in body:
            yield from tensor_names(item)
    elif isinstance(body, dict):
        if body.get("$") == "tensor":
            yield str(body["name"])
        else:
            for item in body.values():
                yield from tensor_names(item)


def iter_tensor_and_subclass_records(body: Json) -> Iterator[dict[str, Json]]:
    """Yield the records of all tensors of an encoded tree, less those that are parts of a subclass,
    and of all subclasses."""
    todo = [body]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            if item.get("$") in ("tensor", "subclass"):
                yield item
            else:
                todo += item.values()


def record_with_type_and_shape(name_or_record: str | dict[str, Json], tensor: torch.Tensor) -> dict[str, Json]:
    """Return the record of a tensor with its type and shape, for one whose owner may change both; a
    record that is complete already is returned as it is."""
    if not isinstance(name_or_record, str):
        return name_or_record
    return {"$": "tensor", "name": name_or_record, "t": NAMES[tensor.dtype], "s": list(tensor.shape)}


def container_children(body: Json) -> dict[Any, Json] | list[Json] | tuple[Json, ...] | None:
    """Return what an encoded container holds, still encoded, in a container of its kind; None for
    everything else."""
    if isinstance(body, list):
        return body
    if not isinstance(body, dict):
        return None
    kind = body.get("$")
    if kind is None:
        return dict(body)
    if kind == "tuple":
        return tuple(body["v"])
    if kind == "dict":
        return {decode(key, _refuse_tensor_key): item for key, item in body["v"]}
    return None


def _refuse_tensor_key(name: str) -> torch.Tensor:
    raise CheckpointError(f"the checkpoint has the tensor {name} as a key")


def differing_saved_names(live: Json, saved: Json) -> dict[str, str]:
    """Return for each tensor name of `live` the name that `saved` has at the same place, where it is
    another one."""
    saved_name_of: dict[str, str] = {}
    unchanged: set[str] = set()
    todo: list[tuple[Json, Json]] = [(live, saved)]
    while todo:
        live_record, saved_record = todo.pop()
        if isinstance(live_record, list) and isinstance(saved_record, list):
            todo += zip(live_record, saved_record)
        elif isinstance(live_record, dict) and isinstance(saved_record, dict):
            if live_record.get("$") == "tensor" == saved_record.get("$"):
                if live_record["name"] == saved_record["name"]:
                    unchanged.add(live_record["name"])
                else:
                    saved_name_of.setdefault(live_record["name"], saved_record["name"])
            elif live_record.get("$") != "tensor":
                todo += [(item, saved_record[key]) for key, item in live_record.items() if key in saved_record]
    return {name: other for name, other in saved_name_of.items() if name not in unchanged}


def decode(
    body: Json,
    get_tensor: Callable[[str], torch.Tensor],
    *,
    filled_subclasses: Mapping[str, torch.Tensor] = NO_WHOLES,
    plain: bool = False,
) -> Any:
    """Undo `encode`: `get_tensor(name)` returns the tensor of that name, and `filled_subclasses` has
    the tensor subclasses that exist and are filled.

    With `plain` the parts of a subclass come as a dict, and so do the values of classes that this
    program does not have. Raises CheckpointError for an unknown type, and for a record that
    `encode` does not make.
    """
    try:
        return _decoded(body, get_tensor, filled_subclasses, plain)
    except _RECORD_ERRORS as err:
        what = f"{type(err).__name__}: {clean_one_line(err)[:200]}"
        raise CheckpointError(f"the checkpoint holds a value that hyperpod-kit never writes: {what}") from err


def _decoded(
    body: Json, get_tensor: Callable[[str], torch.Tensor], filled_subclasses: Mapping[str, torch.Tensor], plain: bool
) -> Any:
    def inner(item: Json) -> Any:
        return _decoded(item, get_tensor, filled_subclasses, plain)

    encoded_children = container_children(body)
    if isinstance(encoded_children, dict):
        items = {key: inner(item) for key, item in encoded_children.items()}
        if body.get("$") == "dict":
            return rebuild_dict_of_saved_class(body, items, plain=plain)
        return items
    if encoded_children is not None:
        return _decode_sequence(body, type(encoded_children)(inner(item) for item in encoded_children))
    if not isinstance(body, dict):
        return body
    kind = body["$"]
    if kind == "tensor":
        return _with_grad_or_as_parameter(get_tensor(body["name"]), body.get(GRADIENT, 0))
    if kind == "subclass":
        return _decode_subclass(body, inner, filled_subclasses, plain=plain)
    if kind == ARRAY:
        return decode_numpy_array(body, inner(body["of"]))
    if kind in typed_values.KINDS:
        return typed_values.decode(body, inner, plain=plain)
    return _decode_scalar(body)


def _decode_sequence(body: Json, items: list[Any] | tuple[Any, ...]) -> Any:
    """Make a list, a tuple or a torch.Size of the decoded items."""
    if isinstance(body, dict) and body.get(CLASS) == "Size":
        return torch.Size(items)
    return items


def gradient_and_parameter_code(tensor: Any) -> int:
    """Return the code of a tensor's gradient for its record: see GRADIENT."""
    if isinstance(tensor, torch.nn.Parameter):
        if tensor.requires_grad:
            return 2
        return 3
    return int(isinstance(tensor, torch.Tensor) and tensor.requires_grad)


def _with_grad_or_as_parameter(tensor: Any, gradient_code: int) -> Any:
    if not gradient_code or not isinstance(tensor, torch.Tensor) or isinstance(tensor, torch.nn.Parameter):
        return tensor
    if gradient_code == 1:
        return tensor.requires_grad_()
    return torch.nn.Parameter(tensor, requires_grad=gradient_code == 2)


def _decode_scalar(body: dict[str, Json]) -> Any:
    """A number or bytes that JSON has no form for. Raises CheckpointError for an unknown type."""
    kind = body["$"]
    if kind == "float":
        return float(body["v"])
    if kind == "bytes":
        return base64.b64decode(body["v"])
    if kind == "complex":
        return complex(*map(float, body["v"]))
    if kind == "numpy":
        return decode_numpy_scalar(body)
    raise CheckpointError(f"the checkpoint holds a value of kind {kind!r}, which this version does not support")


def _decode_subclass(
    body: dict[str, Json], inner: Callable[[Json], Any], filled_subclasses: Mapping[str, torch.Tensor], *, plain: bool
) -> Any:
    if body["name"] in filled_subclasses:
        return filled_subclasses[body["name"]]
    parts = {name: inner(part) for name, part in body["parts"].items()}
    if plain:
        return parts
    if body["context"] is None:
        raise CheckpointError(
            f"{body['name']} is a {body['class']}, which only the program itself can create",
            hint="create it before the restore: then its tensors are filled",
        )
    return subclasses.rebuild_subclass_from_parts(body, parts, inner(body["context"][0]))


def subclass_record_without_parts(parts: subclasses.TakenApart) -> dict[str, Json]:
    """Return the record of a tensor subclass without its parts: its class and context."""
    return {"$": "subclass", "class": parts.class_name, "context": encode_subclass_context_or_none(parts.context)}


def encode_subclass_context_or_none(value: Any) -> Json:
    """Return the context of a tensor subclass, encoded, in a list; None where something in it can only
    be made by the program: a function, an object of its own."""
    try:
        return [encode(value, "context", _refuse_tensor)]
    except StateNotSerializable:
        return None


def _refuse_tensor(path: str, _: torch.Tensor) -> str:
    raise StateNotSerializable(path, "tensor")


def serialize_whole_tree_and_shard_part(tree: Mapping[str, Json], shard_keys: Collection[str]) -> tuple[bytes, bytes]:
    """Return the JSON text of an encoded tree with `shard_keys` last, and the text of these parts
    alone; b"" where there are none."""
    per_rank = {key: value for key, value in tree.items() if key in shard_keys}
    rest = {key: value for key, value in tree.items() if key not in shard_keys}
    text = to_json_text(rest)
    last = b""
    if per_rank:
        last = to_json_text(per_rank)
    typed = has_records_unknown_to_old_readers(text) or has_records_unknown_to_old_readers(last)
    rest_end = b""
    if rest:
        rest_end = b","
    kinds = PLAIN_RECORDS
    if typed:
        kinds = TYPED_RECORDS
    text = text[:-1] + rest_end + b'"%s":%d}' % (RECORDS.encode(), kinds)
    if per_rank:
        return (text[:-1] + b"," + last[1:], last)
    return (text, b"")


def has_records_unknown_to_old_readers(text: bytes) -> bool:
    """Whether a tree's text has records that readers of builds before 0.1.0 do not know. A kind in a user's text has
    its quotes escaped: what is found is a record. A walk over the tree would be felt."""
    return any(marker in text for marker in _TYPED_MARKS)


def to_json_text(body: Json) -> bytes:
    """An encoded tree as JSON, without spaces."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
