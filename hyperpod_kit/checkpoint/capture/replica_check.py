"""Whether replicas are equal, from one rank's side: digests of what it holds together with others, of a save's bytes.

They are taken where the copy is made, before training may change the bytes; the agents compare them (see
`agent/reports/replicas.py`). Host memory is digested by the copier threads, a device where its tensors lie
(see `transfer/device.py`).
"""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    AgentEvent,
    SaveDropped,
    SaveDurable,
    SaveFailed,
    SaveSealed,
    TensorDigests,
    TensorQuery,
)
from hyperpod_kit.checkpoint.agent.reports import replicas
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.transfer import tensor_memory

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.state.tensors import TensorPiece
    from hyperpod_kit.checkpoint.transfer.device import DigestRequest
    from hyperpod_kit.checkpoint.transfer.memory_copy import Batch

_CUT = 8 * 1024 * 1024
_GROUP = 4 * 1024 * 1024
_ROOM = 128  # bytes of a capture's text for one set of holders, more than it takes


class Comparison:
    """The digests of one save. `work` and `folds` are carried out by others; then `digests` says what goes into the
    capture, and `tensors` which tensor it is."""

    def __init__(self, pieces: Sequence[TensorPiece], algorithm: str) -> None:
        self._pieces = [piece for piece in pieces if piece.is_compared_with_replicas]
        self._digest = digest.algorithm(algorithm).wide
        self._parts: list[list[bytes]] = [[] for _ in self._pieces]
        self._sets = {piece.holders: short_id_of_holders(piece.holders) for piece in self._pieces}
        self._kinds = [piece.type_and_shape for piece in self._pieces]
        self._work: dict[bool, list[Batch]] = {}
        self.room = _ROOM * len(self._sets)

    def is_for_pieces(self, pieces: Sequence[TensorPiece]) -> bool:
        """Return whether these are its pieces: then it can be carried out once more."""
        compared = [piece for piece in pieces if piece.is_compared_with_replicas]
        return len(compared) == len(self._pieces) and all(map(operator.is_, compared, self._pieces))

    def host_digest_batches(self, *, early: bool) -> list[Batch]:
        """Return the batches that digest the pieces in host memory, the early ones or the others; made
        once."""
        if early not in self._work:
            self._work[early] = self._make_host_digest_batches(early)
        return self._work[early]

    def _make_host_digest_batches(self, early: bool) -> list[Batch]:
        out: list[Batch] = []
        group: Batch = []
        filled = 0
        for piece, parts in zip(self._pieces, self._parts, strict=True):
            if piece.early is not early or tensor_memory.is_on_cuda(piece.tensor):
                continue
            size = piece.tensor.nbytes
            if not tensor_memory.is_contiguous_on_host(piece.tensor) or size <= _GROUP:
                parts.append(b"")
                group.append((self._digest_full_tensor, (piece.tensor, parts)))
                filled += size
                if filled >= _GROUP:
                    out.append(group)
                    group, filled = [], 0
                continue
            address = piece.tensor.data_ptr()
            parts += [b""] * -(-size // _CUT)
            out += [
                [(self._digest_memory_range, (address + at, min(_CUT, size - at), parts, number))]
                for number, at in enumerate(range(0, size, _CUT))
            ]
        if group:
            out.append(group)
        return out

    def _digest_full_tensor(self, tensor: torch.Tensor, parts: list[bytes]) -> None:
        plain = tensor
        if not tensor_memory.is_contiguous_on_host(tensor):
            plain = tensor.cpu().resolve_conj().resolve_neg().contiguous()
        size = plain.nbytes
        # Cut alike, whether this rank has the elements in order or not.
        parts[:] = [b""] * max(1, -(-size // _CUT if size > _GROUP else 1))
        for number in range(len(parts)):
            at = number * _CUT
            self._digest_memory_range(plain.data_ptr() + at, min(_CUT, size - at) if size else 0, parts, number)

    def _digest_memory_range(self, address: int, size: int, parts: list[bytes], number: int) -> None:
        parts[number] = b""
        if size:
            parts[number] = self._digest((ctypes.c_ubyte * size).from_address(address))

    def clear_and_request_device_digests(self) -> list[DigestRequest]:
        """Return the requests for digests of the pieces on devices, and clear earlier results."""
        far = [
            (piece, parts)
            for piece, parts in zip(self._pieces, self._parts, strict=True)
            if tensor_memory.is_on_cuda(piece.tensor)
        ]
        for _, parts in far:
            parts.clear()
        return [(piece.tensor, piece.early, parts.append) for piece, parts in far]

    def combined_digests_by_holders(self) -> dict[str, str]:
        """Return one combined digest for each set of holders, when all is digested."""
        return {name: replicas.combine_digests(self.tensor_digests_of_holders(name)) for name in self._sets.values()}

    def tensor_digests_of_holders(self, holders_id: str) -> list[tuple[str, str, str]]:
        """Return name, layout and digest of each tensor of a set of holders."""
        return [
            (piece.spec.name, kind, (parts[0] if len(parts) == 1 else self._digest(b"".join(parts))).hex())
            for piece, kind, parts in zip(self._pieces, self._kinds, self._parts, strict=True)
            if self._sets[piece.holders] == holders_id
        ]


def short_id_of_holders(holders: tuple[int, ...]) -> str:
    """Return a short identifier of a set of holders, the same on all of them: "all" or part of a
    digest."""
    if holders:
        return digest.small_object_digest(repr(holders).encode()).rpartition(":")[2][:12]
    return "all"


class ReplicaCheck:
    """Which saves compare: each until the first one of a plan was found equal, then every `every`-th, a last one, and
    each again after one that did not come through. `every` None: no save does. Safe for threads."""

    def __init__(self, every: int | None, algorithm: str) -> None:
        """Raises ValueError."""
        if every is not None and (type(every) is not int or every < 1):
            raise ValueError(f"compare is {every!r}, expected a positive number of saves, or None")
        self._every = every
        self._algorithm = algorithm
        self._equal = ""  # the plan whose replicas were equal at last
        self._open: dict[int, tuple[str, Comparison]] = {}
        self._last: Comparison | None = None
        self._lock = threading.Lock()

    def handle_event(self, event: AgentEvent) -> TensorDigests | None:
        """Update the check from an agent's event; return the reply where it is a query for tensors."""
        if isinstance(event, TensorQuery):
            return TensorDigests(event.key, self.tensor_digests(event.key[1], event.holders))
        if isinstance(event, (SaveSealed, SaveDurable)):
            self.mark_equal(event.key[1])
        elif isinstance(event, (SaveFailed, SaveDropped)):
            self.forget(event.key[1])
        return None

    def begin_comparison_if_due(
        self, seq: int, plan: str, pieces: Sequence[TensorPiece], *, last: bool
    ) -> Comparison | None:
        """Return the comparison to carry out for save `seq` and keep it for queries; None where this save
        has none."""
        if self._every is None or not any(piece.is_compared_with_replicas for piece in pieces):
            return None
        with self._lock:
            if plan == self._equal and not last and seq % self._every:
                return None
            # Until it is known how this one ends, what is saved meanwhile is compared too.
            self._equal = ""
            comparison = self._last
            if (
                comparison is None
                or any(comparison is other for _, other in self._open.values())
                or not comparison.is_for_pieces(pieces)
            ):
                comparison = self._last = Comparison(pieces, self._algorithm)
            self._open[seq] = plan, comparison
            return comparison

    def mark_equal(self, seq: int) -> None:
        """Note that every rank has sealed that save, so its replicas were equal, and forget its comparison
        and earlier ones."""
        with self._lock:
            plan, _ = self._open.get(seq, ("", None))
            if plan:
                self._equal = plan
                self._open = {other: comparison for other, comparison in self._open.items() if other > seq}

    def forget(self, seq: int) -> None:
        """Forget the comparison of a save that failed: its tensors are not queried any more."""
        with self._lock:
            self._open.pop(seq, None)

    def tensor_digests(self, seq: int, holders: str) -> list[tuple[str, str, str]] | None:
        """Return the digests of save `seq` for a set of holders, for an agent's query; None when they are
        not kept any more."""
        with self._lock:
            entry = self._open.get(seq)
        if entry is not None:
            return entry[1].tensor_digests_of_holders(holders)
        return None
