"""The newest capture of a job that rank 0's node has in memory, read from the control pages of rank 0's slots.

Rank 0's wrapper reads it, which runs as the job's user on that node: nobody else can. No capture in sight is not
"none": a program may capture in shared memory of its own container, or of another directory.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import Iterator, Mapping, Optional

from hyperpod_kit.checkpoint.agent import capture_age, control_page, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import COMPLETE_STATES, Page
from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT, HPK_SHM_DIR
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.goodput.time_rows import MemoryCapture
from hyperpod_kit.untrusted import files

_RANK = 0


def newest(env: Mapping[str, str], now: float) -> Optional[MemoryCapture]:
    """Of the job whose environment this is; None where none is in sight. `now`: Unix seconds."""
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
    return MemoryCapture(page.step, now - age if age is not None else None, page.durable)


def _pages(where: str) -> Iterator[Page]:
    """Of each slot of rank 0 that this user has here; damaged ones are passed over. `where`: the node's shared memory,
    as the job has it. Raises OSError."""
    for folder in shm_paths.own_directories_and_shm_root(where):
        for name in shm_slots.own_slot_names(folder, uid=shm_paths.node_uid(), rank=_RANK):
            try:
                descriptor, _ = files.open_regular_file_to_read(
                    os.path.join(folder, name.file("ctl")), required_owner_uid=os.geteuid()
                )
            except (OSError, Untrusted):
                continue
            try:
                text = os.pread(descriptor, control_page.PAGE, 0)
            finally:
                os.close(descriptor)
            current = control_page.read(memoryview(text)) if len(text) == control_page.PAGE else None
            if current is not None:
                yield current[1]


def _is_of_same_job_or_root(page: Page, env: Mapping[str, str]) -> bool:
    """Whether this job captured it, or an earlier one on the same root, from which this one can restore."""
    job = env.get("SLURM_JOB_ID")
    if job and page.origin.job.get("slurm_job_id") == job:
        return True
    return bool(page.origin.root) and page.origin.root == env.get(HPK_CHECKPOINT_ROOT)
