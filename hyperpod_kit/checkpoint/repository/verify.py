"""Read and verify: no byte is handed on before its digest was compared."""

from __future__ import annotations

import os

from hyperpod_kit.checkpoint.repository import digest, layout, manifest, stream, without_holes
from hyperpod_kit.checkpoint.repository.chunk_reader import Pump, whole
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import Where, as_store
from hyperpod_kit.errors import CheckpointError, DigestMismatch
from hyperpod_kit.system import quota_note
from hyperpod_kit.untrusted.text import clean


def verify_file(store: Store, attempt: str, record: manifest.FileRecord, *, chunk: int = digest.CHUNK) -> None:
    """Read a shard in a store and compare every byte with its record.

    Raises DigestMismatch (naming the bytes), CheckpointError when the file is short, DigestUnavailable, OSError.
    """
    reader = store.open_read(f"{attempt}/{record.file}")
    try:
        shard = stream.Shard(reader, record.size, record.root, name=record.file, chunk=chunk)
        with Pump(whole(shard)) as pump:
            pump.finish(lambda shard, begin, view: None)
    finally:
        reader.close()


def read_manifest(where: Where, attempt: str) -> manifest.Manifest:
    """The manifest of an attempt, checked against the directory's name.

    Raises FileNotFoundError when the attempt was never committed, CheckpointError when it is damaged, OSError.
    """
    return parse_manifest(as_store(where).read(f"{attempt}/{layout.MANIFEST_FILE}"), attempt)


def parse_manifest(data: bytes, attempt: str) -> manifest.Manifest:
    """The manifest in these bytes, which were in the directory `attempt`. Raises CheckpointError."""
    found = manifest.decode(data)
    name = layout.parse_attempt(attempt)
    if name is None or (name.epoch, name.seq, name.step) != (found.epoch, found.seq, found.step):
        raise CheckpointError(
            f"{layout.MANIFEST_FILE} is of epoch {found.epoch}, seq {found.seq}, step {found.step}: "
            "it does not belong into this directory"
        )
    return found


def read_extra(where: Where, attempt: str, record: manifest.FileRecord) -> bytes:
    """A small file of an attempt (extra.json, index.bin), verified. Raises DigestMismatch, CheckpointError, OSError."""
    data = without_holes.read(as_store(where), f"{attempt}/{record.file}", record.size)
    found = digest.small(data)
    if found != record.root:
        raise DigestMismatch(record.file, record.root, found)
    return data


def verify_names(where: Where, attempt: str) -> manifest.Manifest:
    """The manifest of a committed attempt, proved, with all its files there by their names. No data is read.

    Raises as `read_manifest`, and CheckpointError when a file is missing.
    """
    store = as_store(where)
    found = read_manifest(store, attempt)
    there = set(store.list(attempt))
    records = (*found.shards, found.extra, *([found.index] if found.index else []))
    missing = [record.file for record in records if record.file not in there]
    if missing:
        more = f" and {len(missing) - 1} more are missing" if len(missing) > 1 else " is missing"
        raise CheckpointError(f"{missing[0]}{more}")
    return found


def verify_attempt(where: Where, attempt: str) -> manifest.Manifest:
    """Verify every byte of a committed attempt.

    Raises DigestUnavailable when it cannot be checked here, CheckpointError (DigestMismatch) or OSError when it is
    not what was committed.
    """
    store = as_store(where)
    found = read_manifest(store, attempt)
    digest.algorithm(found.digest)
    for small in (found.extra, found.index):
        if small is not None:
            read_extra(store, attempt, small)
    for record in found.shards:
        verify_file(store, attempt, record, chunk=found.chunk)
    return found


def reason_of(err: BaseException) -> str:
    """One line that says why a candidate was rejected, or what could not be done."""
    verb = getattr(err, "verb", "read")
    if isinstance(err, FileNotFoundError) and verb == "read":
        return f"{os.path.basename(str(err.filename))} is missing"
    if isinstance(err, OSError):
        what = str(err.filename or "")
        place = os.path.basename(what) if verb == "read" else what
        return f"cannot be {verb}: {err.strerror or err} ({place}){quota_note.explain(err)}"
    return str(err)


def unforeseen(err: BaseException) -> str:
    """The reason where a checkpoint led to an error that no checkpoint should lead to."""
    return f"cannot be judged: {type(err).__name__}: {clean(err)}"


def is_unread(err: BaseException) -> bool:
    """Whether storage failed, not what was read: the same bytes may be read later. A missing file is damage."""
    return isinstance(err, OSError) and not isinstance(err, FileNotFoundError)
