"""The starts of a run below its root: whether a newer one has taken it.

Each start creates an epoch file that nobody else has or will have (`commit.claim_epoch`). Whoever finds one that is
newer than its own is not the run's trainer any more: the newer start restores from what it found when it began, and
deletes by its own rules what the older one writes.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean_one_line


def describe_newer_start(store: Store, epoch: int) -> Optional[str]:
    """Return a description of who has taken the root since the start of `epoch`; None while that is the newest.
    One listing, of what comes after its own epoch file. Raise OSError."""
    later = map(layout.parse_epoch, store.list(after=layout.epoch_file(epoch), until=layout.EPOCHS_END))
    newest = max((number for number in later if number is not None), default=0)
    if newest <= epoch:
        return None
    return f"{store.url} was taken by a newer start: {_describe_start(store, newest)}"


def _describe_start(store: Store, epoch: int) -> str:
    """What that start's epoch file says of it."""
    name = layout.epoch_file(epoch)
    try:
        body: Dict[str, Any] = manifest.parse_sealed_json(store.read(name), name)
    except (CheckpointError, FileNotFoundError):
        return f"epoch {epoch}, which does not say whose it is"
    job = body.get("job")
    number = None
    if isinstance(job, dict):
        number = job.get("slurm_job_id")
    of_job = ""
    if number:
        of_job = f", job {clean_one_line(number, 40)}"
    host, pid, time = (clean_one_line(body.get(key), 80) for key in ("host", "pid", "time"))
    return f"epoch {epoch} on {host}, pid {pid}{of_job}, since {time}"
