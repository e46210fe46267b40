"""Where a tensor's elements lie, and whether its memory is these elements in order."""

from __future__ import annotations

import torch


def is_on_cuda(tensor: torch.Tensor) -> bool:
    """Return whether the tensor lies on a CUDA device, from which `device` copies."""
    return tensor.device.type == "cuda"


def is_contiguous_without_flags(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory is its elements in order: contiguous, and neither a conjugate
    nor a negative view, which is the memory of another tensor and a flag."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def is_contiguous_on_host(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's memory is its elements in order, in host memory."""
    return tensor.device.type == "cpu" and is_contiguous_without_flags(tensor)
