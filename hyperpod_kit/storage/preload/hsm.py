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
MAX_ATTEMPTS = 3
TIMEOUT = 120.0
RELEASED, LOST = 0x4, 0x40
_STATE = re.compile(r": \(0x([0-9a-fA-F]{8})\)")


class PreloadError(HyperpodKitError):
    """A tool printed something unexpected."""


@dataclass
class HsmResult:
    """Result of a restore. `here`: files that are on Lustre's own disks now; `failed`: path -> why."""

    here: list[str]
    failed: dict[str, str]


AccessCheck = Callable[[str], str]
"""Why `lfs` is not to be asked about a path, nothing where it is."""


def read_hsm_flags(
    runner: Runner,
    paths: Sequence[str],
    failed: dict[str, str] | None = None,
    access_check: AccessCheck = lambda path: "",
) -> dict[str, int]:
    """Read the HSM flags of each file, as `lfs hsm_state` prints them.

    Of which files it is not asked goes into `failed`.

    Raises PreloadError, RunError.
    """
    if failed is None:
        failed = {}
    flags: dict[str, int] = {}
    for batch in _batches(list(paths)):
        flags.update(_run_lfs(runner, "hsm_state", batch, parse_hsm_flags, failed, access_check))
    return flags


_Parsed = TypeVar("_Parsed")


def _run_lfs(
    runner: Runner,
    verb: str,
    paths: Sequence[str],
    parse_output: Callable[[str, Sequence[str]], _Parsed],
    failed: dict[str, str],
    access_check: AccessCheck,
) -> _Parsed:
    """Run a command of `lfs` and parse what it prints by `parse_output(printed, paths)`.

    One file that is in its way fails alone: where the command does not succeed, it is run again without those that are
    gone, or have come to lie behind a mount.

    Raises PreloadError, RunError.
    """
    accessible = _drop_and_record_inaccessible(paths, failed, access_check)
    while accessible:
        try:
            return parse_output(
                runner.run(["lfs", verb, *accessible], timeout=TIMEOUT, check=verb == "hsm_state").stdout, accessible
            )
        except (PreloadError, RunError):
            remaining = _drop_and_record_inaccessible(accessible, failed, access_check)
            if remaining == accessible:
                raise
            accessible = remaining
    return parse_output("", [])


def _drop_and_record_inaccessible(paths: Sequence[str], failed: dict[str, str], access_check: AccessCheck) -> list[str]:
    """Return the paths that `lfs` may be run on, and record in `failed` why the others may not."""
    reasons = {path: access_check(path) for path in paths}
    failed.update({path: reason for path, reason in reasons.items() if reason})
    return [path for path, reason in reasons.items() if not reason]


def parse_hsm_flags(text: str, paths: Sequence[str]) -> dict[str, int]:
    """Parse `PATH: (0x0000000d) released exists archived, archive_id:1` each, in the order asked. Raises PreloadError.

    A path may have a line's end in it, so each is looked for as it was asked.
    """
    flags: dict[str, int] = {}
    at = 0
    for path in paths:
        start = text.find(path, at)
        match = None
        if start >= 0:
            match = _STATE.match(text, start + len(path))
        if match is None:
            output = text[at : at + 200].strip()
            raise PreloadError(f"{path}: `lfs hsm_state` answered {output!r}, expected its path and (0x…)")
        flags[path], at = int(match[1], 16), match.end()
    return flags


def restore_and_wait(
    runner: Runner,
    paths: Sequence[str],
    progress: Callable[[int], None],
    *,
    access_check: AccessCheck = lambda path: "",
    patience: float = 3600.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> HsmResult:
    """Request the restore of released files, and wait until every one is here or has failed.

    `progress(files here)`; `access_check`: before each command; `patience`: seconds without a change.
    Raises PreloadError, RunError.
    """
    result = HsmResult([], {})
    waiting: dict[str, int] = {}
    for path, flags in read_hsm_flags(runner, paths, result.failed, access_check).items():
        if flags & LOST:
            result.failed[path] = "Lustre reports that its archived copy is lost"
        elif flags & RELEASED:
            waiting[path] = 0
        else:
            result.here.append(path)
    _request_restore(runner, waiting, result, access_check)
    changed_at, pause = clock(), 1.0
    while waiting:
        progress(len(result.here))
        sleep(pause)
        pause = min(pause * 1.5, 15.0)
        current = read_hsm_flags(runner, list(waiting), result.failed, access_check)
        arrived = [path for path, flags in current.items() if not flags & RELEASED]
        for path in arrived:
            del waiting[path]
            result.here.append(path)
        _drop_failed(waiting, result)
        if arrived:
            changed_at, pause = clock(), 1.0
        elif clock() - changed_at > patience:
            result.failed.update({path: f"still released after {patience:.0f} s without a change" for path in waiting})
            break
        _repeat_dropped_requests_or_give_up(runner, waiting, result, access_check)
    progress(len(result.here))
    return result


def _request_restore(runner: Runner, waiting: dict[str, int], result: HsmResult, access_check: AccessCheck) -> None:
    for batch in _batches(list(waiting)):
        requested = _run_lfs(
            runner, "hsm_restore", batch, lambda printed, paths: list(paths), result.failed, access_check
        )
        for path in requested:
            waiting[path] += 1
    _drop_failed(waiting, result)


def _repeat_dropped_requests_or_give_up(
    runner: Runner, waiting: dict[str, int], result: HsmResult, access_check: AccessCheck
) -> None:
    """Request again what Lustre has dropped, and give up what was requested often enough."""
    idle = [
        path
        for batch in _batches(list(waiting))
        for path in _run_lfs(runner, "hsm_action", batch, _parse_idle_paths, result.failed, access_check)
    ]
    # Between the two questions it may have come.
    idle = [
        path for path, flags in read_hsm_flags(runner, idle, result.failed, access_check).items() if flags & RELEASED
    ]
    for path in [path for path in idle if waiting[path] >= MAX_ATTEMPTS]:
        result.failed[path] = f"requested {waiting.pop(path)} times, and Lustre dropped each request"
    lost = {path: waiting[path] for path in idle if path in waiting}
    _request_restore(runner, lost, result, access_check)
    waiting.update(lost)
    _drop_failed(waiting, result)


def _drop_failed(waiting: dict[str, int], result: HsmResult) -> None:
    for path in [path for path in waiting if path in result.failed]:
        del waiting[path]


def _parse_idle_paths(printed: str, paths: Sequence[str]) -> list[str]:
    """List the paths of which `lfs hsm_action` prints `PATH: NOOP`."""
    return [path for path in paths if f"{path}: NOOP" in printed]


def _batches(paths: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(paths), BATCH):
        yield paths[start : start + BATCH]
