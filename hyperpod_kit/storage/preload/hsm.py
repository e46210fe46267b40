"""Lustre's HSM: files whose bytes are in S3 alone are restored, and asked about until every one is here.

`lfs hsm_restore` only puts a request into a queue: what says that a file is here is its own state. A request that the
queue has lost (no action any more, and still released) is made again, a few times.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Callable, Iterator, Sequence

from hyperpod_kit.errors import HyperpodKitError
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


def states(runner: Runner, paths: Sequence[str]) -> dict[str, int]:
    """HSM flags of each file, as `lfs hsm_state` prints them. Raises PreloadError, RunError."""
    flags: dict[str, int] = {}
    for start in range(0, len(paths), BATCH):
        batch = paths[start : start + BATCH]
        flags.update(parse(runner.run(["lfs", "hsm_state", *batch], timeout=SECONDS).stdout, batch))
    return flags


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
    patience: float = 3600.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> HsmDone:
    """Restore what is released, and look until all is here.

    `progress(files here)`; `patience`: seconds without a change. Raises PreloadError, RunError.
    """
    done = HsmDone([], {})
    waiting: dict[str, int] = {}
    for path, flags in states(runner, paths).items():
        if flags & LOST:
            done.failed[path] = "its archived copy is lost, Lustre says"
        elif flags & RELEASED:
            waiting[path] = 0
        else:
            done.here.append(path)
    _request(runner, waiting)
    last, pause = clock(), 1.0
    while waiting:
        progress(len(done.here))
        sleep(pause)
        pause = min(pause * 1.5, 15.0)
        arrived = [path for path, flags in states(runner, list(waiting)).items() if not flags & RELEASED]
        for path in arrived:
            del waiting[path]
            done.here.append(path)
        if arrived:
            last, pause = clock(), 1.0
        elif clock() - last > patience:
            done.failed.update({path: f"still released after {patience:.0f} s without a change" for path in waiting})
            break
        _again(runner, waiting, done)
    progress(len(done.here))
    return done


def _request(runner: Runner, waiting: dict[str, int]) -> None:
    for batch in _batches(list(waiting)):
        runner.run(["lfs", "hsm_restore", *batch], timeout=SECONDS, check=False)
        for path in batch:
            waiting[path] += 1


def _again(runner: Runner, waiting: dict[str, int], done: HsmDone) -> None:
    """Ask once more for what nobody works at, and give up what was asked for often enough."""
    idle = [path for batch in _batches(list(waiting)) for path in _idle(runner, batch)]
    # Between the two questions it may have come.
    idle = [path for path, flags in states(runner, idle).items() if flags & RELEASED]
    for path in [path for path in idle if waiting[path] >= TRIES]:
        done.failed[path] = f"asked for {waiting.pop(path)} times, and Lustre dropped each request"
    lost = {path: waiting[path] for path in idle if path in waiting}
    _request(runner, lost)
    waiting.update(lost)


def _idle(runner: Runner, batch: Sequence[str]) -> Iterator[str]:
    """Those of which `lfs hsm_action` prints `PATH: NOOP`."""
    text = runner.run(["lfs", "hsm_action", *batch], timeout=SECONDS, check=False).stdout
    for path in batch:
        if f"{path}: NOOP" in text:
            yield path


def _batches(paths: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(paths), BATCH):
        yield paths[start : start + BATCH]
