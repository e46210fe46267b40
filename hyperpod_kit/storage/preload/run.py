"""One preload: look, bring by the way that the file system has, look again; what is not here is named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.run import Runner
from hyperpod_kit.storage.preload import hsm, through
from hyperpod_kit.storage.preload.files import PreloadList, WantedFile
from hyperpod_kit.system import mountinfo
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerPatience

LUSTRE, OTHERS = "restored by Lustre's HSM", "read through its mount"
LFS = OwnerPatience(answer=2 * hsm.SECONDS)
"""`lfs` has a deadline of its own, and what it does is not counted."""
HELD_BACK = 1000
"""Failures that are listed; more are counted."""


@dataclass(frozen=True)
class Preloaded:
    """What is here. `ways`: how many files each way brought; `failed`: path -> why it is not here."""

    files: int
    size: int
    ways: dict[str, int]
    failed: dict[str, str]
    unread: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether every file that was asked for is here."""
        return not self.failed and not self.unread

    def to_json(self) -> dict[str, Any]:
        """Counts, and the first failures."""
        some = dict(list(self.failed.items())[:HELD_BACK])
        return {**vars(self), "failed": some, "failed_files": len(self.failed), "whole": self.whole}


def plan(wanted: PreloadList, mounts: Optional[str] = None) -> dict[str, list[WantedFile]]:
    """Way -> files. `mounts`: the text of mountinfo, this machine's by default."""
    mounts = mountinfo.read() if mounts is None else mounts
    found: dict[str, list[WantedFile]] = {LUSTRE: [], OTHERS: []}
    kinds: dict[str, str] = {}
    for one in wanted.files:
        directory = one.folder or os.path.dirname(one.path)
        if directory not in kinds:
            entry = mountinfo.holding(mounts, one.folder or os.path.realpath(directory))
            kinds[directory] = "" if entry is None else entry.fs_type
        found[LUSTRE if kinds[directory] == "lustre" else OTHERS].append(one)
    return found


def run(
    wanted: PreloadList,
    ways: dict[str, list[WantedFile]],
    runner: Runner,
    told: Callable[[str], None],
    *,
    workers: int = 16,
    rate: Optional[float] = None,
    patience: float = 3600.0,
) -> Preloaded:
    """Bring them. Exactly the files of `wanted` are answered for. Raises PreloadError, RunError."""
    failed: dict[str, str] = {}
    on_lustre, others = ways[LUSTRE], ways[OTHERS]
    if on_lustre:
        failed.update(_restored(on_lustre, runner, told, patience))
    if others:
        failed.update(_read(others, told, workers, rate))
    failed.update(_not_here(on_lustre, failed, runner))
    counts = {way: len(of) for way, of in ways.items() if of}
    return Preloaded(len(wanted.files), wanted.size, counts, failed, wanted.unread)


def _owners(files: Sequence[WantedFile]) -> Iterator[tuple[Optional[int], list[WantedFile]]]:
    """Files by whose they are: root brings each user's as that user."""
    owners: dict[Optional[int], list[WantedFile]] = {}
    for one in files:
        owners.setdefault(one.uid, []).append(one)
    yield from owners.items()


def _restored(
    files: Sequence[WantedFile], runner: Runner, told: Callable[[str], None], patience: float
) -> dict[str, str]:
    failed: dict[str, str] = {}
    before = 0
    for uid, some in _owners(files):
        paths = [one.path for one in some]

        def work(tell: Callable[[Any], None], paths: list[str] = paths) -> dict[str, str]:
            return hsm.restore(runner, paths, tell, patience=patience).failed

        def heard(here: int, before: int = before) -> None:
            told(f"{before + here:,} of {len(files):,} files restored")

        failed.update(_as_user(uid, some, work, heard))
        before += len(some)
    return failed


def _read(
    files: Sequence[WantedFile], told: Callable[[str], None], workers: int, rate: Optional[float]
) -> dict[str, str]:
    failed: dict[str, str] = {}
    total, before = sum(one.size for one in files), 0
    for uid, some in _owners(files):

        def work(tell: Callable[[Any], None], some: list[WantedFile] = some) -> dict[str, str]:
            return through.read_all(some, tell, workers=workers, rate=rate)

        def heard(count: int, before: int = before) -> None:
            told(f"{(before + count) / 2**20:,.0f} of {total / 2**20:,.0f} MiB read")

        failed.update(_as_user(uid, some, work, heard))
        before += sum(one.size for one in some)
    return failed


def _as_user(
    uid: Optional[int],
    files: Sequence[WantedFile],
    work: Callable[[Callable[[Any], None]], dict[str, str]],
    heard: Callable[[Any], None],
) -> dict[str, str]:
    """Path -> why it is not here. What one user's files do does not end the others'."""
    try:
        failed: dict[str, str] = owner.streamed(files[0].path, uid, work, heard, LFS)
        return failed
    except (HyperpodKitError, OSError) as err:
        if not uid:
            raise
        return dict.fromkeys((one.path for one in files), str(err))


def _not_here(files: Sequence[WantedFile], failed: dict[str, str], runner: Runner) -> dict[str, str]:
    """What Lustre has released again meanwhile: a file system that is nearly full does that."""
    released: dict[str, str] = {}
    for uid, some in _owners([one for one in files if one.path not in failed]):
        paths = [one.path for one in some]

        def work(tell: Callable[[Any], None], paths: list[str] = paths) -> dict[str, str]:
            states = hsm.states(runner, paths)
            again = [path for path, flags in states.items() if flags & hsm.RELEASED]
            return dict.fromkeys(again, "released again, before the end: is the file system full?")

        released.update(_as_user(uid, some, work, lambda words: None))
    return released
