"""One checkpoint to another root: copied, committed there, read back and proved, and only then deleted here.

Killed anywhere, it is whole in at least one of the two places, and the same words again finish it: what lies in the
other place without a manifest is no checkpoint and is written anew, what has one is proved and not copied again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Iterator, Sequence

from hyperpod_kit.checkpoint.repository import retention
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.format.manifest import Manifest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity, lease
from hyperpod_kit.checkpoint.repository.store import root_files
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.storage.tier.rules import TierError

BLOCK = 8 << 20
LEASE_SECONDS = 120.0
"""Of the lease while a move goes on, renewed thrice in that time: a killed one ends so soon after, and lease.GRACE."""


def migrate_checkpoint_returning_if_copied(
    source: Store, target: Store, checkpoint_id: str, run: identity.RunIdentity, keep: int
) -> bool:
    """Move a checkpoint to another root; return whether bytes were copied, False when an earlier try had done that.

    Raises TierError, CheckpointError, OSError: then it is where it was.
    """
    # Nobody deletes it while we read it, another of us included.
    with lease.KeptLease(source, checkpoint_id, LEASE_SECONDS):
        copied = copy_checkpoint_unless_already_there(source, target, checkpoint_id, run)
    failpoint("tier.copied")
    delete_or_raise_if_retained(source, checkpoint_id, run, keep)
    return copied


def copy_checkpoint_unless_already_there(
    source: Store, target: Store, checkpoint_id: str, run: identity.RunIdentity
) -> bool:
    """Copy a checkpoint as `migrate_checkpoint_returning_if_copied` does, and delete nothing; return whether bytes were
    copied.

    What is not proved gets no manifest, so that it is no checkpoint there.
    """
    # Nothing of it is anybody else's to read before it has the mode that it has here.
    umask = os.umask(0o077)
    try:
        return _copy_and_commit_unless_already_there(source, target, checkpoint_id, run)
    finally:
        os.umask(umask)


def _copy_and_commit_unless_already_there(
    source: Store, target: Store, checkpoint_id: str, run: identity.RunIdentity
) -> bool:
    identity.write_run_file_unless_valid(target, run)
    identity.require_run_identity(target, run)
    name = f"{checkpoint_id}/{layout.MANIFEST_FILE}"
    data = source.read(name)
    if target.exists(name):
        if target.read(name) != data:
            raise TierError(
                f"{target.url}/{checkpoint_id}: another checkpoint of that name exists; nothing was deleted"
            )
        with _checkpoint_errors_as_tier_errors(source, target, checkpoint_id):
            verify.verify_checkpoint(target, checkpoint_id)
        return False
    body = verify.parse_manifest(data, checkpoint_id)
    file_records = [*body.shards, body.extra]
    if body.index is not None:
        file_records.append(body.index)
    files = [f"{checkpoint_id}/{file_record.file}" for file_record in file_records]
    try:
        for file in files:
            _copy_file(source, target, file)
            failpoint("tier.file_copied")
        with _checkpoint_errors_as_tier_errors(source, target, checkpoint_id):
            _verify_copy(target, checkpoint_id, body)
    except Exception:
        with contextlib.suppress(CheckpointError, OSError):
            for file in files:
                target.delete(file)
        raise
    target.sync(checkpoint_id)
    target.create(name, data)
    _copy_group_mode_and_times(source, target, [layout.RUN_FILE, *files, name], checkpoint_id)
    failpoint("tier.committed")
    return True


def _copy_group_mode_and_times(source: Store, target: Store, names: Sequence[str], checkpoint_id: str) -> None:
    """Copy group, mode and times of what was moved, between directories: the owner is who moves.

    The directory is last, so that its time is not that of the files that came.
    """
    if not (is_path(source.url) and is_path(target.url)):
        return
    for name in (*names, checkpoint_id):
        path = os.path.join(source.url, name)
        status = os.lstat(path)
        folder = root_files.open_parent_folder(target.url, name)
        try:
            last = os.path.basename(name)
            handle = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            with contextlib.suppress(PermissionError):  # a group that the owner is not in any more
                os.fchown(handle, -1, status.st_gid)
            os.fchmod(handle, stat.S_IMODE(status.st_mode) & 0o777)
            os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(handle)


@contextlib.contextmanager
def _checkpoint_errors_as_tier_errors(source: Store, target: Store, checkpoint_id: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as err:
        raise TierError(
            f"{target.url}/{checkpoint_id}: the copy differs from what was saved: {err}; nothing was deleted",
            hint=f"hyperpod-kit checkpoint verify {source.url}",
        ) from err


def _verify_copy(target: Store, checkpoint_id: str, body: Manifest) -> None:
    """Verify every byte against what was committed at first. Raises CheckpointError, OSError."""
    for small in (body.extra, body.index):
        if small is not None:
            verify.read_verified_small_file(target, checkpoint_id, small)
    for record in body.shards:
        verify.verify_shard_file(target, checkpoint_id, record, chunk=body.chunk)


def delete_or_raise_if_retained(source: Store, checkpoint_id: str, run: identity.RunIdentity, keep: int) -> None:
    """Delete a checkpoint here. Raises TierError if it must stay, CheckpointError, OSError."""
    reason = survey.reason_to_retain(source, run, checkpoint_id, keep)
    if reason:
        raise TierError(f"{source.url}/{checkpoint_id} stays: {reason}")
    result = retention.delete_planned(source, retention.RetentionPlan((), ((checkpoint_id, "by a rule"),)), run)
    if result.remaining:
        raise TierError(f"{source.url}/{checkpoint_id} stays: {result.remaining[0][1]}")


def _copy_file(source: Store, target: Store, name: str) -> None:
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
