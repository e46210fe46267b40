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
OWN = ("words", "generators", f"files.*{PARTITION}*")
"""What of the state each rank has for itself, as StateDict names it."""
_HELD = "hyperpod_kit.tensor"
"""Key of what stands in the place of a tensor: its number."""


def own_classes() -> list[Any]:
    """Of DeepSpeed's classes those that its files hold. Raises ImportError."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


def known_classes() -> list[Any]:
    """Those of `own_classes`, none where DeepSpeed is not installed."""
    with contextlib.suppress(ImportError):
        return own_classes()
    return []


def split(said: Any, held: list[torch.Tensor]) -> Any:
    """`said` with `{_HELD: number}` in the place of each tensor, which goes to `held`."""
    if isinstance(said, torch.Tensor):
        held.append(said)
        return {_HELD: len(held) - 1}
    if isinstance(said, dict):
        return {key: split(item, held) for key, item in said.items()}
    if type(said) in (list, tuple):
        return type(said)(split(item, held) for item in said)
    return said


def joined(said: Any, held: Mapping[str, torch.Tensor]) -> Any:
    """Undo `split`; `held`: number, as text -> tensor. Raises CheckpointError for a tensor that is not there."""
    if isinstance(said, dict):
        if said.keys() == {_HELD}:
            if str(said[_HELD]) not in held:
                raise CheckpointError("the checkpoint has other tensors than DeepSpeed's engine")
            return held[str(said[_HELD])]
        return {key: joined(item, held) for key, item in said.items()}
    if type(said) in (list, tuple):
        return type(said)(joined(item, held) for item in said)
    return said
