"""The files of a DeepSpeed checkpoint as tensors and words: everything that a file says, a number in the place of each
tensor. What the adapter saves so, the export puts together again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from hyperpod_kit.errors import CheckpointError

PARTITION = "zero_pp_rank_"
"""In the name of a file that is one rank's alone."""
PER_RANK_PATTERNS = ("words", "generators", f"files.*{PARTITION}*")
"""What of the state each rank has for itself, as StateDict names it."""
_TENSOR_KEY = "hyperpod_kit.tensor"
"""Key of what stands in the place of a tensor: its number."""


def deepspeed_classes() -> list[Any]:
    """Return the classes of DeepSpeed that its files hold. Raise ImportError."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


def deepspeed_classes_if_installed() -> list[Any]:
    """Return those of `deepspeed_classes`, none where DeepSpeed is not installed."""
    with contextlib.suppress(ImportError):
        return deepspeed_classes()
    return []


def extract_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with `{_TENSOR_KEY: number}` in the place of each tensor, which is appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {_TENSOR_KEY: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: extract_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(extract_tensors(item, tensors) for item in value)
    return value


def insert_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `extract_tensors`; `tensors`: number, as text -> tensor. Raises CheckpointError for a tensor that is not
    there."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR_KEY}:
            if str(value[_TENSOR_KEY]) not in tensors:
                raise CheckpointError("the checkpoint has other tensors than DeepSpeed's engine")
            return tensors[str(value[_TENSOR_KEY])]
        return {key: insert_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(insert_tensors(item, tensors) for item in value)
    return value
