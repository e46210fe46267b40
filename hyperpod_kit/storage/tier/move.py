"""One checkpoint to another root: copied, committed there, read back and proved, and only then deleted here.

Killed anywhere, it is whole in at least one of the two places, and the same words again finish it: what lies in the
other place without a manifest is no checkpoint and is written anew, what has one is proved and not copied again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Iterator, Sequence

from hyperpod_kit.checkpoint.repository import identity, layout, lease, retention, verify
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.manifest import Manifest
from hyperpod_kit.checkpoint.repository.store import root_files
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.storage.tier.rules import TierError

BLOCK = 8 << 20
LEASE_SECONDS = 120.0
"""Of the lease while a move goes on, renewed thrice in that time: a killed one ends so soon after, and lease.GRACE."""


def move(source: Store, target: Store, attempt: str, whose: identity.RunIdentity, keep: int) -> bool:
    """Whether bytes were copied; False when an earlier try had done that. Raises TierError, CheckpointError, OSError:
    then it is where it was."""
    # Nobody deletes it while we read it, another of us included.
    with lease.KeptLease(source, attempt, LEASE_SECONDS):
        copied = copy(source, target, attempt, whose)
    failpoint("tier.copied")
    remove(source, attempt, whose, keep)
    return copied


def copy(source: Store, target: Store, attempt: str, whose: identity.RunIdentity) -> bool:
    """As `move`, and nothing is deleted. What is not proved gets no manifest, so that it is no checkpoint there."""
    # Nothing of it is anybody else's to read before it has the mode that it has here.
    umask = os.umask(0o077)
    try:
        return _copied(source, target, attempt, whose)
    finally:
        os.umask(umask)


def _copied(source: Store, target: Store, attempt: str, whose: identity.RunIdentity) -> bool:
    identity.write(target, whose)
    identity.confirm(target, whose)
    name = f"{attempt}/{layout.MANIFEST_FILE}"
    data = source.read(name)
    if target.exists(name):
        if target.read(name) != data:
            raise TierError(f"{target.url}/{attempt}: another checkpoint of that name is there; nothing was deleted")
        with _proving(source, target, attempt):
            verify.verify_checkpoint(target, attempt)
        return False
    body = verify.parse_manifest(data, attempt)
    files = [f"{attempt}/{one.file}" for one in (*body.shards, body.extra, *([body.index] if body.index else []))]
    try:
        for file in files:
            _file(source, target, file)
            failpoint("tier.file_copied")
        with _proving(source, target, attempt):
            _prove(target, attempt, body)
    except Exception:
        with contextlib.suppress(CheckpointError, OSError):
            for file in files:
                target.delete(file)
        raise
    target.sync(attempt)
    target.create(name, data)
    _keep_facts(source, target, [layout.RUN_FILE, *files, name], attempt)
    failpoint("tier.committed")
    return True


def _keep_facts(source: Store, target: Store, names: Sequence[str], attempt: str) -> None:
    """Group, mode and times of what was moved, between directories: the owner is who moves. The directory is last, so
    that its time is not that of the files that came."""
    if not (is_path(source.url) and is_path(target.url)):
        return
    for name in (*names, attempt):
        place = os.path.join(source.url, name)
        found = os.lstat(place)
        folder = root_files.open_folder(target.url, name)
        try:
            last = os.path.basename(name)
            handle = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            with contextlib.suppress(PermissionError):  # a group that the owner is not in any more
                os.fchown(handle, -1, found.st_gid)
            os.fchmod(handle, stat.S_IMODE(found.st_mode) & 0o777)
            os.utime(handle, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(handle)


@contextlib.contextmanager
def _proving(source: Store, target: Store, attempt: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as err:
        raise TierError(
            f"{target.url}/{attempt}: the copy is not what was saved: {err}; nothing was deleted",
            hint=f"hyperpod-kit checkpoint verify {source.url}",
        ) from err


def _prove(target: Store, attempt: str, body: Manifest) -> None:
    """Every byte against what was committed at first. Raises CheckpointError, OSError."""
    for small in (body.extra, body.index):
        if small is not None:
            verify.read_extra(target, attempt, small)
    for record in body.shards:
        verify.verify_file(target, attempt, record, chunk=body.chunk)


def remove(source: Store, attempt: str, whose: identity.RunIdentity, keep: int) -> None:
    """Delete it here, if it still may go. Raises TierError, CheckpointError, OSError."""
    why = survey.may_go(source, whose, attempt, keep)
    if why:
        raise TierError(f"{source.url}/{attempt} stays: {why}")
    done = retention.apply(source, retention.RetentionPlan((), ((attempt, "by a rule"),)), whose)
    if done.remaining:
        raise TierError(f"{source.url}/{attempt} stays: {done.remaining[0][1]}")


def _file(source: Store, target: Store, name: str) -> None:
    # Without a manifest it is what a killed copy left.
    target.delete(name)
    reader = source.open_read(name)
    try:
        writer = target.open_write(name, reader.size)
        try:
            view, at = memoryview(bytearray(min(BLOCK, max(reader.size, 1)))), 0
            while at < reader.size:
                count = reader.read_into(view[: min(len(view), reader.size - at)], at)
                if not count:
                    raise TierError(f"{source.url}/{name} ends at {at:,} of {reader.size:,} bytes")
                writer.write(view[:count], at)
                at += count
            writer.finish()
        except BaseException:
            writer.abort()
            raise
    finally:
        reader.close()
