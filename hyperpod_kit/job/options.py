"""What `job run` was asked to do, and the directories that it needs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Optional, Tuple

from hyperpod_kit.errors import JobError
from hyperpod_kit.job.retry_policy import RetryPolicy


@dataclass(frozen=True)
class RunOptions:
    """Times are seconds. `nodes`: how many of the allocation's nodes a step uses, the rest is spare; 0: all of them.

    `container_python`: the Python of the container's image; looked for when empty.
    `prove_bytes`: read every byte of a checkpoint before the ranks are told of it, who prove it again.
    `rewind_to`: the checkpoint that a person wants to go on from, the newest whole one when empty.
    `stall`: end a step that shows no progress for so long, 0 never. `grace`: what a step gets after USR1.
    `storage_wait`: how long a checkpoint root that does not answer is waited for; `controller_wait`: a slurmctld that
    does not answer (HyperPod takes 20-30 min to replace its machine). `flush_wait`: how long nodes are waited for that
    still bring captures of the run before to storage.
    """

    root: str
    command: Tuple[str, ...]
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    max_restarts: Optional[int] = None
    nodes: int = 0
    srun_args: Tuple[str, ...] = ()
    container_python: str = ""
    stall: float = 0.0
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

    @property
    def state(self) -> str:
        """Our own directory beside the checkpoints."""
        return os.path.join(self.root, ".hpk")


def prepare(options: RunOptions) -> None:
    """Make the checkpoint root and our directory in it. Raises JobError.

    Only the last directory of the root is made: where its parent is missing, a file system is not mounted, and a
    fresh empty root on the local disk would make the job start from scratch.
    """
    parent = os.path.dirname(options.root)
    if not os.path.isdir(parent):
        raise JobError(
            f"cannot use {options.root}: {parent} is not there",
            hint=f"is the shared file system mounted? If it is: mkdir -p {parent}",
        )
    try:
        for path in (options.root, options.state):
            os.makedirs(path, mode=0o750, exist_ok=True)
    except OSError as err:
        raise JobError(
            f"cannot use {options.root} as checkpoint root: {err.strerror}",
            hint="it must be a directory that the job's user may write",
        ) from err
