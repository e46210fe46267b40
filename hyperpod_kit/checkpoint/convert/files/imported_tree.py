"""The values of an imported checkpoint as the tree of one of ours, with the names of its tensors in their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hyperpod_kit.checkpoint.codec import codec, sharding, unsavable
from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedPiece, TensorBytes
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.errors import StateNotSerializable, UsageError

_SAVE_METADATA = {"save": {"parent", "line", "metrics"}, "held": set()}
"""Parts of our trees that say something of the save that they are of, with their keys: an export has them."""
_STATE_PARTS = {"classes": dict, "rng": dict}
"""Parts that a State has; what else has such a name would be taken for them."""


class ImportedTree:
    """`placeholder` for each tensor that lies elsewhere, then `encode`; `pieces` are the tensors that were in the
    values themselves."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[torch.Tensor, str]] = {}
        self._used_names: set[str] = set()
        self._ties: dict[tuple[object, ...], str] = {}
        self.pieces: list[ImportedPiece] = []

    def placeholder(self, name: str) -> torch.Tensor:
        """Return what stands in the values for the tensor that is stored under that name."""
        stand_in = torch.empty(0, dtype=torch.uint8, device="meta")
        self._names[id(stand_in)] = stand_in, name
        self._used_names.add(name)
        return stand_in

    def encode(self, values: Mapping[Any, Any]) -> dict[str, Any]:
        """Return the tree of the values. Raise UsageError for names that have another meaning here,
        StateNotSerializable."""
        tree: dict[str, Any] = {"extra": {}}
        for name, value in values.items():
            if not isinstance(name, str):
                raise UsageError(f"at its top it has {name!r}, expected names", hint="save a dict with names")
            if name == codec.RECORDS and isinstance(value, int):
                continue  # of the tree that was exported: here no record of a tensor says its type and shape
            if name in _SAVE_METADATA:
                if isinstance(value, list) or (isinstance(value, dict) and set(value) <= _SAVE_METADATA[name]):
                    continue
                raise _reserved_name_error(name)
            if name in _STATE_PARTS and not isinstance(value, _STATE_PARTS[name]):
                raise _reserved_name_error(name)
            tree[name] = codec.encode(value, name, self._name_and_collect_tensor)
        return tree

    def _name_and_collect_tensor(self, path: str, tensor: torch.Tensor) -> str:
        if id(tensor) in self._names:
            return self._names[id(tensor)][1]
        if not sharding.is_plain(tensor):
            raise unsavable.subclass_error(path, tensor)
        unsavable.require_savable(path, tensor)
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise StateNotSerializable(path, f"tensor of {list(tensor.shape)} whose items partly share memory")
        if path in self._used_names:
            raise StateNotSerializable(path, "second tensor of that name")
        self._used_names.add(path)
        flags = tensor.is_conj(), tensor.is_neg()
        memory_key = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), flags
        first = path
        if tensor.numel():
            first = self._ties.setdefault(memory_key, path)
        if first == path:
            self.pieces.append(
                ImportedPiece(TensorSpec(path, NAMES[tensor.dtype], tuple(tensor.shape)), TensorBytes(tensor))
            )
        return first


def _reserved_name_error(name: str) -> UsageError:
    return UsageError(f"at its top it has {name!r}, which is a reserved name", hint="save it under another name")
