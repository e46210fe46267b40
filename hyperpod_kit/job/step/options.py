"""The options of `job run`, and the directories that it needs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Optional, Tuple

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import CheckpointError, JobError
from hyperpod_kit.job.decide.retry_policy import RetryPolicy
from hyperpod_kit.job.records import state_place
from hyperpod_kit.job.step.hang import StallRule
from hyperpod_kit.untrusted import by_descriptor


@dataclass(frozen=True)
class RunOptions:
    """Times are seconds. `nodes`: how many of the allocation's nodes a step uses, the rest is spare; 0: all of them.

    `container_python`: the Python of the container's image; looked for when empty.
    `prove_bytes`: read every byte of a checkpoint before the ranks get it, which prove it again.
    `rewind_to`: the checkpoint that a person wants to go on from, the newest whole one when empty. `fresh`: a person
    wants to begin at step 0 where checkpoints were committed and none can be restored.
    `requeue_after_cancel`: the uid whose scancel of a job that hangs is not the end of the job.
    `stall`: when a step that shows no progress is ended. `grace`: what a step gets after USR1.
    `storage_wait`: how long a checkpoint root that does not answer is waited for; `controller_wait`: a slurmctld that
    does not answer (HyperPod takes 20-30 min to replace its machine). `flush_wait`: how long nodes are waited for that
    still bring captures of the run before to storage. `state_directory`: where our records are, `<root>/.hpk` when it
    is empty (state_place.py).
    """

    root: str
    command: Tuple[str, ...]
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    max_restarts: Optional[int] = None
    nodes: int = 0
    srun_args: Tuple[str, ...] = ()
    container_python: str = ""
    stall: StallRule = field(default_factory=StallRule)
    grace: float = 90.0
    storage_wait: float = 600.0
    controller_wait: float = 2400.0
    flush_wait: float = 1800.0
    probe_interval: float = 5.0
    silent_after: float = 6.0
    refused_after: float = 30.0
    srun: str = "srun"
    prove_bytes: bool = False
    rewind_to: str = ""
    fresh: bool = False
    requeue_after_cancel: Optional[int] = None
    state_directory: str = ""

    @property
    def state(self) -> str:
        """The directory of our records."""
        return self.state_directory or os.path.join(self.root, state_place.RECORDS_DIRECTORY)

    @property
    def directories_needed_by_ranks(self) -> Tuple[str, ...]:
        """Directories that each rank needs."""
        if state_place.can_root_hold_records(self.root):
            return (self.root,)
        return tuple(filter(is_path, (self.root, self.state)))


def prepare(options: RunOptions) -> None:
    """Make the checkpoint root and the directory of our records. Raises JobError.

    Only the last directory of the root is made: where its parent is missing, a file system is not mounted, and a
    fresh empty root on the local disk would make the job start from scratch.
    """
    if not state_place.can_root_hold_records(options.root):
        _prepare_root_with_records_elsewhere(options)
        return
    if options.state_directory not in ("", os.path.join(options.root, state_place.RECORDS_DIRECTORY)):
        raise JobError(
            f"{options.root} is no longer a Mountpoint mount, as it was when this run began",
            hint="check that it is mounted: hyperpod-kit node status",
        )
    _make(options.root, options.root, options.state)


def _make(root: str, *paths: str) -> None:
    """Make these directories, where the parent of the root exists. Raises JobError."""
    parent = os.path.dirname(root)
    if not os.path.isdir(parent):
        raise JobError(
            f"cannot use {root}: {parent} does not exist",
            hint=f"check that the shared file system is mounted; if it is: mkdir -p {parent}",
        )
    try:
        for path in paths:
            # A root may be a directory that several users share, and what is ours in it is not.
            by_descriptor.make_directories(by_descriptor.resolve_parent(path), 0o750, shared=path == root)
    except OSError as err:
        raise JobError(
            f"cannot use {root} as checkpoint root: {err.strerror}",
            hint="it must be a directory that the job's user may write",
        ) from err


def _prepare_root_with_records_elsewhere(options: RunOptions) -> None:
    """Make a root whose records are elsewhere, and the directory of the records. Raises JobError."""
    base = os.path.dirname(options.state)
    shared = base
    if os.path.basename(base) == state_place.FOLDER:
        shared = os.path.dirname(base)
    if not os.path.isdir(shared):
        raise JobError(
            f"the records of {options.root} cannot be kept in {options.state}: {shared} does not exist",
            hint=f"check that the shared file system is mounted; if it is: mkdir -p {shared}",
        )
    try:
        by_descriptor.make_directories(by_descriptor.resolve_parent(options.state), 0o750)
    except OSError as err:
        raise JobError(
            f"cannot keep the records of {options.root} in {options.state}: {err.strerror}", hint="--state DIR"
        ) from err
    if is_path(options.root):
        _make(options.root, options.root)
    try:
        state_place.record_state_directory_at_root(options.root, options.state)
    except (CheckpointError, OSError) as err:
        raise JobError(
            f"cannot use {options.root} as checkpoint root: {err}",
            hint="it needs s3:ListBucket, s3:GetObject, s3:PutObject, and s3:DeleteObject for retention; through "
            "Mountpoint a mount that is not read-only: hyperpod-kit policy",
        ) from err
