"""Whether the tensors of a copy stayed as they were while it ran: else the copy is no image of one moment.

torch counts the operations that change a tensor in place, which costs one read. What writes through `.data`, a view of
numpy or a fused kernel is not counted: of such memory samples are compared, on the host words (see `sampled_words`), on
a device chunks (see `device`).
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.sampled_words import SampledWords
from hyperpod_kit.checkpoint.tensors import TensorPiece

_counter = operator.attrgetter("_version")


class SourceState(NamedTuple):
    """Tensors at one moment: the operations that torch has counted, and samples of host memory."""

    counts: list[int | None]
    samples: list[Any]


class CopiedSources:
    """The tensors of some pieces, for as many copies as there are of them."""

    def __init__(self, pieces: Sequence[TensorPiece]) -> None:
        pieces = [piece for piece in pieces if not piece.temporary]
        self._pieces = pieces
        self._samples = SampledWords([piece.tensor for piece in pieces])
        large = [piece for number, piece in enumerate(pieces) if number not in self._samples.fully_read]
        # An operation on a DTensor or on a subclass is counted where the program has called it.
        wrapped = [(piece.source, piece) for piece in large if piece.source is not None]
        self._counted = [piece.tensor for piece in large] + [tensor for tensor, _ in wrapped]
        self._owners = large + [piece for _, piece in wrapped]

    def names_of(self, tensors: Sequence[torch.Tensor]) -> list[str]:
        """Return the names of some of the tensors."""
        names = {id(piece.tensor): piece.spec.name for piece in self._pieces}
        return [names[id(tensor)] for tensor in tensors]

    def observe(self) -> SourceState:
        return SourceState(_version_counts(self._counted), self._samples.read())

    def changed(self, before: SourceState) -> list[str]:
        """Return the names of the tensors that have changed since `before`."""
        differing = self._samples.differing(before.samples)
        names = [self._pieces[number].spec.name for number in sorted(differing)]
        counts = _version_counts(self._counted)
        if counts != before.counts:
            differ = map(operator.ne, counts, before.counts)
            names += [piece.spec.name for piece, other in zip(self._owners, differ, strict=True) if other]
        return list(dict.fromkeys(names))


def _version_counts(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    try:
        return list(map(_counter, tensors))
    except RuntimeError:
        return list(map(_version_count, tensors))


def _version_count(tensor: torch.Tensor) -> int | None:
    """Return a tensor's version counter; None for a tensor that was made in inference mode, which has
    none."""
    if tensor.is_inference():
        return None
    return tensor._version


class CopyGuard:
    """The sources of one copy. `early` ones may change as soon as `record_early_sources_changed_since_start` was
    called, the others after `record_all_sources_changed_since_start`."""

    def __init__(self, early: CopiedSources, late: CopiedSources) -> None:
        self._lock = threading.Lock()
        self._early, self._late = early, late
        self._early_before: SourceState | None = early.observe()
        self._late_before: SourceState | None = late.observe()
        self._changed: list[str] = []

    def record_early_sources_changed_since_start(self) -> None:
        """Compare the early sources, now copied, with what they were at the start and keep the names of
        those that changed; later changes do not count."""
        with self._lock:
            before, self._early_before = self._early_before, None
            if before is not None:
                self._changed += self._early.changed(before)

    def record_all_sources_changed_since_start(self) -> None:
        """Compare all sources, early and late, with what they were at the start and keep the names of
        those that changed. What happens to them after the first call does not count."""
        self.record_early_sources_changed_since_start()
        with self._lock:
            before, self._late_before = self._late_before, None
            if before is not None:
                self._changed += self._late.changed(before)

    def record_tensors_changed_on_device(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the names of late tensors that the device has seen change during the copy."""
        names = self._late.names_of(tensors)
        with self._lock:
            self._changed += names

    @property
    def problem(self) -> str | None:
        """Return the message that sources changed during the copy, with the first name; None where none
        did."""
        with self._lock:
            names = list(dict.fromkeys(self._changed))
        if not names:
            return None
        more = ""
        if len(names) > 1:
            more = f" and {len(names) - 1} more"
        return (
            f"{names[0]}{more} changed while they were copied: other code than an optimizer's step of the State wrote "
            "to them; call manager.fence() before it does, and save in the thread that trains"
        )
