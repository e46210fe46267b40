"""Lustre's HSM: files whose bytes are in S3 alone are restored, and asked about until every one is here.

`lfs hsm_restore` only puts a request into a queue: what says that a file is here is its own state. A request that the
queue has lost (no action any more, and still released) is made again, a few times.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Callable, Iterator, Sequence, TypeVar

from hyperpod_kit.errors import HyperpodKitError, RunError
from hyperpod_kit.run import Runner

BATCH = 200
"""Files a command: long paths stay below the kernel's limit of an argument list."""
TRIES = 3
SECONDS = 120.0
RELEASED, LOST = 0x4, 0x40
_STATE = re.compile(r": \(0x([0-9a-fA-F]{8})\)")


class PreloadError(HyperpodKitError):
    """A tool did not answer as it does."""


@dataclass
class HsmDone:
    """What became of it. `here`: files that are on Lustre's own disks now; `failed`: path -> why."""

    here: list[str]
    failed: dict[str, str]


Look = Callable[[str], str]
"""Why `lfs` is not to be asked about a path, nothing where it is."""


def states(
    runner: Runner, paths: Sequence[str], failed: dict[str, str] | None = None, look: Look = lambda path: ""
) -> dict[str, int]:
    """HSM flags of each file, as `lfs hsm_state` prints them. Of which files it is not asked goes into `failed`.

    Raises PreloadError, RunError.
    """
    flags: dict[str, int] = {}
    for batch in _batches(list(paths)):
        flags.update(_answer(runner, "hsm_state", batch, parse, {} if failed is None else failed, look))
    return flags


_Answer = TypeVar("_Answer")


def _answer(
    runner: Runner,
    verb: str,
    paths: Sequence[str],
    read: Callable[[str, Sequence[str]], _Answer],
    failed: dict[str, str],
    look: Look,
) -> _Answer:
    """What `read(printed, paths)` makes of a command of `lfs`. One file that is in its way fails alone: where the
    command does not succeed, it is run again without those that are gone, or have come to lie behind a mount.

    Raises PreloadError, RunError.
    """
    asked = _clear(paths, failed, look)
    while asked:
        try:
            return read(runner.run(["lfs", verb, *asked], timeout=SECONDS, check=verb == "hsm_state").stdout, asked)
        except (PreloadError, RunError):
            remaining = _clear(asked, failed, look)
            if remaining == asked:
                raise
            asked = remaining
    return read("", [])


def _clear(paths: Sequence[str], failed: dict[str, str], look: Look) -> list[str]:
    """Those that `lfs` may be asked about; of the others `failed` says why not."""
    reasons = {path: look(path) for path in paths}
    failed.update({path: reason for path, reason in reasons.items() if reason})
    return [path for path, reason in reasons.items() if not reason]


def parse(text: str, paths: Sequence[str]) -> dict[str, int]:
    """`PATH: (0x0000000d) released exists archived, archive_id:1` each, in the order asked. Raises PreloadError.

    A path may have a line's end in it, so each is looked for as it was asked.
    """
    flags: dict[str, int] = {}
    at = 0
    for path in paths:
        begin = text.find(path, at)
        match = _STATE.match(text, begin + len(path)) if begin >= 0 else None
        if match is None:
            answer = text[at : at + 200].strip()
            raise PreloadError(f"{path}: `lfs hsm_state` answered {answer!r}, expected its path and (0x…)")
        flags[path], at = int(match[1], 16), match.end()
    return flags


def restore(
    runner: Runner,
    paths: Sequence[str],
    progress: Callable[[int], None],
    *,
    look: Look = lambda path: "",
    patience: float = 3600.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> HsmDone:
    """Restore what is released, and look until all is here.

    `progress(files here)`; `look`: before each command; `patience`: seconds without a change. Raises PreloadError,
    RunError.
    """
    done = HsmDone([], {})
    waiting: dict[str, int] = {}
    for path, flags in states(runner, paths, done.failed, look).items():
        if flags & LOST:
            done.failed[path] = "its archived copy is lost, Lustre says"
        elif flags & RELEASED:
            waiting[path] = 0
        else:
            done.here.append(path)
    _request(runner, waiting, done, look)
    last, pause = clock(), 1.0
    while waiting:
        progress(len(done.here))
        sleep(pause)
        pause = min(pause * 1.5, 15.0)
        current = states(runner, list(waiting), done.failed, look)
        arrived = [path for path, flags in current.items() if not flags & RELEASED]
        for path in arrived:
            del waiting[path]
            done.here.append(path)
        _give_up(waiting, done)
        if arrived:
            last, pause = clock(), 1.0
        elif clock() - last > patience:
            done.failed.update({path: f"still released after {patience:.0f} s without a change" for path in waiting})
            break
        _again(runner, waiting, done, look)
    progress(len(done.here))
    return done


def _request(runner: Runner, waiting: dict[str, int], done: HsmDone, look: Look) -> None:
    for batch in _batches(list(waiting)):
        asked = _answer(runner, "hsm_restore", batch, lambda printed, paths: list(paths), done.failed, look)
        for path in asked:
            waiting[path] += 1
    _give_up(waiting, done)


def _again(runner: Runner, waiting: dict[str, int], done: HsmDone, look: Look) -> None:
    """Ask once more for what nobody works at, and give up what was asked for often enough."""
    idle = [
        path
        for batch in _batches(list(waiting))
        for path in _answer(runner, "hsm_action", batch, _idle, done.failed, look)
    ]
    # Between the two questions it may have come.
    idle = [path for path, flags in states(runner, idle, done.failed, look).items() if flags & RELEASED]
    for path in [path for path in idle if waiting[path] >= TRIES]:
        done.failed[path] = f"asked for {waiting.pop(path)} times, and Lustre dropped each request"
    lost = {path: waiting[path] for path in idle if path in waiting}
    _request(runner, lost, done, look)
    waiting.update(lost)
    _give_up(waiting, done)


def _give_up(waiting: dict[str, int], done: HsmDone) -> None:
    for path in [path for path in waiting if path in done.failed]:
        del waiting[path]


def _idle(printed: str, paths: Sequence[str]) -> list[str]:
    """Those of which `lfs hsm_action` prints `PATH: NOOP`."""
    return [path for path in paths if f"{path}: NOOP" in printed]


def _batches(paths: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(paths), BATCH):
        yield paths[start : start + BATCH]
