"""Adds up the time of all users' jobs, for root of the machine.

The files of a user are read as that user, a root of jobs at a time, in a child process with a deadline and a limit of
memory: one that hangs, or is made to be costly to read, is reported as not counted, and all others are counted.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import pwd
import resource
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Set, Tuple

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import Absent, HyperpodKitError, Unreachable
from hyperpod_kit.job.goodput import groups
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.groups import GroupTime
from hyperpod_kit.job.goodput.time_table import TimeTable
from hyperpod_kit.job.records import job_index, ledger, state_place
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerLimits

PATIENCE = OwnerLimits(longest=600.0)
"""Limits of the child process for one root."""
MEMORY = 4 << 30
"""Most bytes of memory of the child process that adds up one root."""
MOST_ROOTS = 1000
"""Most roots of one user that are counted, the newest ones."""

RootAccounting = Callable[[str], Dict[str, GroupTime]]
"""A function that returns the time of the jobs on a root by group. Raises HyperpodKitError, OSError."""


def tables(named: Sequence[str], account_root: RootAccounting, problems: List[str]) -> Dict[str, GroupTime]:
    """Return the groups of all named roots, or of those in the users' indexes of jobs where none is named.

    A sentence is added to `problems` for each root or index that is not counted. Raises Absent for a named root that
    does not exist, Unreachable where nothing can be counted.
    """
    if named:
        uids_and_roots = _named(named)
    else:
        uids_and_roots = _noted(problems)
    groups_of_roots: List[Dict[str, GroupTime]] = []
    counted: Set[str] = set()
    for uid, root in uids_and_roots:
        try:
            identity, rows = owner.run_as_user_in_child(
                partial(_account_root_in_child, root, account_root), uid, root, PATIENCE
            )
        except (HyperpodKitError, OSError) as err:
            if named and isinstance(err, Absent):
                raise
            problems.append(f"{root} is not counted: {err}")
            continue
        # A root may be listed by several names.
        if identity not in counted:
            counted.add(identity)
            groups_of_roots.append({name: _decoded(row) for name, row in rows.items()})
    if not groups_of_roots:
        reasons = list(problems)
        if not named:
            reasons.insert(0, f"no job is noted in {job_index.index_file_path()}")
        raise Unreachable("; ".join(reasons), hint="hyperpod-kit job goodput --root DIR, for each root")
    return groups.together(groups_of_roots)


def _named(roots: Sequence[str]) -> Iterator[Tuple[int, str]]:
    """Yield each named root with the user to read it as; 0 for a root in S3."""
    for root in roots:
        uid = 0
        if is_path(root):
            uid = owner.uid_to_act_as_if_root(root) or 0
        yield uid, root


def _noted(problems: List[str]) -> Iterator[Tuple[int, str]]:
    """Yield (user, root) for each root in the indexes of jobs of this user and of every user."""
    files = [(os.getuid(), job_index.index_file_path())]
    files += [(user.pw_uid, job_index.index_file_path({"HOME": user.pw_dir})) for user in pwd.getpwall()]
    for uid, file in dict.fromkeys(files):
        try:
            roots = owner.run_as_user_in_child(partial(_roots_in, file), uid, file, PATIENCE)
        except (NotADirectoryError, PermissionError):
            continue  # the user has no home directory, as users of the system
        except (HyperpodKitError, OSError) as err:
            problems.append(f"the jobs that are noted in {file} are not counted: {err}")
            continue
        if len(roots) > MOST_ROOTS:
            problems.append(f"{file} notes {len(roots):,} roots, of which the newest {MOST_ROOTS:,} are counted")
        yield from ((uid, root) for root in roots[:MOST_ROOTS])


def _roots_in(file: str) -> List[str]:
    """Return the roots in an index of jobs, the newest first."""
    _limit_own_data_memory()
    return list(dict.fromkeys(str(row["root"]) for row in reversed(ledger.read(file)) if row.get("root")))


def _account_root_in_child(root: str, account_root: RootAccounting) -> List[Any]:
    """Return the identity of a root and its rows by group, which `owner` passes on as JSON."""
    _limit_own_data_memory()
    state_place.require_root(root)
    absolute_root = state_place.absolute(root)
    rows = {name: _encoded(group) for name, group in account_root(absolute_root).items()}
    if not is_path(absolute_root):
        return [absolute_root, rows]
    facts = os.stat(absolute_root)
    return [f"{facts.st_dev}:{facts.st_ino}", rows]


def _limit_own_data_memory() -> None:
    """Limit the memory of this child process; it fails with MemoryError where it allocates more."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MEMORY
    if most != resource.RLIM_INFINITY:
        limit = min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _encoded(group: GroupTime) -> Dict[str, Any]:
    table = group.table
    return {
        "unit": group.unit,
        "seconds": {cause.value: seconds for cause, seconds in table.seconds.items()},
        "gpu_seconds": {cause.value: seconds for cause, seconds in table.gpu_seconds.items()},
        "parts": table.parts,
    }


def _decoded(row: Mapping[str, Any]) -> GroupTime:
    seconds = _decoded_seconds(row["seconds"])
    gpu_seconds = _decoded_seconds(row["gpu_seconds"])
    return GroupTime(TimeTable(seconds, gpu_seconds, dict(row["parts"])), str(row["unit"]))


def _decoded_seconds(seconds: Mapping[str, Any]) -> Dict[TimeCause, float]:
    return {TimeCause(cause): float(amount) for cause, amount in seconds.items()}
