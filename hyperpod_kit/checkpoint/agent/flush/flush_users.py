"""Flush for every user of this node: as root, in a child per user that has become that user.

Storage must see the owner's uid (an EFS access point, a quota), and what users left must never make root write
anything. Nothing of root's goes along: no environment, no descriptor, no group. The child never starts a program, so
its user cannot trace it, and it dies with whoever waits for it. What it answers is a word of that user's.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import sys
import time
from typing import Any, Callable, List, NoReturn, Optional, Tuple

from hyperpod_kit import audit
from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.agent.flush.flush_progress import STILL, Sign
from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.system.process import make_parent_death_hook
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import clean_one_line, counted

_MAX_RESPONSE_BYTES = 1 << 20
_MOST_RECORDS = 32
_READ_BYTES = 65536
_NOTE = 2000
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_EXIT = 2.0
"""Seconds that a child that has answered has for its end: then the kernel holds it on a dead mount."""

RESPONSE_GRACE = 5.0
"""Seconds beyond its time that a child has to say what it could not save, before it is killed."""


def flush_as(
    uid: int,
    *,
    folder: str,
    job: Optional[str],
    timeout: float,
    max_age: float,
    gid: Optional[int] = None,
    asked_by: str = "hyperpod-kit checkpoint flush",
    stall: Optional[float] = None,
    on_progress: Callable[[Sign], None] = lambda sign: None,
) -> List[flush.FlushOutcome]:
    """Flush the segments of `uid` in a child process, which is killed where it has no result a little after
    `timeout` seconds, or after `stall` seconds in which it has moved nothing.

    `on_progress` is called each second. `gid`: instead of the user's own group. What was done for another
    user is recorded in the audit log, as requested by `asked_by`. A child that hangs on a dead mount does
    not die: it is left behind, and holds nothing of the caller's, neither a pipe nor a file. Raises
    OSError.
    """

    def work() -> List[flush.FlushOutcome]:
        return flush.flush(
            folder=folder,
            job=job,
            timeout=timeout,
            limit=timeout,
            stall=timeout if stall is None else stall,
            max_age=max_age,
            on_progress=lambda sign: _write_sign(response_write_fd, sign),
        )

    # Not `system/bounded_child.py`: it becomes a user, has errors to pass on, and takes as long as it moves something.
    response_fd, response_write_fd = os.pipe()
    errors, put_error = os.pipe()
    parent = os.getpid()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(response_fd)
        os.close(errors)
        _run_work_in_child_and_exit(uid, gid, parent, response_write_fd, put_error, work)
    os.close(response_write_fd)
    os.close(put_error)
    limit = None
    if stall is not None:
        limit = stall + RESPONSE_GRACE
    try:
        data, failure = _read_response(
            response_fd, errors, time.monotonic() + timeout + RESPONSE_GRACE, limit, on_progress
        )
    finally:
        os.close(response_fd)
        os.close(errors)
    status = _wait_or_kill_child_zero_if_killed(pid, 0.0 if failure else _EXIT)
    if failure:
        return [flush.FlushOutcome(f"uid {uid}", None, False, failure.format(timeout=timeout, stall=stall))]
    if status:
        return [flush.FlushOutcome(f"uid {uid}", None, False, "failed, see standard error")]
    outcomes = _parse_outcomes(data)
    if outcomes is None:
        return [flush.FlushOutcome(f"uid {uid}", None, False, "its answer is invalid, see standard error")]
    if uid != os.geteuid():
        _record_in_audit_log(uid, outcomes, asked_by)
    return outcomes


def _run_work_in_child_and_exit(
    uid: int,
    gid: Optional[int],
    parent: int,
    response_write_fd: int,
    stderr_write_fd: int,
    work: Callable[[], List[Any]],
) -> NoReturn:
    code = 1
    try:
        _redirect_streams(stderr_write_fd)
        if uid != shm_paths.node_uid():
            _switch_user(uid, gid, response_write_fd)
            make_parent_death_hook(parent)()
        outcomes = work()
        with os.fdopen(response_write_fd, "w") as out:
            json.dump([list(outcome) for outcome in outcomes], out)
        code = 0
    except BaseException as err:
        print(f"flush of uid {uid}: {clean_one_line(f'{type(err).__name__}: {err}')}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _redirect_streams(stderr_write_fd: int) -> None:
    """Redirect stdin and stdout to /dev/null and stderr to the pipe: a reader of the caller's streams waits
    until no process has them any more."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.dup2(stderr_write_fd, 2)
    os.close(nowhere)
    os.close(stderr_write_fd)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def _write_sign(write_fd: int, sign: Sign) -> None:
    """A line, in one write: the answer, which has none, is what comes behind the last."""
    with contextlib.suppress(OSError):
        os.write(write_fd, json.dumps(list(sign)).encode() + b"\n")


def _parse_sign(line: bytes) -> Optional[Sign]:
    try:
        sign = Sign(*parse.parse_json(line, _READ_BYTES))
    except (ValueError, TypeError):
        return None
    good = type(sign.announced) is bool and all(type(number) in (int, float) and number >= 0 for number in sign[1:])
    if good:
        return sign
    return None


def _read_response(
    response_fd: int, stderr_fd: int, end: float, stall: Optional[float], on_progress: Callable[[Sign], None]
) -> Tuple[bytes, str]:
    """(what the child has written behind its signs, why it was not all of it or ""). Its errors are passed on."""
    poll = select.poll()
    poll.register(response_fd, select.POLLIN)
    poll.register(stderr_fd, select.POLLIN)
    data = bytearray()
    moved = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= end:
            return b"", "not done after {timeout:g} s"
        if stall is not None and now >= moved + stall:
            return b"", "it has made no progress for {stall:g} s"
        ready = poll.poll(((end if stall is None else min(end, moved + stall)) - now) * 1000)
        readable = {descriptor for descriptor, _ in ready}
        if stderr_fd in readable and not _forward_stderr(stderr_fd):
            poll.unregister(stderr_fd)
        if response_fd not in readable:
            continue
        part = os.read(response_fd, _READ_BYTES)
        if not part:
            _forward_stderr(stderr_fd)
            return bytes(data), ""
        data += part
        while b"\n" in data:
            line, _, rest = bytes(data).partition(b"\n")
            data = bytearray(rest)
            sign = _parse_sign(line)
            if sign is not None:
                moved = time.monotonic() if sign.still < STILL else moved
                on_progress(sign)
        if len(data) > _MAX_RESPONSE_BYTES:
            return b"", f"its answer has more than {_MAX_RESPONSE_BYTES} bytes"


def _forward_stderr(stderr_fd: int) -> bool:
    """Print what the child has written to standard error by now; return whether more may come."""
    if not select.select([stderr_fd], [], [], 0)[0]:
        return True
    text = os.read(stderr_fd, _READ_BYTES).decode("utf-8", "backslashreplace")
    for line in text.splitlines():
        print(clean_one_line(line, _NOTE), file=sys.stderr, flush=True)
    return bool(text)


def _wait_or_kill_child_zero_if_killed(pid: int, grace: float) -> int:
    """End the child, which has `grace` seconds to end by itself; its exit status, 0 too for one that has to be left
    behind."""
    done = status = 0

    def try_wait() -> int:
        nonlocal done, status
        done, status = os.waitpid(pid, os.WNOHANG)
        return done

    poll_until(try_wait, bool, fixed_pause(0.005), seconds=grace)
    if not done:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return 0
    return status


def _parse_outcomes(data: bytes) -> Optional[List[flush.FlushOutcome]]:
    try:
        rows: Any = parse.parse_json(data, _MAX_RESPONSE_BYTES)
        outcomes = [flush.FlushOutcome(*row) for row in rows]
    except (ValueError, TypeError):
        return None
    for outcome in outcomes:
        if (
            not isinstance(outcome.run, str)
            or not isinstance(outcome.note, str)
            or type(outcome.removed) is not bool
            or type(outcome.again) is not bool
            or not isinstance(outcome.attempt, (str, type(None)))
            or not isinstance(outcome.lost, str)
        ):
            return None
    return [
        flush.FlushOutcome(
            clean_one_line(outcome.run),
            clean_one_line(outcome.attempt) if outcome.attempt else None,
            outcome.removed,
            clean_one_line(outcome.note, _NOTE),
            outcome.again,
            clean_one_line(outcome.lost, _NOTE),
        )
        for outcome in outcomes
    ]


def _record_in_audit_log(uid: int, outcomes: List[flush.FlushOutcome], asked_by: str) -> None:
    recorded = [outcome for outcome in outcomes if outcome.removed or outcome.attempt or outcome.lost]
    for outcome in recorded[:_MOST_RECORDS]:
        audit.record_root_action_in_journal(
            "flushed", f"run {outcome.run}", outcome.note, asked_by=asked_by, owner=f"uid {uid}"
        )
    if len(recorded) > _MOST_RECORDS:
        audit.record_root_action_in_journal(
            "flushed",
            counted(len(recorded) - _MOST_RECORDS, "more run"),
            "as the ones before",
            asked_by=asked_by,
            owner=f"uid {uid}",
        )


def _switch_user(uid: int, gid: Optional[int], kept_fd: int) -> None:
    """Become the user for good, with that user's groups (none for a user without an entry) and a new
    environment, and close every descriptor above 2 but `kept_fd`."""
    environment = {"PATH": PATH, "LANG": "C.UTF-8"}
    try:
        entry = pwd.getpwuid(uid)
        if gid is None:
            gid = entry.pw_gid
        os.initgroups(entry.pw_name, gid)
        environment.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
    except KeyError:
        if gid is None:
            gid = uid
        os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.umask(0o022)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environment)
    os.closerange(3, kept_fd)
    os.closerange(kept_fd + 1, os.sysconf("SC_OPEN_MAX"))
