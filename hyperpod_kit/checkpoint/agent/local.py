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

from hyperpod_kit.checkpoint.agent import persist, places
from hyperpod_kit.checkpoint.agent.seal import SlotShard
from hyperpod_kit.checkpoint.agent.shard_report import Report, report_of
from hyperpod_kit.checkpoint.repository import layout, manifest
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError, Untrusted
from hyperpod_kit.untrusted import by_descriptor, files
from hyperpod_kit.untrusted.dirfd import open_name

_OURS = "ours"

KEPT = 2
"""Complete local checkpoints of a run that stay: one may turn out to be damaged."""


class Part(NamedTuple):
    """One rank's part of a local checkpoint."""

    attempt: str
    report: Report


def store(directory: str, run_hash: str) -> Store:
    """The local checkpoints of a run, laid out as under a root, without manifests."""
    return PosixStore(os.path.join(directory, f"hpk-{places.node_uid()}-{run_hash}"), owner=os.geteuid())


def _whose(path: str) -> str:
    """What lies there and whose it is, in words, asking nobody for it; "" for nothing. Raises OSError."""
    try:
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fd = open_name(os.path.basename(path), folder)
    except FileNotFoundError:
        return ""
    except OSError as err:
        if err.errno != errno.EXDEV:
            raise
        return "a mount"
    finally:
        os.close(folder)
    try:
        found = os.fstat(fd)
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        return _OURS if ours else f"{stat.filemode(found.st_mode)} of uid {found.st_uid}"
    finally:
        os.close(fd)


def _is_ours(path: str) -> bool:
    return _whose(path) == _OURS


def _make(path: str) -> None:
    """Raises CheckpointError when another has made it, OSError."""
    by_descriptor.make_parents(path)
    whose = _whose(path)
    try:
        if whose in ("", _OURS):
            files.ensure_own_directory(path)
            return
    except Untrusted:
        whose = _whose(path)
    raise CheckpointError(
        f"{path} is {whose}, expected a directory of uid {os.geteuid()}",
        hint=f"have its owner or root remove it, or use another directory: ls -ld {path}",
    )


def reports(directory: str, run_hash: str, rank: int) -> List[Part]:
    """This rank's intact parts, newest first; the report says nothing about the shard's bytes. Raises OSError."""
    place = store(directory, run_hash)
    return _parts(place, rank) if _is_ours(place.url) else []


def report(directory: str, run_hash: str, rank: int, attempt: str) -> Report:
    """This rank's report of one attempt. Raises CheckpointError when it is gone or damaged, OSError."""
    part = _part(store(directory, run_hash), attempt, rank)
    if part is None:
        raise CheckpointError(f"the part of {attempt} in {directory} is gone")
    return part.report


def _parts(place: Store, rank: int) -> List[Part]:
    found = []
    for name in place.list():
        parsed = layout.parse_attempt(name.rstrip("/"))
        part = _part(place, name[:-1], rank) if parsed is not None and name.endswith("/") else None
        if part is not None:
            found.append(part)
    return sorted(found, key=lambda part: (part.report.page.key, part.attempt), reverse=True)


def _part(place: Store, attempt: str, rank: int) -> Optional[Part]:
    name = layout.report_file(rank)
    try:
        data = place.read(f"{attempt}/{name}", layout.LARGEST_REPORT)
        return Part(attempt, Report.from_json(manifest.open_json(data, name)))
    except (FileNotFoundError, CheckpointError, TypeError, KeyError, ValueError):
        return None


def write(shard: SlotShard, place: Store, attempt: str, how: persist.How) -> Report:
    """Write one rank's part. Raises CheckpointError when another has taken the run's place on the disk, and as
    persist.write_shard."""
    _make(place.url)
    rank = shard.page.origin.rank
    try:
        record = persist.write_shard(shard, place, attempt, how)
    except FileExistsError:  # of an agent that died
        _remove(place, attempt, rank)
        record = persist.write_shard(shard, place, attempt, how)
    report = report_of(shard.slot, record)
    place.sync(attempt)
    failpoint("local.before_report")
    place.create(f"{attempt}/{layout.report_file(rank)}", manifest.seal_json(report.to_json()))
    failpoint("local.after_report")
    return report


def prune(place: Store, rank: int, *, upto: str, busy: Container[str]) -> None:
    """Remove this rank's parts older than the newest KEPT of those up to the attempt `upto`, except `busy` ones.

    `upto` is complete on all ranks; what is newer may never be and does not count. Also what a crash left half
    written. Raises OSError.
    """
    last = layout.parse_attempt(upto)
    assert last is not None
    older = [
        parsed
        for parsed in (layout.parse_attempt(name.rstrip("/")) for name in place.list())
        if parsed is not None and (parsed.epoch, parsed.seq) <= (last.epoch, last.seq)
    ]
    kept = 0
    for parsed in sorted(older, key=lambda parsed: (parsed.epoch, parsed.seq), reverse=True):
        attempt = str(parsed)
        if kept < KEPT and _part(place, attempt, rank) is not None:
            kept += 1
        elif attempt not in busy:
            _remove(place, attempt, rank)


class LocalDisk:
    """The parts of one rank, in `directory` on its node's own disk."""

    def __init__(self, directory: str, run_hash: str, rank: int) -> None:
        self.store = store(directory, run_hash)
        self._directory, self._run_hash, self._rank = directory, run_hash, rank

    def parts(self) -> List[Part]:
        """See reports."""
        return reports(self._directory, self._run_hash, self._rank)

    def prune(self, *, upto: str, busy: Container[str]) -> None:
        """See prune."""
        prune(self.store, self._rank, upto=upto, busy=busy)


def _remove(place: Store, attempt: str, rank: int) -> None:
    failpoint("local.before_remove")
    place.delete(f"{attempt}/{layout.report_file(rank)}")
    failpoint("local.report_removed")
    place.delete(f"{attempt}/{layout.shard_file(rank)}")
    place.delete(f"{attempt}/")
