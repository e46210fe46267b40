"""A root with checkpoints as an attacker with write access makes them: whole by every digest, and odd."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Optional

from hyperpod_kit.checkpoint.repository.format import digest, layout, manifest
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore

DATA = b"weights" * 99


def name_of(seq: int) -> str:
    return str(layout.CheckpointId(seq, seq * 10, 2, "abcd"))


def put(root: Path, seq: int, change: Optional[Callable[[Dict[str, Any]], None]] = None, **fields: Any) -> str:
    """A committed checkpoint of one shard. `fields`: of its manifest; `change`: what to make of its JSON then, which is
    sealed anew."""
    store = PosixStore(str(root))
    whose = identity.ensure_run_identity(store)
    alg = digest.algorithm("blake2b")
    leaves = alg.leaf(DATA)
    size = len(DATA) + len(leaves)
    shard = FileRecord(layout.shard_file(0), size, digest.root_digest(alg, leaves, size), 0)
    made = Manifest(
        **{
            **dict(
                run=whose.run,
                run_id=whose.run_id,
                epoch=2,
                seq=seq,
                step=seq * 10,
                world=1,
                plan="p",
                digest="blake2b",
                chunk=digest.CHUNK,
                total_bytes=size,
                tensors=1,
                time="2026-11-20T23:58:03Z",
                extra=FileRecord.of("extra.json", b"{}"),
                shards=(shard,),
            ),
            **fields,
        }
    )
    attempt = name_of(seq)
    store.create(f"{attempt}/{layout.shard_file(0)}", DATA + leaves)
    store.create(f"{attempt}/extra.json", b"{}")
    data = made.encode()
    if change is not None:
        body = manifest.parse_sealed_json(data, "MANIFEST.json")
        change(body)
        data = manifest.seal_json(body)
    store.create(f"{attempt}/{layout.MANIFEST_FILE}", data)
    return attempt
