"""What a rank is told and works out before it reads a tensor: a cold restore by as many ranks, and by half as many.

    python lab/programs/fleets/planning.py WORLD ROOT              (started by lab/programs/fleets, after agents.py)

This process is rank 0 of the run, with the product's code; the wire under its collectives is simulated. `bytes_in` is
what a rank other than 0 receives: of a broadcast its bytes, of a reduction twice its bytes, of a gather to all those
of all ranks.
"""

from __future__ import annotations

import itertools
import resource
import sys
from typing import Any, List, Sequence

import model
import torch
from meter import Meter

from hyperpod_kit.checkpoint.dcp import reshard, sharing, slices
from hyperpod_kit.checkpoint.ranks import collectives, wire_values
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.restore import candidates
from hyperpod_kit.checkpoint.restore.agreement import Agreement
from hyperpod_kit.checkpoint.restore.candidate_run import CandidateRun, NearerTiers, ProvedHeader

MEMORY = 8 << 30


class Wire:
    """torch.distributed where every rank says what this one says. `received`: bytes, of a rank other than 0."""

    def __init__(self, world: int) -> None:
        self.world, self.received = world, 0

    def all_gather(self, out: Sequence[torch.Tensor], tensor: torch.Tensor, group: Any = None) -> None:
        for row in out:
            row.copy_(tensor)

    def broadcast(self, data: torch.Tensor, src: int, group: Any = None) -> None:
        self.received += data.numel() * data.element_size()

    def all_reduce(self, data: torch.Tensor, op: Any = None, group: Any = None) -> None:
        self.received += 2 * data.numel() * data.element_size()

    def scatter(self, tensor: torch.Tensor, rows: Any, src: int = 0, group: Any = None) -> None:
        self.received += tensor.numel()
        tensor.copy_(rows[0])

    def get_global_rank(self, group: Any, rank: int) -> int:
        return rank

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.distributed, name)


class SimulatedRanks(Ranks):
    """Rank 0 of `world`."""

    def __init__(self, world: int) -> None:
        super().__init__(alone=True)
        self.alone, self.world = False, world
        self.wire = Wire(world)
        module: Any = collectives
        module.dist = self.wire

    def _all_gather_bytes(self, data: bytes, size: int) -> List[bytes]:
        self.wire.received += size * (self.world - 1)
        return super()._all_gather_bytes(data, size)


def plan_restore(ranks: Ranks, root: str, run_id: str) -> ProvedHeader:
    """What all ranks do before they read their own shards."""
    store = open_store(root)
    local_copies = ranks.gather(NearerTiers(run_id, (), 1).list_copies())
    candidate = next(candidates.iter_candidates_newest_first(ranks, store, local_copies, candidates.NO_DECISION))
    run = CandidateRun(ranks, store, NearerTiers(run_id, (), 1), candidate)
    try:
        header = run.try_tiers([], lambda header: header)
    finally:
        run.close()
    assert header is not None
    agreement = Agreement(ranks, candidate.checkpoint_id)
    agreement.run_and_gather_or_raise_misfit(lambda: ((), header.plan))
    agreement.run_and_gather_or_reject(lambda: ((), 1))
    return header


def desired_slices(rank: int, world: int) -> List[slices.TensorSlice]:
    """Return the slices that a rank of a fleet of another size needs."""
    return [
        slices.TensorSlice(spec.name, spec.offsets or (0,) * len(spec.shape), spec.shape)
        for spec in model.rank_tensor_specs(rank, world)
        if spec.full
    ]


def main(world: int, root: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    meter = Meter()
    run_id = identity.ensure_run_identity(root, "fleet").run_id
    ranks = SimulatedRanks(world)
    with meter.measure_phase("restore plan") as row:
        header = plan_restore(ranks, root, run_id)
        row["bytes_in"] = ranks.wire.received
    assert header.body is not None
    half = world // 2
    ranks = SimulatedRanks(half)
    with meter.measure_phase("reshard: where all lies") as row:
        attempt = reshard.OpenCheckpoint(
            open_store(root), f"seq-000002.step-0000000020.e1-{model.INCARNATION}", header.body
        )
        table = reshard.read_and_broadcast_rows(ranks, attempt)
        row["bytes_in"] = ranks.wire.received
    assert not isinstance(table, Reason)
    middle = half // 2
    with meter.measure_phase("reshard: what a rank needs") as row:
        needed = slices.needed_chunks(table, desired_slices(middle, half), digest.CHUNK)
        needed_bytes = len(wire_values.pack(list(itertools.chain.from_iterable(needed))))
        row["bytes_in"] = needed_bytes * (half - 1)
    del table
    with meter.measure_phase("reshard: who reads what") as row:
        # The others want what the middle one wants, of shards as far from its own as they are from it.
        moved = [[(shard + 2 * (rank - middle), chunk) for shard, chunk in needed] for rank in range(half)]
        work = sharing.assign_readers([[chunk for chunk in chunks if 0 <= chunk[0] < world] for chunks in moved])
        read = [*itertools.chain.from_iterable(work.alone), *(share.chunk for share in work.shared)]
        sizes = [digest.split_size_into_data_and_leaf_count(record.size)[0] for record in header.body.shards]
        read_bytes = sum(min(digest.CHUNK, sizes[shard] - chunk_index * digest.CHUNK) for shard, chunk_index in read)
        row["amplification"] = read_bytes / sum(sizes)
    meter.record_peak_memory()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
