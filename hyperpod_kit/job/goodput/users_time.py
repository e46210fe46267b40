"""Root adds up the time of everybody's jobs. What a user's files say is read as that user, a root at a time, in a child
with a deadline and a limit of memory: a root that hangs, or is made to be dear, costs its own line.

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
"""For one root."""
MEMORY = 4 << 30
"""Bytes that the records of one root may take while they are added up."""
MOST_ROOTS = 1000
"""Of one user, the newest."""

RootAccounting = Callable[[str], Dict[str, GroupTime]]
"""What the time of the jobs on a root went into. Raises HyperpodKitError, OSError."""


def tables(named: Sequence[str], account_root: RootAccounting, problems: List[str]) -> Dict[str, GroupTime]:
    """Of all roots that are named, or that users have noted. `problems`: gets a sentence for what is not counted.

    Raises Absent for a root that is named and not there, Unreachable where nothing can be counted.
    """
    groups_of_roots: List[Dict[str, GroupTime]] = []
    counted: Set[str] = set()
    for uid, root in _named(named) if named else _noted(problems):
        try:
            identity, rows = owner.run_as_user_in_child(
                partial(_account_root_in_child, root, account_root), uid, root, PATIENCE
            )
        except (HyperpodKitError, OSError) as err:
            if named and isinstance(err, Absent):
                raise
            problems.append(f"{root} is not counted: {err}")
            continue
        # By another name it is the same one.
        if identity not in counted:
            counted.add(identity)
            groups_of_roots.append({name: _decoded(row) for name, row in rows.items()})
    if not groups_of_roots:
        nothing = [] if named else [f"no job is noted in {job_index.index_file_path()}"]
        raise Unreachable("; ".join([*nothing, *problems]), hint="hyperpod-kit job goodput --root DIR, for each root")
    return groups.together(groups_of_roots)


def _named(roots: Sequence[str]) -> Iterator[Tuple[int, str]]:
    for root in roots:
        yield (owner.uid_to_act_as_if_root(root) if is_path(root) else 0) or 0, root


def _noted(problems: List[str]) -> Iterator[Tuple[int, str]]:
    """(whose note, root) of this user's jobs and of every user's."""
    files = [(os.getuid(), job_index.index_file_path())]
    files += [(user.pw_uid, job_index.index_file_path({"HOME": user.pw_dir})) for user in pwd.getpwall()]
    for uid, file in dict.fromkeys(files):
        try:
            roots = owner.run_as_user_in_child(partial(_roots_in, file), uid, file, PATIENCE)
        except (NotADirectoryError, PermissionError):
            continue  # the home of a user of the system's, which has none
        except (HyperpodKitError, OSError) as err:
            problems.append(f"the jobs that are noted in {file} are not counted: {err}")
            continue
        if len(roots) > MOST_ROOTS:
            problems.append(f"{file} notes {len(roots):,} roots, of which the newest {MOST_ROOTS:,} are counted")
        yield from ((uid, root) for root in roots[:MOST_ROOTS])


def _roots_in(file: str) -> List[str]:
    """The newest first."""
    _limit_own_data_memory()
    return list(dict.fromkeys(str(row["root"]) for row in reversed(ledger.read(file)) if row.get("root")))


def _account_root_in_child(root: str, account_root: RootAccounting) -> List[Any]:
    _limit_own_data_memory()
    state_place.require_root(root)
    absolute_root = state_place.absolute(root)
    rows = {name: _encoded(group) for name, group in account_root(absolute_root).items()}
    if not is_path(absolute_root):
        return [absolute_root, rows]
    facts = os.stat(absolute_root)
    return [f"{facts.st_dev}:{facts.st_ino}", rows]


def _limit_own_data_memory() -> None:
    """Where more is asked for, this child gets a MemoryError, which is its answer."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
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
    seconds, gpu_seconds = (
        {TimeCause(cause): float(value) for cause, value in row[name].items()} for name in ("seconds", "gpu_seconds")
    )
    return GroupTime(TimeTable(seconds, gpu_seconds, dict(row["parts"])), str(row["unit"]))
