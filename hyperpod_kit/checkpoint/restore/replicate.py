"""Replicated pieces: read by one rank, sent to those that hold the same, checked there.

Which rank sends a piece is what the shards say, and is never worked out again: a fresh start's tensors may be of
another use than those that were saved, and who writes a tensor depends on all of them. Every rank of a set of holders
goes through the same buckets in the same order, and the sets come in one order on all ranks, so the broadcasts meet.
Nothing here depends on what was read: who could not read has said so before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.state.tensors import TensorPiece
from hyperpod_kit.checkpoint.transfer.load import bytes_of, copy_into, view_of
from hyperpod_kit.checkpoint.transfer.tensor_memory import is_contiguous_on_host

BUCKET = 64 * 1024 * 1024

_Holders = tuple[int, ...]
"""The ranks that hold a piece; empty: all."""

# The ranks that hold it, the replica that sends it, its number.
_Bucket = tuple[_Holders, int, int]

ShardTable = dict[_Holders, tuple[int, int, str, bytes]]
"""What one rank's shard has of the pieces of each set of holders: (the rank's index in the set, how many pieces the set
has, the digest of their names, a bit for each of them in the order of their names: whether the shard has it)."""


class Replicated(NamedTuple):
    """`problems`: for each rank what is wrong there. `lost`: the pieces that did not arrive here as they were sent;
    `any_lost`: whether there are such on any rank."""

    problems: list[Reason | None]
    lost: frozenset[str]
    any_lost: bool


class _ShareRange(NamedTuple):
    """Bytes [begin, end) of a piece's elements in order."""

    piece: TensorPiece
    begin: int
    end: int


def build_shard_table(pieces: Sequence[TensorPiece], names_in_shard: Collection[str]) -> ShardTable:
    """Return which of the replicated pieces lie in this rank's shard, by holders, to be gathered on
    all ranks; `names_in_shard` are the pieces that the shard fills."""
    table: ShardTable = {}
    for holders, members in _replicated_by_holders(pieces).items():
        names = [piece.spec.name for piece in members]
        bits = bytearray(-(-len(names) // 8))
        for at, name in enumerate(names):
            if name in names_in_shard:
                bits[at // 8] |= 1 << at % 8
        table[holders] = (
            members[0].replica[0],
            len(names),
            digest.small_object_digest("\n".join(names).encode()),
            bytes(bits),
        )
    return table


def broadcast_read_pieces_to_holders(
    ranks: Ranks, pieces: Sequence[TensorPiece], tables: Sequence[ShardTable], algorithm: str
) -> Replicated:
    """Fill the pieces that are not in this rank's shard from the ranks that have read them. `tables`: every rank's.

    A collective over all ranks. Raises what torch.distributed raises when a peer has gone.
    """
    alg = digest.algorithm(algorithm)
    sets = _replicated_by_holders(pieces)
    if not _is_each_piece_in_one_shard(tables):
        reasons = ranks.gather(_describe_piece_not_in_one_shard(sets, tables))
        if not any(reasons):
            reasons = [Reason("the ranks disagree about which tensors they share") for _ in tables]
        return Replicated(reasons, frozenset(), False)
    problem: Reason | None = None
    digests: dict[_Bucket, bytes] = {}
    names: dict[_Bucket, list[str]] = {}
    for holders, members in sorted(sets.items(), key=lambda item: (-len(item[0]) if item[0] else 1 - 2**31, item[0])):
        replica_index = members[0].replica[0]
        shards = _piece_bits_by_replica(tables, holders)
        for owner in range(members[0].replica[1]):
            owned = [piece for at, piece in enumerate(members) if shards[owner] >> at & 1]
            for number, bucket in enumerate(_buckets(owned)):
                data = _view_or_allocate_bucket_bytes(bucket, filled=owner == replica_index)
                names[holders, owner, number] = [part.piece.spec.name for part in bucket]
                if owner == replica_index:
                    digests[holders, owner, number] = alg.wide(view_of(data))
                _broadcast_bucket(ranks, data, members[0], owner)
                if owner != replica_index:
                    digests[holders, owner, number] = alg.wide(view_of(data))
                    # Who left here would leave the others waiting.
                    problem = problem or reshard.error_as_reason(partial(_copy_bucket_into_pieces, bucket, data))
    problems, wrong = _gather_problems_and_corrupt_buckets(
        ranks, problem, digests, {key: members[0].replica[0] for key, members in sets.items()}
    )
    lost = frozenset(name for key in wrong[ranks.rank] for name in names[key])
    return Replicated(problems, lost, any(wrong))


def _replicated_by_holders(pieces: Sequence[TensorPiece]) -> dict[_Holders, list[TensorPiece]]:
    """Group the replicated pieces by the ranks that hold them, in the order of their names."""
    sets: dict[_Holders, list[TensorPiece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.spec.name):
        if piece.replica[1] > 1:
            sets.setdefault(piece.holders, []).append(piece)
    return sets


def _piece_bits_by_replica(tables: Sequence[ShardTable], holders: _Holders) -> dict[int, int]:
    """Return for each replica index of a set of holders which pieces of the set lie in that rank's
    shard, a bit for each."""
    entries = [table[holders] for table in tables if holders in table]
    return {index: int.from_bytes(bits, "little") for index, _, _, bits in entries}


def _is_each_piece_in_one_shard(tables: Sequence[ShardTable]) -> bool:
    """Return whether each replicated piece of each set lies in the shard of exactly one of its
    holders; the same on every rank."""
    for holders in {holders for table in tables for holders in table}:
        entries = [table[holders] for table in tables if holders in table]
        kinds = {(count, names) for _, count, names, _ in entries}
        shards = _piece_bits_by_replica(tables, holders)
        if len(kinds) != 1 or len(shards) != (len(holders) or len(tables)):
            return False
        ((count, _),) = kinds
        # A sum of so many ones as its summands have together has no carry: no piece is in two of them.
        ones = sum(bin(bits).count("1") for bits in shards.values())
        if sum(shards.values()) != (1 << count) - 1 or ones != count:
            return False
    return True


def _describe_piece_not_in_one_shard(
    sets: Mapping[_Holders, Sequence[TensorPiece]], tables: Sequence[ShardTable]
) -> Reason | None:
    """Return the reason for the first of this rank's pieces that is not in exactly one shard of the
    ranks that hold it; None where there is none."""
    for holders, members in sets.items():
        shards = _piece_bits_by_replica(tables, holders)
        for at, piece in enumerate(members):
            count = sum(bits >> at & 1 for bits in shards.values())
            if count != 1:
                word = "no shard"
                if count != 0:
                    word = f"{count} shards"
                return Reason(f"{piece.spec.name} is in {word} of the ranks that hold it, expected one")
    return None


def _buckets(owned: Sequence[TensorPiece]) -> Iterator[list[_ShareRange]]:
    """Cut the pieces' bytes into buckets of at most BUCKET; a large piece is never packed with others."""
    small: list[_ShareRange] = []
    filled = 0
    for piece in owned:
        size = piece.spec.nbytes
        if size > BUCKET // 16:
            yield from ([_ShareRange(piece, at, min(at + BUCKET, size))] for at in range(0, size, BUCKET))
            continue
        if filled + size > BUCKET:
            yield small
            small, filled = [], 0
        if size:
            small.append(_ShareRange(piece, 0, size))
            filled += size
    if small:
        yield small


def _view_or_allocate_bucket_bytes(bucket: list[_ShareRange], *, filled: bool) -> torch.Tensor:
    """Return the bucket's bytes: the tensor's own memory where that is possible, else new memory, with
    the pieces' bytes in it if `filled`."""
    if len(bucket) == 1 and is_contiguous_on_host(bucket[0].piece.tensor):
        return bytes_of(bucket[0].piece.tensor)[bucket[0].begin : bucket[0].end]
    memory = torch.empty(sum(part.end - part.begin for part in bucket), dtype=torch.uint8, device="cpu")
    if filled:
        at = 0
        for part in bucket:
            length = part.end - part.begin
            plain = part.piece.tensor.contiguous().cpu().resolve_conj().resolve_neg()
            memory[at : at + length] = bytes_of(plain)[part.begin : part.end]
            at += length
    return memory


def _copy_bucket_into_pieces(bucket: list[_ShareRange], data: torch.Tensor) -> None:
    """Copy a received bucket into the live tensors. Raises TargetFault."""
    at = 0
    with torch.no_grad():
        for part in bucket:
            length = part.end - part.begin
            live = part.piece.tensor
            if is_contiguous_on_host(live):
                target = bytes_of(live)[part.begin : part.end]
                if target.data_ptr() != data.data_ptr():
                    target.copy_(data[at : at + length])
            elif length == part.piece.spec.nbytes:
                # A copy, because a view of another type must begin at a multiple of its size.
                copy_into(live, data[at : at + length].clone().view(live.dtype).view(live.shape), part.piece.spec.name)
            else:
                # A large piece that cannot be written to in place comes in several buckets.
                full_tensor = live.contiguous().cpu().resolve_conj().resolve_neg()
                bytes_of(full_tensor)[part.begin : part.end].copy_(data[at : at + length])
                copy_into(live, full_tensor, part.piece.spec.name)
            at += length


def _broadcast_bucket(ranks: Ranks, data: torch.Tensor, like: TensorPiece, owner: int) -> None:
    """Broadcast a bucket from its owner to the other holders."""
    if not like.holders:
        ranks.broadcast_tensor(data, owner)
    elif like.group is not None and "gloo" in str(dist.get_backend(like.group)):
        dist.broadcast(data, src=like.holders[owner], group=like.group)
    else:
        # No group of exactly these ranks that could move host memory: one by one over the run's own.
        ranks.broadcast_to_holders(data, like.holders[owner], like.holders)


def _gather_problems_and_corrupt_buckets(
    ranks: Ranks, problem: Reason | None, digests: Mapping[_Bucket, bytes], replica_indexes: Mapping[_Holders, int]
) -> tuple[list[Reason | None], list[list[_Bucket]]]:
    """Gather all ranks' problems and digests; return for each rank what is wrong, and which buckets
    did not arrive as they were sent. A collective over all ranks."""
    sent = {key for key in digests if key[1] == replica_indexes[key[0]]}
    gathered = ranks.gather((problem, digests, sent))
    true = {key: digests_[key] for _, digests_, sent_ in gathered for key in sent_}
    wrong = [[key for key, value in received.items() if true.get(key) != value] for _, received, _ in gathered]
    return [rank_problem for rank_problem, _, _ in gathered], wrong
