"""A state tree as typed JSON plus named tensors, and back. Nothing is ever pickled.

Plain JSON stands for None, bool, int, str, finite float, list, and a dict with string keys. Everything else is an
object with the key `$`: float (nan, inf), bytes, tuple, dict (other keys), tensor (by name).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import torch

from hyperpod_kit.checkpoint.dtypes import NAMES
from hyperpod_kit.errors import CheckpointError, StateNotSerializable

Json = Any


def encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Json:
    """The JSON of `value`; its tensors are added to `tensors` under their paths.

    Raises StateNotSerializable with the path of a leaf that is neither a tensor nor typed JSON.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, path, tensors)
    if kind is bytes:
        return {"$": "bytes", "v": base64.b64encode(value).decode()}
    if kind in (list, tuple, torch.Size):
        items = [encode(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
        return items if kind is list else {"$": "tuple", "v": items}
    if isinstance(value, dict):  # OrderedDict and defaultdict come back as dict, in the same order
        plain = all(type(key) is str for key in value) and "$" not in value
        if plain:
            return {key: encode(item, f"{path}.{key}", tensors) for key, item in value.items()}
        pairs = []
        for key, item in value.items():
            if type(key) not in (str, int, bool, float, tuple, bytes):
                raise StateNotSerializable(f"{path}, key {key!r}", type(key).__name__)
            pairs.append([encode(key, f"{path}.<key>", {}), encode(item, f"{path}.{key}", tensors)])
        return {"$": "dict", "v": pairs}
    raise StateNotSerializable(path, f"{kind.__module__}.{kind.__qualname__}")


def _encode_tensor(value: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> Json:
    if value.dtype not in NAMES or value.layout != torch.strided or value.is_meta:
        raise StateNotSerializable(path, f"{value.layout} tensor of {value.dtype} on {value.device}")
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise StateNotSerializable(path, f"tensor subclass {type(value).__name__}")
    if path in tensors:
        raise StateNotSerializable(path, "second tensor of that name")
    tensors[path] = value.detach()
    return {"$": "tensor", "name": path}


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
