"""Read a checkpoint into a state without a Manager: no agent, no epoch, and nothing written but a lease meanwhile.

Evaluations and conversions call `load_state`; `weights` reads through it too.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.codec import ambient
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.checkpoint.restore import candidates, restore
from hyperpod_kit.checkpoint.restore.candidate_run import NearerTiers
from hyperpod_kit.checkpoint.restore.results import Fresh, Restored
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.checkpoint.transfer import memory_copy
from hyperpod_kit.checkpoint.transfer.restore_progress import ProgressCallback
from hyperpod_kit.errors import CheckpointError, NoCheckpoint
from hyperpod_kit.renamed import renamed_arguments


@renamed_arguments(attempt="checkpoint_id")
@ambient.with_dispatch_modes_disabled
def load_state(
    root: str | os.PathLike[str],
    state: State,
    *,
    checkpoint_id: str | None = None,
    process_group: dist.ProcessGroup | None = None,
    progress: ProgressCallback | None = None,
) -> Restored:
    """Restore `state` from a committed checkpoint of `root`, without a Manager.

    This is for an evaluation, a conversion, the best model of a run: `State(model, rng=False)` reads the weights alone.
    The run that writes to the root may continue in the meantime. All ranks call it, and all get the same.

    Args:
        root: A directory, or `s3://BUCKET/PREFIX`.
        state: The objects to fill in place.
        checkpoint_id: The name of a checkpoint, as `hyperpod-kit checkpoint ls` lists it: this one and no other. None:
            the newest one that all ranks can prove.
        process_group: The ranks that take part. None: all ranks, or this process alone where torch.distributed is not
            initialized.
        progress: See `Manager.restore`.

    Returns:
        What was restored.

    Raises:
        NoCheckpoint: Nothing was ever committed.
        NoValidCheckpoint: Checkpoints were committed, and none of them is there or can be trusted; with `checkpoint_id`
            this one.
        DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
        StorageUnreadable: The newest checkpoint cannot be read from storage (an I/O error that lasts).
        CheckpointError: The state does not fit, `checkpoint_id` is not there, or the root cannot be read.

    Example:
        With a `model` and the `root` of a run that has saved it:

            from hyperpod_kit.checkpoint import State, load_state

            result = load_state(root, State(model, rng=False))
            print(f"evaluating step {result.step}")
    """
    where = os.fspath(root)
    if is_path(where):
        where = os.path.abspath(where)
    store = open_store(where)
    ranks = Ranks(process_group)
    nearer = NearerTiers(_read_and_broadcast_run_id(ranks, store), tiers=(), threads=memory_copy.copy_threads(1))
    resume_from = candidates.ResumeFrom(first=checkpoint_id, near=False)
    with torch.inference_mode(False):
        got = restore.restore(
            ranks,
            store,
            state,
            nearer=nearer,
            copies_of_ranks=(),
            resume_from=resume_from,
            only_checkpoint_id=checkpoint_id,
            read_ahead=False,
            progress=progress,
        ).got
    if isinstance(got, Fresh):
        raise _no_checkpoint_error(store)
    return got


def _read_and_broadcast_run_id(ranks: Ranks, store: Store) -> str:
    response: Any = None
    ranks.handshake(None)
    if ranks.rank == 0:
        try:
            run_identity = identity.read_run_file(store).identity or identity.infer_identity(store)
            response = run_identity.run_id if run_identity is not None else selection.no_checkpoint_error(store, ())
        except (CheckpointError, OSError) as err:
            response = err
            if not isinstance(err, CheckpointError):
                response = CheckpointError(f"cannot read {store.url}: {err}")
    response = ranks.broadcast(response)
    if isinstance(response, Exception):
        raise response
    return str(response)


def _no_checkpoint_error(store: Store) -> NoCheckpoint:
    return NoCheckpoint(f"no checkpoint was ever committed below {store.url}")
