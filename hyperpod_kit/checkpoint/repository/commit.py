"""The write path on storage: files are created, never renamed, overwritten or deleted.

Order of a commit: the attempt's directory, its shards (every agent its own), extra.json, the directory itself,
MANIFEST.json. Each is synced before the next begins; only the last one makes the checkpoint exist. Names of shards are
synced with the directory, once: on a file system that all nodes share that covers what each of them has made there (a
server of NFS has a name on disk before it answers; Lustre's commits its journal as a whole).
"""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, Optional

from hyperpod_kit.checkpoint.repository.format import layout, manifest, sealed_text
from hyperpod_kit.checkpoint.repository.records import catalog, identity, latest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store


def claim_epoch(
    store_or_root: StoreOrRoot,
    run_identity: identity.RunIdentity,
    *,
    above: int,
    job: Dict[str, Any],
    first_seq: Optional[int] = None,
) -> int:
    """Claim the next epoch, which no other start has or will have, by creating its file exclusively, and return
    it. Raise OSError.

    `first_seq`: no save of this start will have a smaller seq. It spares later starts the listing of older
    attempts; a caller that does not know it passes None. The file names the commit that was the newest at
    that time, so this stays known also where the manifest is lost later.
    """
    store = as_store(store_or_root)
    epoch = max(above, catalog.highest_epoch_and_seq(store)[0]) + 1
    committed = catalog.newest_committed(store)
    while True:
        body = {
            "format": layout.RUN_FORMAT,
            "id": run_identity.run_id,
            "run": run_identity.run,
            "epoch": epoch,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job": job,
            "time": manifest.now(),
        }
        if first_seq is not None:
            body["first_seq"] = first_seq
        if committed is not None:
            body["committed"] = committed
        try:
            store.create(layout.epoch_file(epoch), manifest.seal_json(body))
            failpoint("epoch.claimed")
            return epoch
        except FileExistsError:
            epoch += 1


def commit(
    store_or_root: StoreOrRoot, checkpoint_id: str, body: manifest.Manifest, extra: bytes, index: Optional[bytes] = None
) -> None:
    """Write extra.json, index.bin when given, and then the manifest; last the hint LATEST. All shards must be durable.

    Raises RunIsOwned when the root is another run's by now, CheckpointError, FileExistsError, OSError; what fails after
    the manifest is no failure.
    """
    store = as_store(store_or_root)
    failpoint("commit.before_extra")
    _create_unless_identical(store, f"{checkpoint_id}/{layout.EXTRA_FILE}", extra)
    failpoint("commit.before_index")
    if index is not None:
        _create_unless_identical(store, f"{checkpoint_id}/{layout.INDEX_FILE}", index)
    identity.require_run_identity(store, identity.RunIdentity(body.run, body.run_id))
    store.sync(checkpoint_id)
    failpoint("commit.before_manifest")
    store.create(f"{checkpoint_id}/{layout.MANIFEST_FILE}", body.encode())
    failpoint("commit.after_manifest")
    latest.try_write(store, checkpoint_id)


def _create_unless_identical(store: Store, name: str, data: bytes) -> None:
    """Create the file as Store.create does, accepting one with the same bytes that an agent left that died
    before the manifest. Raise FileExistsError for other bytes."""
    try:
        store.create(name, data)
    except FileExistsError:
        # An agent of another version may have died between: text that is sealed is the same as text that is not.
        if sealed_text.without_seal(store.read(name, layout.LARGEST_SMALL)) != sealed_text.without_seal(data):
            raise
