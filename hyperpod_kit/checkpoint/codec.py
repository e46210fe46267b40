"""A state tree as typed JSON plus named tensors, and back. Nothing is ever pickled.

Plain JSON stands for None, bool, int, str, finite float, list, and a dict with string keys. Everything else is an
object with the key `$`: float (nan, inf), bytes, tuple, dict (other keys), tensor (by name).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hyperpod_kit.checkpoint.sharding import is_sharded
from hyperpod_kit.errors import CheckpointError, StateNotSerializable

Json = Any


def encode(value: Any, path: str, take: Callable[[str, torch.Tensor], str]) -> Json:
    """The JSON of `value`; `take(path, tensor)` notes each of its tensors and returns the name to write down.

    Raises StateNotSerializable with the path of a leaf that is neither a tensor nor typed JSON.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    if isinstance(value, torch.Tensor) or is_sharded(value):
        return {"$": "tensor", "name": take(path, value)}
    if kind is bytes:
        return {"$": "bytes", "v": base64.b64encode(value).decode()}
    if kind in (list, tuple, torch.Size):
        items = [encode(item, f"{path}.{index}", take) for index, item in enumerate(value)]
        return items if kind is list else {"$": "tuple", "v": items}
    if isinstance(value, dict):  # OrderedDict and defaultdict come back as dict, in the same order
        plain = all(type(key) is str for key in value) and "$" not in value
        if plain:
            return {key: encode(item, f"{path}.{key}", take) for key, item in value.items()}
        pairs = []
        for key, item in value.items():
            if type(key) not in (str, int, bool, float, tuple, bytes):
                raise StateNotSerializable(f"{path}, key {key!r}", type(key).__name__)
            pairs.append([encode(key, f"{path}.<key>", take), encode(item, f"{path}.{key}", take)])
        return {"$": "dict", "v": pairs}
    raise StateNotSerializable(path, f"{kind.__module__}.{kind.__qualname__}")


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


def decode(body: Json, tensor: Callable[[str], torch.Tensor]) -> Any:
    """Undo `encode`; `tensor(name)` gives the tensor of that name. Raises CheckpointError for an unknown type."""
    if isinstance(body, list):
        return [decode(item, tensor) for item in body]
    if not isinstance(body, dict):
        return body
    kind = body.get("$")
    if kind is None:
        return {key: decode(item, tensor) for key, item in body.items()}
    if kind == "tensor":
        return tensor(body["name"])
    if kind == "float":
        return float(body["v"])
    if kind == "bytes":
        return base64.b64decode(body["v"])
    if kind == "tuple":
        return tuple(decode(item, tensor) for item in body["v"])
    if kind == "dict":
        return {decode(key, tensor): decode(item, tensor) for key, item in body["v"]}
    raise CheckpointError(f"the checkpoint holds a value of kind {kind!r}, which this version does not know")


def text_of(body: Json) -> bytes:
    """An encoded tree as JSON, without spaces."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
