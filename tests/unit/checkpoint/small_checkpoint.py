"""Committed checkpoints of a few bytes, on any store."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional

from hyperpod_kit.checkpoint.repository import commit
from hyperpod_kit.checkpoint.repository.format import digest, layout, rows, shard
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.base import Store

SMALL_RUN = identity.RunIdentity("small", "0" * 32)


def put_checkpoint(
    store: Store,
    seq: int,
    *,
    epoch: int = 1,
    step: Optional[int] = None,
    nonce: str = "abcd",
    committed: bool = True,
    time: str = "2026-11-20T23:58:03Z",
    metrics: Optional[Dict[str, float]] = None,
    run: identity.RunIdentity = SMALL_RUN,
    **more: Any,
) -> str:
    """One shard and extra.json, and the manifest when `committed`; the attempt's name. `step` is `seq` by default."""
    step = seq if step is None else step
    attempt = str(layout.CheckpointId(seq, step, epoch, nonce))
    alg = digest.algorithm("blake2b")
    data = f"weights of step {step}, seq {seq}".encode() * 30
    leaves = alg.leaf(data)
    size = len(data) + len(leaves)
    store.create(f"{attempt}/{layout.shard_file(0)}", data + leaves)
    if not committed:
        return attempt
    extra = b"{}"
    identity.write_run_file_unless_valid(store, run)
    commit.commit(
        store,
        attempt,
        Manifest(
            run=run.run,
            run_id=run.run_id,
            epoch=epoch,
            seq=seq,
            step=step,
            world=1,
            plan="p",
            digest="blake2b",
            chunk=digest.CHUNK,
            total_bytes=size,
            tensors=1,
            time=time,
            shards=(FileRecord(layout.shard_file(0), size, digest.root_digest(alg, leaves, size), 0),),
            extra=FileRecord(layout.EXTRA_FILE, len(extra), digest.small_object_digest(extra)),
            metrics=metrics or {},
            **more,
        ),
        extra,
    )
    return attempt


def put_tensors(store: Store, seq: int) -> str:
    """The same with two tensors, a shard as it is written, and an index of it; the attempt's name."""
    attempt = str(layout.CheckpointId(seq, seq, 1, "abcd"))
    specs = [shard.TensorSpec("w", "F32", (64, 16)), shard.TensorSpec("b", "BF16", (16,))]
    laid = shard.lay_out(specs, rank=0, world=1, run_id=SMALL_RUN.run_id, plan="p", algorithm="blake2b")
    head = laid.header(1, seq, seq)
    data = head + bytes([seq % 256]) * (laid.data_end - len(head))
    alg = digest.algorithm("blake2b")
    leaves = digest.leaves_of(alg, memoryview(data))
    store.create(f"{attempt}/{layout.shard_file(0)}", data + leaves)
    tree = {"model": {spec.name: {"$": "tensor", "name": spec.name} for spec in specs}, "extra": {"seen": seq}}
    extra = json.dumps({"format": layout.EXTRA_FORMAT, "shared": tree, "ranks": [{}]}).encode()
    index = rows.encode_index_file({0: laid.tensors})
    identity.write_run_file_unless_valid(store, SMALL_RUN)
    commit.commit(
        store,
        attempt,
        Manifest(
            run=SMALL_RUN.run,
            run_id=SMALL_RUN.run_id,
            epoch=1,
            seq=seq,
            step=seq,
            world=1,
            plan="p",
            digest="blake2b",
            chunk=digest.CHUNK,
            total_bytes=laid.size,
            tensors=len(specs),
            time="2026-11-20T23:58:03Z",
            shards=(FileRecord(layout.shard_file(0), laid.size, digest.root_digest(alg, leaves, laid.size), 0),),
            extra=FileRecord(layout.EXTRA_FILE, len(extra), digest.small_object_digest(extra)),
            index=FileRecord(layout.INDEX_FILE, len(index), digest.small_object_digest(index)),
        ),
        extra,
        index,
    )
    return attempt
