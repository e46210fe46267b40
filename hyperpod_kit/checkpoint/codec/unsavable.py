"""Tensors that a shard cannot hold, and what can be saved in their place."""

from __future__ import annotations

import torch

from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.errors import StateNotSerializable

_SPARSE = {
    torch.sparse_coo: "x = x.coalesce(): x.indices(), x.values() and list(x.shape)",
    torch.sparse_csr: "x.crow_indices(), x.col_indices(), x.values() and list(x.shape)",
    torch.sparse_csc: "x.ccol_indices(), x.row_indices(), x.values() and list(x.shape)",
    torch.sparse_bsr: "x.crow_indices(), x.col_indices(), x.values() and list(x.shape)",
    torch.sparse_bsc: "x.ccol_indices(), x.row_indices(), x.values() and list(x.shape)",
}


def require_savable(path: str, tensor: torch.Tensor) -> None:
    """Raise StateNotSerializable for a tensor that is not dense, of a type that no file has, or
    without memory."""
    if tensor.is_nested:
        raise StateNotSerializable(path, "nested tensor", hint=f"in place of {path} save list(x.unbind())")
    if tensor.dtype in NAMES and tensor.layout == torch.strided and not tensor.is_meta:
        return
    hint = None
    if tensor.is_meta:
        hint = "give it memory before: model.to_empty(device=...), and initial values"
    elif tensor.is_quantized:
        hint = f"in place of {path} save x.int_repr(), x.q_scale() and x.q_zero_point(), or x.dequantize()"
    elif tensor.layout in _SPARSE:
        hint = f"in place of {path} save {_SPARSE[tensor.layout]}, or x.to_dense()"
    elif tensor.layout != torch.strided:
        hint = f"in place of {path} save x.to_dense()"
    raise StateNotSerializable(path, f"{tensor.layout} tensor of {tensor.dtype} on {tensor.device}", hint=hint)


def subclass_error(path: str, tensor: torch.Tensor) -> StateNotSerializable:
    """The error for a tensor whose class says what its numbers mean: a quantised weight, say."""
    hint = f"in place of {path} save the plain tensors that it is made of, or give its class __tensor_flatten__"
    if tensor.is_nested:
        hint = f"in place of {path} save list(x.unbind())"
    return StateNotSerializable(path, f"tensor subclass {type(tensor).__name__}", hint=hint)
