"""Whether the tensors of a copy stayed as they were while it ran: else the copy is no image of one moment.

torch counts the operations that change a tensor in place, which costs one read. What writes through `.data`, a view of
numpy or a fused kernel is not counted: of such memory samples are compared, on the host words (see `SampledWords`), on
a device chunks (see `device`).
"""

from __future__ import annotations

import ctypes
import operator
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.state.tensors import TensorPiece

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
            f"{names[0]}{more} changed while they were copied: code other than the step of an optimizer in the State "
            "wrote to them; call manager.fence() before it does, and save in the thread that trains"
        )


# Some words of tensors in host memory, read where they lie: equal readings mean that nobody has written meanwhile.
#
# An array of numpy over all addresses of the process gives any number of words in one call. It needs no tensor's
# class, no mode of torch and no memory of its own; which addresses may be read is known from the tensors.

_WORD = 8
_PAGE = 4096
_TOP = 1 << 52  # above every address that a process is given
_EVERY = 64 * 1024  # bytes of a tensor for one word
_FEW = 8  # words of a smaller one
_ITEMS = 16  # items of one whose memory has gaps


class SampledWords:
    """Words of each tensor that lies in host memory: the first, the last, and some between, at random places.

    It holds addresses: keep the tensors alive.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._reads: list[tuple[int, Any]] = []
        """Bytes of a word, and the places of words of that size in memory."""
        self._owners: list[Any] = []
        self.fully_read: frozenset[int] = frozenset()
        """The numbers of the tensors of which every byte is read."""
        numpy: Any = sys.modules.get("numpy")
        here = [number for number, tensor in enumerate(tensors) if tensor.device.type == "cpu"]
        if numpy is None or not here:
            return
        flat = [number for number in here if tensors[number].is_contiguous()]
        begin = numpy.array([tensors[number].data_ptr() for number in flat], dtype=numpy.int64)
        size = numpy.array([tensors[number].nbytes for number in flat], dtype=numpy.int64)
        first = -(-begin // _WORD)
        word_counts = numpy.maximum((begin + size) // _WORD - first, 0)
        number = numpy.array(flat, dtype=numpy.int64)
        self._add_samples_of_runs(
            numpy, _WORD, first, word_counts, numpy.minimum(word_counts, numpy.maximum(_FEW, size // _EVERY)), number
        )
        inside = (begin % _WORD == 0) & (size % _WORD == 0) & (word_counts <= _FEW)
        self.fully_read = frozenset(number[inside | (word_counts == 0)].tolist())
        size = numpy.where(word_counts == 0, size, 0)
        self._add_samples_of_runs(numpy, 1, begin, size, size, number)
        for other in set(here).difference(flat):
            self._add_samples_of_strided(numpy, tensors[other], other)

    def _add_samples_of_runs(
        self, numpy: Any, word_bytes: int, first_words: Any, word_counts: Any, sample_counts: Any, tensor_numbers: Any
    ) -> None:
        """Add `sample_counts` sampled places, about evenly spread, of each run of `word_counts` words that
        begins at `first_words`."""
        run = numpy.repeat(numpy.arange(len(sample_counts)), sample_counts)
        index = numpy.arange(len(run)) - (numpy.cumsum(sample_counts) - sample_counts)[run]
        # Of its own: the program's generator must come to the same numbers with and without a save.
        shift = numpy.random.default_rng().random(len(run))
        places = ((index + shift) * word_counts[run] / sample_counts[run]).astype(numpy.int64)
        places = numpy.minimum(places, word_counts[run] - 1)
        places[index == sample_counts[run] - 1] = (word_counts[run] - 1)[index == sample_counts[run] - 1]
        places[index == 0] = 0
        self._reads.append((word_bytes, first_words[run] + places - _PAGE // word_bytes))
        self._owners.append(tensor_numbers[run])

    def _add_samples_of_strided(self, numpy: Any, tensor: torch.Tensor, tensor_number: int) -> None:
        items = tensor.numel()
        if not items:
            return
        places = numpy.unique(numpy.linspace(0, items - 1, min(items, _ITEMS)).astype(numpy.int64))
        steps = numpy.unravel_index(places, tuple(tensor.shape))
        offsets = sum((at * step for at, step in zip(steps, tensor.stride(), strict=True)), numpy.zeros_like(places))
        size = tensor.element_size()
        each = (tensor.data_ptr() - _PAGE + offsets * size)[:, None] + numpy.arange(size)
        self._reads.append((1, each.ravel()))
        self._owners.append(numpy.full(each.size, tensor_number))

    def read(self) -> list[Any]:
        """Return the sampled words as they are now."""
        return [_process_memory_as_words(size).take(places, mode="clip") for size, places in self._reads]

    def differing(self, before: Sequence[Any]) -> set[int]:
        """Return the numbers of the tensors whose words have changed since the `read` that gave `before`."""
        numbers: set[int] = set()
        for then, now, owners in zip(before, self.read(), self._owners, strict=True):
            numbers.update(owners[then != now].tolist())
        return numbers


@lru_cache(maxsize=None)
def _process_memory_as_words(size: int) -> Any:
    """Return all of this process's memory, less its first page, as an array of words of that size."""
    import numpy

    word: Any = ctypes.c_uint8
    if size == _WORD:
        word = ctypes.c_uint64
    return numpy.ctypeslib.as_array((word * (_TOP // size)).from_address(_PAGE))
