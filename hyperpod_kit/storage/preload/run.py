"""One preload: look, bring by the way that the file system has, look again; what is not here is named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

from hyperpod_kit.run import Runner
from hyperpod_kit.storage.preload import hsm, through
from hyperpod_kit.storage.preload.files import PreloadList, WantedFile
from hyperpod_kit.system import mountinfo

LUSTRE, OTHERS = "restored by Lustre's HSM", "read through its mount"
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
        directory = os.path.dirname(one.path)
        if directory not in kinds:
            entry = mountinfo.holding(mounts, os.path.realpath(directory))
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
        count = len(on_lustre)
        done = hsm.restore(
            runner,
            [one.path for one in on_lustre],
            lambda here: told(f"{here:,} of {count:,} files restored"),
            patience=patience,
        )
        failed.update(done.failed)
    if others:
        total = sum(one.size for one in others)
        failed.update(
            through.read_all(
                others,
                lambda count: told(f"{count / 2**20:,.0f} of {total / 2**20:,.0f} MiB read"),
                workers=workers,
                rate=rate,
            )
        )
    failed.update(_not_here(on_lustre, failed, runner))
    counts = {way: len(of) for way, of in ways.items() if of}
    return Preloaded(len(wanted.files), wanted.size, counts, failed, wanted.unread)


def _not_here(files: Sequence[WantedFile], failed: dict[str, str], runner: Runner) -> dict[str, str]:
    """What Lustre has released again meanwhile: a file system that is nearly full does that."""
    paths = [one.path for one in files if one.path not in failed]
    again = [path for path, flags in hsm.states(runner, paths).items() if flags & hsm.RELEASED]
    return dict.fromkeys(again, "released again, before the end: is the file system full?")
