"""Proofs: checkpoints of which every byte was read from storage and was as it was committed, by a restore, by
`checkpoint verify`, or by retention before it deleted something. `proofs/<attempt>.json`; that it is there is all that
counts. What it says was true once: no proof makes a later reader trust a byte that it has not compared.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Set

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError

FORMAT = "hpk-proof/1"
_SUFFIX = ".json"


def record_proof(store: Store, checkpoint_id: str, by: str) -> None:
    """Write that `checkpoint_id` was proved; a proof that exists stays. Raise CheckpointError, OSError."""
    body = {
        "format": FORMAT,
        "attempt": checkpoint_id,
        "by": by,
        "host": socket.gethostname(),
        "time": manifest.now(),
    }
    with contextlib.suppress(FileExistsError):
        store.create(_proof_file(checkpoint_id), manifest.seal_json(body))


def record_proof_if_owner(store: Store, checkpoint_id: str, by: str) -> None:
    """Write the proof where the root belongs to this user and takes it: a directory made by another user would
    keep its owner from writing there. Raise nothing."""
    with contextlib.suppress(CheckpointError, OSError):
        if _is_store_owned_by_user(store):
            record_proof(store, checkpoint_id, by)


def proved_checkpoints(store: Store) -> Set[str]:
    """Return the checkpoints that were proved. Raise OSError."""
    names = (name[: -len(_SUFFIX)] for name in store.list(layout.PROOFS) if name.endswith(_SUFFIX))
    return {name for name in names if layout.parse_checkpoint_id(name) is not None}


def delete_proof(store: Store, checkpoint_id: str) -> None:
    """Delete the proof of a checkpoint, before that is deleted. Raise CheckpointError, OSError."""
    store.delete(_proof_file(checkpoint_id))


def _proof_file(checkpoint_id: str) -> str:
    return f"{layout.PROOFS}/{checkpoint_id}{_SUFFIX}"


def _is_store_owned_by_user(store: Store) -> bool:
    """Whether the root belongs to this user, as far as its storage knows owners."""
    if "://" in store.url:
        return True
    return os.stat(store.url).st_uid == os.geteuid()
