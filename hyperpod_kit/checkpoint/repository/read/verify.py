"""Read and verify: no byte is handed on before its digest was compared."""

from __future__ import annotations

import os

from hyperpod_kit.checkpoint.repository.format import digest, layout, manifest
from hyperpod_kit.checkpoint.repository.read import hole_check, stream
from hyperpod_kit.checkpoint.repository.read.chunk_reader import Pump, all_chunks
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.errors import CheckpointError, DigestMismatch
from hyperpod_kit.system import quota_note
from hyperpod_kit.untrusted.text import clean_one_line, counted


def verify_shard_file(
    store: Store, checkpoint_id: str, record: manifest.FileRecord, *, chunk: int = digest.CHUNK
) -> None:
    """Read a shard in a store and compare every byte with its record.

    Raises DigestMismatch (naming the bytes), CheckpointError when the file is short, DigestUnavailable, OSError.
    """
    reader = store.open_read(f"{checkpoint_id}/{record.file}")
    try:
        shard = stream.Shard(reader, record.size, record.root, name=record.file, chunk=chunk)
        with Pump(all_chunks(shard)) as pump:
            pump.deliver_all_and_wait(lambda shard, begin, view: None)
    finally:
        reader.close()


def read_manifest(store_or_root: StoreOrRoot, checkpoint_id: str) -> manifest.Manifest:
    """The manifest of an attempt, checked against the directory's name.

    Raises FileNotFoundError when the attempt was never committed, CheckpointError when it is damaged, OSError.
    """
    return parse_manifest(as_store(store_or_root).read(f"{checkpoint_id}/{layout.MANIFEST_FILE}"), checkpoint_id)


def parse_manifest(data: bytes, checkpoint_id: str) -> manifest.Manifest:
    """The manifest in these bytes, which were in the directory `checkpoint_id`. Raises CheckpointError."""
    checkpoint_manifest = manifest.decode(data)
    name = layout.parse_checkpoint_id(checkpoint_id)
    if name is None or (name.epoch, name.seq, name.step) != (
        checkpoint_manifest.epoch,
        checkpoint_manifest.seq,
        checkpoint_manifest.step,
    ):
        raise CheckpointError(
            f"{layout.MANIFEST_FILE} is of epoch {checkpoint_manifest.epoch}, seq {checkpoint_manifest.seq}, "
            f"step {checkpoint_manifest.step}: "
            "it does not belong into this directory"
        )
    return checkpoint_manifest


def read_verified_small_file(store_or_root: StoreOrRoot, checkpoint_id: str, record: manifest.FileRecord) -> bytes:
    """Return a small file of a checkpoint (extra.json, index.bin), verified. Raise DigestMismatch,
    CheckpointError, OSError."""
    data = hole_check.read_rejecting_holes(as_store(store_or_root), f"{checkpoint_id}/{record.file}", record.size)
    actual_digest = digest.small_object_digest(data)
    if actual_digest != record.root:
        raise DigestMismatch(record.file, record.root, actual_digest)
    return data


def verify_file_names_present(store_or_root: StoreOrRoot, checkpoint_id: str) -> manifest.Manifest:
    """Return the manifest of a committed checkpoint, proved, with all its files present by their names. No data
    is read.

    Raise as `read_manifest`, and CheckpointError when a file is missing.
    """
    store = as_store(store_or_root)
    checkpoint_manifest = read_manifest(store, checkpoint_id)
    present_names = set(store.list(checkpoint_id))
    records = (
        *checkpoint_manifest.shards,
        checkpoint_manifest.extra,
        *([checkpoint_manifest.index] if checkpoint_manifest.index else []),
    )
    missing = [record.file for record in records if record.file not in present_names]
    if missing:
        if len(missing) > 1:
            more = f" and {counted(len(missing) - 1, 'more is', 'more are')} missing"
        else:
            more = " is missing"
        raise CheckpointError(f"{missing[0]}{more}")
    return checkpoint_manifest


def verify_checkpoint(store_or_root: StoreOrRoot, checkpoint_id: str) -> manifest.Manifest:
    """Verify every byte of a committed attempt.

    Raises DigestUnavailable when it cannot be checked here, CheckpointError (DigestMismatch) or OSError when it is
    not what was committed.
    """
    store = as_store(store_or_root)
    checkpoint_manifest = read_manifest(store, checkpoint_id)
    digest.algorithm(checkpoint_manifest.digest)
    for small in (checkpoint_manifest.extra, checkpoint_manifest.index):
        if small is not None:
            read_verified_small_file(store, checkpoint_id, small)
    for record in checkpoint_manifest.shards:
        verify_shard_file(store, checkpoint_id, record, chunk=checkpoint_manifest.chunk)
    return checkpoint_manifest


def describe_failure(err: BaseException) -> str:
    """One line that says why a candidate was rejected, or what could not be done."""
    verb = getattr(err, "verb", "read")
    if isinstance(err, FileNotFoundError) and verb == "read":
        return f"{os.path.basename(str(err.filename))} is missing"
    if isinstance(err, OSError):
        what = str(err.filename or "")
        if verb == "read":
            name = os.path.basename(what)
        else:
            name = what
        return f"cannot be {verb}: {err.strerror or err} ({name}){quota_note.quota_exceeded_hint_or_empty(err)}"
    return str(err)


def describe_unforeseen(err: BaseException) -> str:
    """Return the reason for a checkpoint that led to an error that no checkpoint should lead to."""
    return f"cannot be judged: {type(err).__name__}: {clean_one_line(err)}"


def is_storage_failure(err: BaseException) -> bool:
    """Return whether storage failed, not what was read: the same bytes may be read later. A missing file is
    damage."""
    return isinstance(err, OSError) and not isinstance(err, FileNotFoundError)
