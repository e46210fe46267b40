"""Find the newest checkpoint that every rank can prove, bring it to all ranks, and only then load it.

A candidate is first read and verified where its bytes lie, then sent to the ranks that lack them and verified there
again. Objects are touched after all ranks have agreed; before that, a bad candidate costs time and nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hyperpod_kit.checkpoint import codec
from hyperpod_kit.checkpoint.dtypes import TYPES
from hyperpod_kit.checkpoint.ranks import Ranks
from hyperpod_kit.checkpoint.repository import (
    arena,
    assemble,
    control,
    digest,
    layout,
    manifest,
    selection,
    shard,
    verify,
)
from hyperpod_kit.checkpoint.repository.control import Key, Page
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.errors import CheckpointError, DigestMismatch, DigestUnavailable


@dataclass(frozen=True)
class Candidate:
    """Something to restore from: a committed attempt, or a capture that every rank has in shared memory."""

    epoch: int
    seq: int
    step: int
    attempt: str
    key: Key | None  # of the capture; None for storage

    @property
    def tier(self) -> str:
        return "storage" if self.key is None else "memory"

    @property
    def order(self) -> tuple[int, int, bool]:
        """Newest first; at equal age memory before storage."""
        return (self.epoch, self.seq, self.key is not None)


@dataclass
class Loaded:
    """A verified candidate: this rank's tree, and all shards' tensors as views of `bytes` bytes of buffers."""

    tree: dict[str, object]
    tensors: dict[str, torch.Tensor]
    bytes: int


def sealed_pages(run_id: str, rank: int) -> list[Page]:
    """What this rank has sealed in this node's shared memory."""
    folder = arena.shm_dir()
    found = []
    for slot in arena.attached(folder, arena.names(folder, uid=os.getuid(), run=arena.run_hash(run_id), rank=rank)):
        page = slot.page
        if page is not None and page.state == control.SEALED and page.run_id == run_id and page.rank == rank:
            found.append(page)
        slot.close()
    return found


def candidates(ranks: Ranks, root: str, pages: list[list[Page]], resume_from: str | None) -> list[Candidate]:
    """What to try, in this order; the same on all ranks. `pages` are all ranks' sealed pages.

    Raises CheckpointError when the root cannot be read or does not have what the job was told to resume from.
    """
    found: list[Candidate] = []
    problem: str | None = None
    if ranks.rank == 0:
        try:
            for entry in selection.candidates(root, first=resume_from):
                found.append(Candidate(entry.name.epoch, entry.name.seq, entry.name.step, entry.attempt, None))
        except (OSError, CheckpointError) as err:
            problem = verify.reason_of(err)
    problem = ranks.agree(problem)
    if problem is not None:
        raise CheckpointError(f"cannot list {root}: {problem}", hint=f"hyperpod-kit checkpoint ls {root}")
    found = ranks.broadcast(found)
    for page in pages[0]:
        same = [next((p for p in held if (p.key, p.world, p.plan) == (page.key, ranks.world, page.plan)), None)
                for held in pages]
        if all(same):
            name = layout.AttemptName(page.seq, page.step, page.epoch, page.incarnation)
            found.append(Candidate(page.epoch, page.seq, page.step, str(name), page.key))
    return sorted(found, key=lambda candidate: candidate.order, reverse=True)


def load(ranks: Ranks, root: str, run_id: str, candidate: Candidate) -> Loaded | str:
    """All of a candidate on every rank, or why not (the same on all ranks). Raises DigestUnavailable."""
    if candidate.key is not None:
        return _load_memory(ranks, run_id, candidate.key)
    return _load_storage(ranks, root, run_id, candidate.attempt)


def _guard(work: Callable[[], None]) -> str | None:
    """Do this rank's part; an error becomes a reason, so that no rank leaves the others waiting."""
    try:
        work()
        return None
    except (CheckpointError, OSError, ValueError, KeyError) as err:
        return verify.reason_of(err)


def _load_memory(ranks: Ranks, run_id: str, key: Key) -> Loaded | str:
    buffers: dict[int, bytearray] = {}
    held: list[tuple[Page, dict[str, object]]] = []

    def read() -> None:
        folder = arena.shm_dir()
        names = arena.names(folder, uid=os.getuid(), run=arena.run_hash(run_id), rank=ranks.rank)
        for slot in arena.attached(folder, names):
            page = slot.page
            if page is not None and page.state == control.SEALED and page.key == key:
                buffer = bytearray(page.size)
                image = slot.image

                def from_slot(view: memoryview, at: int, image: memoryview = image) -> int:
                    view[:] = image[at:at + len(view)]
                    return len(view)
                verify.verify_bytes(from_slot, page.size, page.shard_root, name=slot.name.file("img"),
                                    chunk=page.chunk, sink=memoryview(buffer))
                extra = slot.extra(page.extra_size)
                if digest.small(extra) != page.extra_root:
                    raise DigestMismatch(slot.name.file("ctl"), page.extra_root, digest.small(extra))
                buffers[ranks.rank] = buffer
                held.append((page, json.loads(extra)))
                return
        raise CheckpointError("the capture is gone")

    problem = ranks.agree(_guard(read))
    if problem is not None:
        return problem
    page, tree = held[0]
    records = ranks.gather(manifest.FileRecord("memory", page.size, page.shard_root, ranks.rank))
    return _spread(ranks, buffers, records, page.chunk, tree)


def _load_storage(ranks: Ranks, root: str, run_id: str, attempt: str) -> Loaded | str:
    found: list[tuple[manifest.Manifest, bytes]] = []

    def read_head() -> None:
        body = verify.read_manifest(root, attempt)
        if body.run_id != run_id:
            raise CheckpointError(f"it belongs to another run, {body.run}")
        found.append((body, verify.read_extra(root, attempt, body.extra)))

    problem = ranks.agree(_guard(read_head) if ranks.rank == 0 else None)
    if problem is not None:
        return problem
    body, extra = ranks.broadcast(found[0] if found else None)
    unknown: list[str] = [name for name in ranks.gather(_missing(body.digest)) if name]
    if unknown:
        raise DigestUnavailable(body.digest, unknown[0])
    buffers: dict[int, bytearray] = {}
    trees: list[dict[str, object]] = []

    def read() -> None:
        trees.append(assemble.tree_of(extra, ranks.rank))
        if ranks.rank >= body.world:
            # Two ranks with one stream of random numbers would be worse than a new stream.
            trees[0].pop("rng", None)
        for index in range(ranks.rank, body.world, ranks.world):
            record = body.shards[index]
            buffers[index] = bytearray(record.size)
            verify.verify_file(open_store(root), attempt, record, chunk=body.chunk,
                               sink=memoryview(buffers[index]))

    problem = ranks.agree(_guard(read))
    if problem is not None:
        return problem
    return _spread(ranks, buffers, list(body.shards), body.chunk, trees[0])


def _missing(algorithm: str) -> str | None:
    try:
        digest.algorithm(algorithm)
        return None
    except DigestUnavailable as err:
        return str(err)


def _spread(ranks: Ranks, buffers: dict[int, bytearray], records: list[manifest.FileRecord], chunk: int,
            tree: dict[str, object]) -> Loaded | str:
    """Send every shard from the rank that read it to all others, which verify it again."""
    tensors: dict[str, torch.Tensor] = {}
    problem: str | None = None
    for index, record in enumerate(records):
        mine = index in buffers
        buffer = buffers[index] if mine else bytearray(record.size)
        whole = torch.frombuffer(buffer, dtype=torch.uint8)
        ranks.send_bytes(whole, index % ranks.world)

        def take(mine: bool = mine, buffer: bytearray = buffer, whole: torch.Tensor = whole,
                 record: manifest.FileRecord = record) -> None:
            view = memoryview(buffer)
            if not mine:
                verify.verify_bytes(lambda part, at: _copy(part, view, at), record.size, record.root,
                                    name=record.file, chunk=chunk)
            for placed in shard.parse(view).tensors:
                part = whole[placed.begin:placed.end]
                tensors[placed.spec.name] = part.view(TYPES[placed.spec.dtype]).view(placed.spec.shape)
        problem = problem or _guard(take)
    problem = ranks.agree(problem)
    return problem if problem is not None else Loaded(tree, tensors, sum(record.size for record in records))


def put(ranks: Ranks, state: State, loaded: Loaded) -> None:
    """Fill the state's live tensors, then let it take over the rest. Raises CheckpointError when it does not fit."""
    targets = state.targets(ranks, loaded.tree)
    names = {piece.spec.name for piece in targets.pieces}
    for piece in targets.pieces:
        if piece.spec.full:
            raise CheckpointError(f"{piece.spec.name} is sharded, which this restore cannot do yet")
        source = loaded.tensors[piece.spec.name]
        if source.shape != piece.tensor.shape or source.dtype != piece.tensor.dtype:
            raise CheckpointError(f"{piece.spec.name} is {source.dtype} {list(source.shape)} in the checkpoint, "
                                  f"{piece.tensor.dtype} {list(piece.tensor.shape)} here")
    for piece in targets.pieces:
        piece.tensor.copy_(loaded.tensors[piece.spec.name])
    # Copies: what is kept must neither hold the whole buffer nor see the file's alignment (torch's random generator
    # faults on it).
    state.adopt(loaded.tree, {name: loaded.tensors[name].clone() for name in codec.tensor_names(loaded.tree)
                              if name not in names})


def _copy(part: memoryview, whole: memoryview, at: int) -> int:
    part[:] = whole[at:at + len(part)]
    return len(part)
