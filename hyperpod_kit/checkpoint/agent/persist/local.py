"""The node's own disk as a tier between memory and storage.

    <directory>/hpk-<uid>-<run hash>/<attempt>/shard-RRRRR.safetensors     byte for byte the shard as it goes to storage
                                               report-RRRRR.json           what the commit needs of it; written last

Each rank keeps its own part, and removes it the other way round. A part counts when its report is there and intact;
the shard's bytes are proved by the digest in the report whenever they are read. A disk that all users write to may hold
a directory of another's under that name, and a report of another's proves nothing: only a directory of ours is written
to, and only files of ours are read.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Container, List, NamedTuple, Optional

from hyperpod_kit.checkpoint.agent.persist import persist
from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report, report_of
from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError, Untrusted
from hyperpod_kit.untrusted import by_descriptor, files
from hyperpod_kit.untrusted.dirfd import open_path_fd_refusing_mount

_OWNED = "ours"

KEPT = 2
"""Complete local checkpoints of a run that stay: one may turn out to be damaged."""


class Part(NamedTuple):
    """One rank's part of a local checkpoint."""

    checkpoint_id: str
    report: Report


def open_local_store(directory: str, run_hash: str) -> Store:
    """The local checkpoints of a run, laid out as under a root, without manifests."""
    return PosixStore(os.path.join(directory, f"hpk-{shm_paths.node_uid()}-{run_hash}"), owner=os.geteuid())


def _describe_what_lies_at(path: str) -> str:
    """What lies there and whose it is, in words, asking nobody for it; "" for nothing. Raises OSError."""
    try:
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fd = open_path_fd_refusing_mount(os.path.basename(path), folder)
    except FileNotFoundError:
        return ""
    except OSError as err:
        if err.errno != errno.EXDEV:
            raise
        return "a mount"
    finally:
        os.close(folder)
    try:
        status = os.fstat(fd)
        is_owned = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if is_owned:
            return _OWNED
        return f"{stat.filemode(status.st_mode)} of uid {status.st_uid}"
    finally:
        os.close(fd)


def _is_own_directory(path: str) -> bool:
    return _describe_what_lies_at(path) == _OWNED


def _ensure_own_directory(path: str) -> None:
    """Raises CheckpointError when another has made it, OSError."""
    by_descriptor.make_parents(path)
    owner = _describe_what_lies_at(path)
    try:
        if owner in ("", _OWNED):
            files.ensure_own_directory(path)
            return
    except Untrusted:
        owner = _describe_what_lies_at(path)
    raise CheckpointError(
        f"{path} is {owner}, expected a directory of uid {os.geteuid()}",
        hint=f"have its owner or root remove it, or use another directory: ls -ld {path}",
    )


def list_parts(directory: str, run_hash: str, rank: int) -> List[Part]:
    """This rank's intact parts, newest first; the report says nothing about the shard's bytes. Raises OSError."""
    local_store = open_local_store(directory, run_hash)
    if _is_own_directory(local_store.url):
        return _read_parts(local_store, rank)
    return []


def read_report(directory: str, run_hash: str, rank: int, checkpoint_id: str) -> Report:
    """This rank's report of one attempt. Raises CheckpointError when it is gone or damaged, OSError."""
    part = _read_part_if_intact(open_local_store(directory, run_hash), checkpoint_id, rank)
    if part is None:
        raise CheckpointError(f"the part of {checkpoint_id} in {directory} is gone")
    return part.report


def _read_parts(local_store: Store, rank: int) -> List[Part]:
    parts = []
    for name in local_store.list():
        parsed = layout.parse_checkpoint_id(name.rstrip("/"))
        part = None
        if parsed is not None and name.endswith("/"):
            part = _read_part_if_intact(local_store, name[:-1], rank)
        if part is not None:
            parts.append(part)
    return sorted(parts, key=lambda part: (part.report.page.key, part.checkpoint_id), reverse=True)


def _read_part_if_intact(local_store: Store, checkpoint_id: str, rank: int) -> Optional[Part]:
    name = layout.report_file(rank)
    try:
        data = local_store.read(f"{checkpoint_id}/{name}", layout.LARGEST_REPORT)
        return Part(checkpoint_id, Report.from_json(manifest.parse_sealed_json(data, name)))
    except (FileNotFoundError, CheckpointError, TypeError, KeyError, ValueError):
        return None


def write_part(shard: SlotShard, local_store: Store, checkpoint_id: str, options: persist.WriteOptions) -> Report:
    """Write one rank's part. Raises CheckpointError when another has taken the run's place on the disk, and as
    persist.write_shard."""
    _ensure_own_directory(local_store.url)
    rank = shard.page.origin.rank
    try:
        record = persist.write_shard(shard, local_store, checkpoint_id, options)
    except FileExistsError:  # of an agent that died
        _remove_part(local_store, checkpoint_id, rank)
        record = persist.write_shard(shard, local_store, checkpoint_id, options)
    report = report_of(shard.slot, record)
    local_store.sync(checkpoint_id)
    failpoint("local.before_report")
    local_store.create(f"{checkpoint_id}/{layout.report_file(rank)}", manifest.seal_json(report.to_json()))
    failpoint("local.after_report")
    return report


def remove_all_but_newest_parts(local_store: Store, rank: int, *, upto: str, busy: Container[str]) -> None:
    """Remove this rank's parts older than the newest KEPT of those up to the attempt `upto`, except `busy` ones.

    `upto` is complete on all ranks; what is newer may never be and does not count. Also what a crash left half
    written. Raises OSError.
    """
    last = layout.parse_checkpoint_id(upto)
    assert last is not None
    older = [
        parsed
        for parsed in (layout.parse_checkpoint_id(name.rstrip("/")) for name in local_store.list())
        if parsed is not None and (parsed.epoch, parsed.seq) <= (last.epoch, last.seq)
    ]
    kept = 0
    for parsed in sorted(older, key=lambda parsed: (parsed.epoch, parsed.seq), reverse=True):
        checkpoint_id = str(parsed)
        if kept < KEPT and _read_part_if_intact(local_store, checkpoint_id, rank) is not None:
            kept += 1
        elif checkpoint_id not in busy:
            _remove_part(local_store, checkpoint_id, rank)


class LocalDisk:
    """The parts of one rank, in `directory` on its node's own disk."""

    def __init__(self, directory: str, run_hash: str, rank: int) -> None:
        self.store = open_local_store(directory, run_hash)
        self._directory, self._run_hash, self._rank = directory, run_hash, rank

    def parts(self) -> List[Part]:
        """Return this rank's intact parts, newest first, see `list_parts`."""
        return list_parts(self._directory, self._run_hash, self._rank)

    def remove_all_but_newest_parts(self, *, upto: str, busy: Container[str]) -> None:
        """Remove old parts, see `remove_all_but_newest_parts`."""
        remove_all_but_newest_parts(self.store, self._rank, upto=upto, busy=busy)


def _remove_part(local_store: Store, checkpoint_id: str, rank: int) -> None:
    failpoint("local.before_remove")
    local_store.delete(f"{checkpoint_id}/{layout.report_file(rank)}")
    failpoint("local.report_removed")
    local_store.delete(f"{checkpoint_id}/{layout.shard_file(rank)}")
    local_store.delete(f"{checkpoint_id}/")
