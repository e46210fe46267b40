"""Finds the newest capture of a job that rank 0's node has in memory, by the control pages of rank 0's slots.

Rank 0's wrapper reads them, as it runs as the job's user on that node; other users and nodes cannot. That none is found
does not mean that there is none: a program may capture in shared memory of its own container, or of another directory.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import Iterator, Mapping, Optional

from hyperpod_kit.checkpoint.agent.shm import capture_age, control_page, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES, Page
from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT, HPK_SHM_DIR
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.goodput.time_rows import MemoryCapture
from hyperpod_kit.untrusted import files

_RANK = 0


def newest(env: Mapping[str, str], now: float) -> Optional[MemoryCapture]:
    """Return the newest capture of the job with this environment, None where none is found. `now`: Unix seconds."""
    try:
        pages = [
            page
            for page in _pages(env.get(HPK_SHM_DIR, ""))
            if page.state in COMPLETE_STATES and _is_of_same_job_or_root(page, env)
        ]
    except (OSError, Untrusted):
        return None
    if not pages:
        return None
    page = max(pages, key=lambda page: page.key)
    age = capture_age.seconds_since_sealing(page, capture_age.now())
    sealed_at: Optional[float] = None
    if age is not None:
        sealed_at = now - age
    return MemoryCapture(page.step, sealed_at, page.durable)


def _pages(where: str) -> Iterator[Page]:
    """Yield the page of each slot of rank 0 that this user has on this node; damaged ones are passed over.

    `where`: the node's shared memory, as the job has it. Raises OSError.
    """
    for folder in shm_paths.own_directories_and_shm_root(where):
        for name in shm_slots.own_slot_names(folder, uid=shm_paths.node_uid(), rank=_RANK):
            page = _read_page_or_none(os.path.join(folder, name.file("ctl")))
            if page is not None:
                yield page


def _read_page_or_none(path: str) -> Optional[Page]:
    """Return the current page of a control file, None where it cannot be opened or is damaged. Raises OSError."""
    try:
        descriptor, _ = files.open_regular_file_to_read(path, required_owner_uid=os.geteuid())
    except (OSError, Untrusted):
        return None
    try:
        text = os.pread(descriptor, control_page.PAGE, 0)
    finally:
        os.close(descriptor)
    if len(text) != control_page.PAGE:
        return None
    current = control_page.read(memoryview(text))
    if current is None:
        return None
    return current[1]


def _is_of_same_job_or_root(page: Page, env: Mapping[str, str]) -> bool:
    """Return whether this job captured it, or one on the same root, from whose capture this job can restore."""
    job = env.get("SLURM_JOB_ID")
    if job and page.origin.job.get("slurm_job_id") == job:
        return True
    return bool(page.origin.root) and page.origin.root == env.get(HPK_CHECKPOINT_ROOT)
