"""What a save writes where: which of the state's tensors this rank writes, and their places in its shard."""

from __future__ import annotations

from hyperpod_kit.checkpoint import replica_assignment
from hyperpod_kit.checkpoint.agent.control_page import ShardFacts
from hyperpod_kit.checkpoint.repository import digest, rank_extra_state
from hyperpod_kit.checkpoint.repository.shard import ShardLayout, lay_out
from hyperpod_kit.checkpoint.tensors import StateTensors, TensorPiece


class SavePlan:
    """One rank's part of every save of such tensors. Depends on their specs and layouts only."""

    def __init__(
        self, tensors: StateTensors, *, rank: int, world: int, run_id: str, algorithm: str, tree_bytes: int = 0
    ) -> None:
        """`tree_bytes`: bytes of the rank's own tree, which is to lie in the shard."""
        owners = replica_assignment.assign_writing_replica_indexes(tensors.pieces)
        self._numbers = tuple(
            n for n, piece in enumerate(tensors.pieces) if owners[piece.spec.name] == piece.replica[0]
        )
        pieces = self.pieces_to_write(tensors)
        self._outline = tensors.outline
        self.fingerprint = tensors.plan
        self._shared = tensors.shared
        self._first = sum(piece.spec.is_at_origin and not piece.is_per_rank for piece in pieces)
        self._algorithm = algorithm
        self.layout: ShardLayout = lay_out(
            [piece.spec for piece in pieces],
            rank=rank,
            world=world,
            run_id=run_id,
            plan=tensors.plan,
            algorithm=algorithm,
            tree_bytes=rank_extra_state.reserved_bytes_with_growth_room(tree_bytes),
        )

    def is_reusable_for(self, tensors: StateTensors, tree_bytes: int = 0) -> bool:
        begin, end = self.layout.tree
        return tree_bytes <= end - begin and (
            tensors.outline is self._outline or (tensors.outline == self._outline and tensors.plan == self.fingerprint)
        )

    def pieces_to_write(self, tensors: StateTensors) -> list[TensorPiece]:
        """Return the pieces of `tensors` that this rank writes."""
        return [tensors.pieces[n] for n in self._numbers]

    def facts(self, extra: bytes) -> ShardFacts:
        """Return what the control page says of the shard; its digest is still unknown."""
        return ShardFacts(
            digest=self._algorithm,
            chunk=digest.CHUNK,
            size=self.layout.size,
            layout=self.layout.fingerprint,
            plan=self.fingerprint,
            tensors=self._first,
            plan_tensors=self._shared,
            extra_size=len(extra),
            extra_root=digest.small_object_digest(extra),
        )
