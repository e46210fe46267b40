"""Which of the ranks that hold the same piece writes it: every byte once, about equally many on each rank."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from hyperpod_kit.checkpoint.state.tensors import TensorPiece


def assign_writing_replica_indexes(pieces: Iterable[TensorPiece]) -> dict[str, int]:
    """Tensor name -> index of the replica that writes it.

    Balanced by bytes inside each set of ranks that hold the same pieces; every rank of a set computes the same without
    communication.
    """
    sets: dict[tuple[tuple[int, ...], int], list[TensorPiece]] = {}
    for piece in pieces:
        sets.setdefault((piece.holders, piece.replica[1]), []).append(piece)
    out: dict[str, int] = {}
    for (_, count), members in sets.items():
        pinned = [piece for piece in members if piece.pinned]
        out.update((piece.spec.name, 0) for piece in pinned)
        load = [(0, index) for index in range(count)]
        load[0] = sum(piece.spec.nbytes for piece in pinned), 0
        heapq.heapify(load)
        for piece in sorted(members, key=lambda piece: (-piece.spec.nbytes, piece.spec.name)):
            if not piece.pinned:
                total, index = heapq.heappop(load)
                out[piece.spec.name] = index
                heapq.heappush(load, (total + piece.spec.nbytes, index))
    return out
