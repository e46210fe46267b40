"""Some chunks of tensors on a device, read where they lie, as `sampled_words` reads those of the host's memory."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import torch

_CHUNK = 64  # bytes
_EVERY = 4 * 1024 * 1024  # bytes of a tensor for one chunk
_MOST = 64  # chunks of a tensor
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SampledChunks:
    """Views of some chunks of each tensor, the first and the last among them."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._views: dict[torch.dtype, list[torch.Tensor]] = {}
        owners: dict[torch.dtype, list[int]] = {}
        for number, tensor in enumerate(tensors):
            for view in _sampled_chunk_views(tensor):
                self._views.setdefault(view.dtype, []).append(view)
                owners.setdefault(view.dtype, []).extend([number] * view.numel())
        self._owners = [number for numbers in owners.values() for number in numbers]

    def is_for_tensors(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether these are its tensors."""
        return len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))

    def read(self) -> list[torch.Tensor]:
        """Return the sampled chunks as they are when the device's current stream comes to it."""
        return [torch.cat(views) for views in self._views.values()]

    def differing(self, before: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return for each item of the chunks whether it differs from the `read` that gave `before`, on the
        device; None where there are no chunks."""
        if not before:
            return None
        return torch.cat([then != now for then, now in zip(before, self.read(), strict=True)])

    def changed(self, differing: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors to which the differing items belong; `differing` is in host memory."""
        numbers = {self._owners[at] for at in differing.nonzero().view(-1).tolist()}
        return [self._tensors[number] for number in sorted(numbers)]


def _sampled_chunk_views(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    plain = tensor.detach()
    if not plain.numel() or plain.is_conj() or plain.is_neg():
        return  # what these bits stand for is no memory that could be compared as it is
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    items = plain.view(_INTEGERS[plain.element_size()])
    room = _CHUNK // items.element_size()
    if not items.is_contiguous():
        while items.dim() > 1:
            items = items.select(0, items.shape[0] // 2)
        yield items[:room]
        return
    items = items.view(-1)
    count = 1 + min(_MOST - 1, items.nbytes // _EVERY)
    last = max(0, items.numel() - room)
    for number in range(count):
        yield items.narrow(0, last * number // max(1, count - 1), min(room, items.numel()))
