"""Choose and find the directory in which `job run` keeps its records of a checkpoint root.

It is `<root>/.hpk`, or a directory elsewhere where the root can neither append to a file nor make one exclusively (S3,
Mountpoint for S3). Such a root has one small object, `.hpk/state.json`, made once by the first `job run`: it names that
directory, so that two jobs cannot keep their records of one root in two places, and later commands find them.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import Iterator, Mapping

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import MOUNTPOINT, is_path, mount_type_and_source, open_store
from hyperpod_kit.errors import Absent, CheckpointError, JobError, NoRecords
from hyperpod_kit.system.mountinfo import DISKS
from hyperpod_kit.untrusted.text import clean_one_line

RECORDS_DIRECTORY = layout.JOBS
STATE_POINTER = layout.JOBS_ELSEWHERE
FORMAT = layout.JOBS_ELSEWHERE_FORMAT
FOLDER = ".hyperpod-kit"
"""Directory in the shared directory that is chosen; each root has a directory of its own in it."""

_LARGEST = 4096
_WRITING = 5.0
"""Seconds in which another job has written `state.json`."""


def absolute(root: str) -> str:
    """Return a root that a user typed, in a form that is the same in every working directory."""
    if is_path(root):
        return os.path.abspath(root)
    return root.rstrip("/")


def can_root_hold_records(root: str) -> bool:
    """Return whether the root itself can hold the records."""
    return is_path(root) and mount_type_and_source(root) != ("fuse", MOUNTPOINT)


def chosen(root: str, user_directory: str, env: Mapping[str, str]) -> str:
    """Return the directory of the records, the same at each run of a batch script. Raises JobError.

    It is in the root where that can be, else below the directory that the user has named, else below one that all nodes
    share.
    """
    if can_root_hold_records(root):
        if user_directory:
            raise JobError(f"{root} keeps the records of its jobs itself", hint="leave out --state")
        return os.path.join(root, RECORDS_DIRECTORY)
    slug = re.sub(r"[^A-Za-z0-9]+", "-", root.partition("://")[2] or root).strip("-")[-40:]
    folder_name = f"{slug}-{hashlib.sha256(root.encode()).hexdigest()[:10]}"
    if user_directory:
        return os.path.join(os.path.abspath(user_directory), folder_name)
    candidates = []
    for path in _candidates(env):
        kind = mount_type_and_source(path)[0]
        # What is no disk of this machine's own is what all nodes of a cluster have in common.
        if kind and kind not in DISKS and can_root_hold_records(path):
            return os.path.join(path, FOLDER, folder_name)
        candidates.append(f"{path} ({kind or 'unknown'})")
    raise JobError(
        f"{root} cannot hold the records of its jobs, which need a directory that all nodes share: none of "
        f"{', '.join(candidates) or 'HOME, SLURM_SUBMIT_DIR'} is known to be shared",
        hint="--state /fsx/$USER",
    )


def _candidates(env: Mapping[str, str]) -> Iterator[str]:
    for name in ("HOME", "SLURM_SUBMIT_DIR"):
        if os.path.isabs(env.get(name, "")):
            yield os.path.normpath(env[name])


def record_state_directory_at_root(root: str, state: str) -> None:
    """Write `state` to the root, unless the root names it already; do nothing where the root holds the records itself.

    Raises:
        JobError: The records of the root are elsewhere.
        CheckpointError: What the root has there names no directory.
        OSError: The root cannot be read or written.
    """
    if can_root_hold_records(root):
        return
    store = open_store(root)
    end = time.monotonic() + _WRITING
    while True:
        try:
            if not store.exists(STATE_POINTER):
                store.create(STATE_POINTER, manifest.seal_json({"format": FORMAT, "state": state}))
            named = _read_recorded_state_directory(store)
            break
        except (FileExistsError, PermissionError):
            # With the second Mountpoint answers, to a read as well, where another is just writing it.
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)
    if named != state:
        raise JobError(
            f"the records of {root} are in {clean_one_line(named)}, and this job would keep them in {state}",
            hint=f"--state {os.path.dirname(named)}, or a root of its own",
        )


def state_directory_of_root(root: str) -> str:
    """Return the directory of a root's records, as its jobs have chosen it.

    Raises NoRecords when no job has kept any, CheckpointError, OSError.
    """
    if can_root_hold_records(root):
        return os.path.join(root, RECORDS_DIRECTORY)
    try:
        return _read_recorded_state_directory(open_store(root))
    except FileNotFoundError:
        raise NoRecords(f"no job has ever kept records of {root}: no such file: {root}/{STATE_POINTER}") from None


def require_root(root: str) -> None:
    """Raise Absent when a root that is a directory is not there: nothing is known then of the jobs on it."""
    if is_path(root) and not os.path.isdir(root):
        raise Absent(
            f"no such directory: {root}; the jobs on it are unknown",
            hint=f"check that its file system is mounted: findmnt --target {root}",
        )


def require(root: str, state: str) -> None:
    """Raise OSError when the root or `state` is not there, since an absent root can read like an empty one.

    Raises CheckpointError as well.
    """
    os.stat(state)
    if not can_root_hold_records(root) and not open_store(root).exists(STATE_POINTER):
        raise FileNotFoundError(f"no such file: {root}/{STATE_POINTER}")


def _read_recorded_state_directory(store: Store) -> str:
    body = manifest.parse_sealed_json(store.read(STATE_POINTER, _LARGEST), STATE_POINTER)
    named = body.get("state")
    if body.get("format") != FORMAT or not isinstance(named, str) or not os.path.isabs(named) or "\0" in named:
        raise CheckpointError(f"{store.url}/{STATE_POINTER} does not name the place of the records")
    return os.path.normpath(named)
