"""One preload: look, bring by the way that the file system has, look again; what is not here is named."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.errors import HyperpodKitError, Unreachable
from hyperpod_kit.run import Runner
from hyperpod_kit.storage.preload import hsm, read_through
from hyperpod_kit.storage.preload.files import PreloadFile, PreloadList, access_problem
from hyperpod_kit.system import mountinfo
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerLimits

LUSTRE, READ_THROUGH = "restored by Lustre's HSM", "read through its mount"
LFS = OwnerLimits(silence=2 * hsm.TIMEOUT)
"""`lfs` has a deadline of its own, and what it does is not counted."""
MAX_LISTED = 1000
"""Failures that are listed; more are counted."""


@dataclass(frozen=True)
class PreloadResult:
    """Result of a preload. `ways`: how many files each way brought; `failed`: path -> why it is not here."""

    files: int
    size: int
    ways: dict[str, int]
    failed: dict[str, str]
    unread: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every file that was asked for is here."""
        return not self.failed and not self.unread

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: counts, and the first failures."""
        listed = dict(list(self.failed.items())[:MAX_LISTED])
        return {**vars(self), "failed": listed, "failed_files": len(self.failed), "whole": self.is_complete}


def group_files_by_hsm_or_read_through(
    listed: PreloadList, mountinfo_text: Optional[str] = None
) -> dict[str, list[PreloadFile]]:
    """Choose a way for each file: way -> files. `mounts`: the text of mountinfo, this machine's by default."""
    mountinfo_text = mountinfo.read_mountinfo() if mountinfo_text is None else mountinfo_text
    by_way: dict[str, list[PreloadFile]] = {LUSTRE: [], READ_THROUGH: []}
    kinds: dict[str, str] = {}
    for file in listed.files:
        directory = file.folder or os.path.dirname(file.path)
        if directory not in kinds:
            entry = mountinfo.mount_containing_path(mountinfo_text, file.folder or os.path.realpath(directory))
            kinds[directory] = "" if entry is None else entry.fs_type
        way = LUSTRE if kinds[directory] == "lustre" else READ_THROUGH
        by_way[way].append(file)
    return by_way


def run_preload(
    listed: PreloadList,
    ways: dict[str, list[PreloadFile]],
    runner: Runner,
    progress: Callable[[str], None],
    *,
    workers: int = 16,
    rate: Optional[float] = None,
    patience: float = 3600.0,
) -> PreloadResult:
    """Preload files. Exactly the files of `listed` are answered for. Raises PreloadError, RunError."""
    failed: dict[str, str] = {}
    on_lustre, to_read = ways[LUSTRE], ways[READ_THROUGH]
    if on_lustre:
        failed.update(_restore_files_from_hsm(on_lustre, runner, progress, patience))
    if to_read:
        failed.update(_read_files_through(to_read, progress, workers, rate))
    failed.update(_find_released_again(on_lustre, failed, runner))
    counts = {way: len(files_of_way) for way, files_of_way in ways.items() if files_of_way}
    return PreloadResult(len(listed.files), listed.total_bytes, counts, failed, listed.unread)


def _group_by_owner(files: Sequence[PreloadFile]) -> Iterator[tuple[Optional[int], list[PreloadFile]]]:
    """Group files by owner: root brings each user's as that user."""
    owners: dict[Optional[int], list[PreloadFile]] = {}
    for file in files:
        owners.setdefault(file.uid, []).append(file)
    yield from owners.items()


def _restore_files_from_hsm(
    files: Sequence[PreloadFile], runner: Runner, progress: Callable[[str], None], patience: float
) -> dict[str, str]:
    failed: dict[str, str] = {}
    before = 0
    for uid, of_user in _group_by_owner(files):
        paths = [file.path for file in of_user]

        def work(report: Callable[[Any], None], paths: list[str] = paths, uid: Optional[int] = uid) -> dict[str, str]:
            return hsm.restore_and_wait(
                runner, paths, report, access_check=_choose_access_check(uid), patience=patience
            ).failed

        def on_report(here: int, before: int = before) -> None:
            progress(f"{before + here:,} of {len(files):,} files restored")

        failed.update(_run_as_user_collecting_failures(uid, {file.path: file for file in of_user}, work, on_report))
        before += len(of_user)
    return failed


def _read_files_through(
    files: Sequence[PreloadFile], progress: Callable[[str], None], workers: int, rate: Optional[float]
) -> dict[str, str]:
    failed: dict[str, str] = {}
    total, before = sum(file.size for file in files), 0
    for uid, of_user in _group_by_owner(files):
        # Of a child that is ended what it had read stays read.
        waiting = {file.path: file for file in of_user}

        def work(report: Callable[[Any], None], of_user: list[PreloadFile] = of_user) -> dict[str, str]:
            return read_through.read_files_through(
                of_user, report, on_finished=lambda *finished: report(finished), workers=workers, rate=rate
            )

        def on_report(reported: Any, before: int = before, waiting: dict[str, PreloadFile] = waiting) -> None:
            if isinstance(reported, int):
                progress(f"{(before + reported) / 2**20:,.0f} of {total / 2**20:,.0f} MiB read")
                return
            path, reason = reported
            waiting.pop(path, None)
            if reason:
                failed[path] = reason

        failed.update(_run_as_user_collecting_failures(uid, waiting, work, on_report))
        before += sum(file.size for file in of_user)
    return failed


def _choose_access_check(uid: Optional[int]) -> hsm.AccessCheck:
    """Return the check of access to files of `uid`; of a user's own files (None) only that they exist."""
    if uid is None:
        return _missing_reason
    return access_problem


def _missing_reason(path: str) -> str:
    if os.path.lexists(path):
        return ""
    return os.strerror(errno.ENOENT)


def _run_as_user_collecting_failures(
    uid: Optional[int],
    waiting: Mapping[str, PreloadFile],
    work: Callable[[Callable[[Any], None]], dict[str, str]],
    on_report: Callable[[Any], None],
) -> dict[str, str]:
    """Preload files as their owner; returns path -> why it is not here, of those that `waiting` has at the end.

    What one user's files do does not end the others', and what lets wait does not end those of root's either.
    """
    try:
        failed: dict[str, str] = owner.run_as_user_with_reports(next(iter(waiting)), uid, work, on_report, LFS)
        return failed
    except (HyperpodKitError, OSError) as err:
        if not uid and not isinstance(err, Unreachable):
            raise
        return dict.fromkeys(waiting, str(err))


def _find_released_again(files: Sequence[PreloadFile], failed: dict[str, str], runner: Runner) -> dict[str, str]:
    """Find what Lustre has released again meanwhile: a file system that is nearly full does that."""
    released: dict[str, str] = {}
    for uid, of_user in _group_by_owner([file for file in files if file.path not in failed]):
        paths = [file.path for file in of_user]

        def work(report: Callable[[Any], None], paths: list[str] = paths, uid: Optional[int] = uid) -> dict[str, str]:
            failed_now: dict[str, str] = {}
            states = hsm.read_hsm_flags(runner, paths, failed_now, _choose_access_check(uid))
            again = [path for path, flags in states.items() if flags & hsm.RELEASED]
            return {**failed_now, **dict.fromkeys(again, "released again, before the end: is the file system full?")}

        released.update(
            _run_as_user_collecting_failures(uid, {file.path: file for file in of_user}, work, lambda value: None)
        )
    return released
