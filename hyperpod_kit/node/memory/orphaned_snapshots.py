"""Whose captures lie in shared memory, and whether Slurm still runs their job here: facts, and one pure verdict.

Slurm runs no Epilog on a node that it has lost (a partition, a slurmd that hung): what the job's trainers captured
there stays when the node is back. What can be seen here is seen here: a trainer or a slurmstepd that lives. Between two
attempts a job has neither on most of its nodes, so slurmctld has the last word, and only when there is a candidate. Of
captures of no job (a trainer that somebody started by hand) nobody can say whether somebody comes for them: they stay
for MAX_AGE. Copies of other nodes' captures are looked at as well; their trainers live elsewhere.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from hyperpod_kit.checkpoint.agent.shm import node_tiers, shm_paths
from hyperpod_kit.slurm.hostlist import expand
from hyperpod_kit.slurm.job_states import HAS_NODES
from hyperpod_kit.system import process
from hyperpod_kit.untrusted.dirfd import reopen_path_fd

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.agent.shm import control_page
    from hyperpod_kit.checkpoint.agent.shm.capture_age import Clock

NO_JOB = ""

MOST_SLOTS, MOST_JOBS = 1024, 16
"""Of one user, at one look: what is behind them comes when they are done."""


@dataclass(frozen=True)
class OrphanedSnapshots:
    """Captures of one user's job, or those of NO_JOB that are older than MAX_AGE, or of unknown age. alive: a trainer
    that made one of them still runs."""

    uid: int
    job: str
    alive: bool


_STEPD = re.compile(r"slurmstepd( \(deleted\))?")
"""The program's file, also where a newer one has taken its place."""


def list_snapshot_owners(folder: str, clock: Optional[Clock] = None) -> List[OrphanedSnapshots]:
    """List the users and jobs with snapshots in shared memory, and whether a trainer of theirs still runs.
    `clock`: as capture_age's. Reads only, and only what is a regular file of its owner. Raises OSError."""
    lives: Dict[Tuple[int, str], bool] = {}
    jobs: Dict[int, Set[str]] = {}
    for uid, tier, page in _pages_with_uid_and_tier(folder):
        job = str(page.origin.job.get("slurm_job_id", ""))
        # A word of a user's that becomes an argument of a command.
        if not re.fullmatch(r"[0-9]{0,10}", job):
            continue
        alive = tier.is_captured_here and process.is_alive(page.origin.trainer)
        if job == NO_JOB and (alive or _is_young_enough_to_be_claimed(page, clock)):
            continue
        if job in jobs.setdefault(uid, set()) or len(jobs[uid]) < MOST_JOBS:
            jobs[uid].add(job)
            lives[uid, job] = lives.get((uid, job), False) or alive
    return [OrphanedSnapshots(uid, job, alive) for (uid, job), alive in sorted(lives.items())]


def _is_young_enough_to_be_claimed(page: control_page.Page, clock: Optional[Clock]) -> bool:
    """Return whether a snapshot of no job is young enough that somebody may come for it yet. One of unknown
    age is dated by the flush that sees it."""
    from hyperpod_kit.checkpoint.agent.shm import capture_age  # seldom needed, and dear to what runs each minute

    age = capture_age.seconds_since_sealing(page, (clock or capture_age.now)())
    return age is not None and age <= capture_age.MAX_AGE


def _pages_with_uid_and_tier(folder: str) -> Iterator[Tuple[int, node_tiers.NodeTier, control_page.Page]]:
    """Yield (uid, tier, page) of every slot here. Raises OSError."""
    for tier in node_tiers.tiers_in_shared_memory():
        for uid, name, named in shm_paths.iter_user_files_as_uid_name_fd(
            folder, ".ctl", MOST_SLOTS, subdirectory=tier.subdirectory or ""
        ):
            page = _read_control_page(name, named)
            if page is not None:
                yield uid, tier, page


def _read_control_page(name: str, descriptor: int) -> Optional[control_page.Page]:
    """The control page of a slot, None for what is none."""
    from hyperpod_kit.checkpoint.agent.shm import control_page, shm_slots

    if shm_slots.NAME.fullmatch(name) is None:
        return None
    try:
        handle = reopen_path_fd(descriptor, os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.pread(handle, control_page.PAGE, 0)
        page = None
        if len(text) == control_page.PAGE:
            page = control_page.read(memoryview(text))
        if page is None:
            return None
        return page[1]
    except (OSError, TypeError, ValueError, AttributeError):
        return None
    finally:
        os.close(handle)


def jobs_with_stepd(proc: str) -> Set[str]:
    """Return the jobs of which a slurmstepd lives here: a process of root's whose program is slurmstepd by the
    kernel's word, so that its command line may be believed: `slurmstepd: [12.batch]`, `slurmstepd: [12.0]`."""
    jobs = set()
    for pid in filter(str.isdigit, os.listdir(proc)):
        if not process.are_all_uids_root(int(pid), proc):
            continue
        with contextlib.suppress(OSError):
            # A set-user-ID program that has made itself root's altogether has its caller's words still.
            program = os.readlink(f"{proc}/{pid}/exe")
            if not _STEPD.fullmatch(os.path.basename(program)):
                continue
            with open(f"{proc}/{pid}/cmdline", "rb") as stream:
                match = re.match(rb"slurmstepd: \[([0-9]+)", stream.read(64))
            if match:
                jobs.add(match.group(1).decode())
    return jobs


def has_job_left_node(node_name: str, job_records: Iterable[Mapping[str, str]]) -> bool:
    """Return whether a job has nothing to do with this node any more, by slurmctld's records of it; without
    any, Slurm has forgotten it.

    More than one is an array's, or a heterogeneous job's: one of them here is enough to wait.
    """
    return not any(
        record.get("JobState", "") in HAS_NODES and node_name in _node_names_or_empty(record) for record in job_records
    )


def _node_names_or_empty(record: Mapping[str, str]) -> List[str]:
    hosts = record.get("NodeList", "")
    try:
        if hosts in ("", "(null)"):
            return []
        return expand(hosts)
    except ValueError:
        return []
