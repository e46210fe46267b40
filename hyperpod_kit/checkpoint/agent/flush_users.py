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
from hyperpod_kit.checkpoint.agent import flush, places
from hyperpod_kit.checkpoint.agent.flush_progress import STILL, Sign
from hyperpod_kit.system.process import dies_with
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import clean

_LONGEST_ANSWER = 1 << 20
_MOST_RECORDS = 32
_PIECE = 65536
_NOTE = 2000
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_EXIT = 2.0
"""Seconds that a child that has answered has for its end: then the kernel holds it on a dead mount."""

ANSWERING = 5.0
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
    tell: Callable[[Sign], None] = lambda sign: None,
) -> List[flush.FlushOutcome]:
    """Flush the segments of `uid` in a child process, which is killed where it has no answer a little after `timeout`
    seconds, or after `stall` seconds in which it has moved nothing. `tell` hears each second how far it is. Raises
    OSError.

    A child that hangs on a dead mount does not die: it is left behind, and holds nothing of the caller's, neither a
    pipe nor a file. `gid`: instead of the user's own group. What was done for another user is recorded, as asked for by
    `asked_by`.
    """

    def work() -> List[flush.FlushOutcome]:
        return flush.flush(
            folder=folder,
            job=job,
            timeout=timeout,
            limit=timeout,
            stall=timeout if stall is None else stall,
            max_age=max_age,
            tell=lambda sign: _put(put_answer, sign),
        )

    answer, put_answer = os.pipe()
    errors, put_error = os.pipe()
    parent = os.getpid()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(answer)
        os.close(errors)
        _child(uid, gid, parent, put_answer, put_error, work)
    os.close(put_answer)
    os.close(put_error)
    limit = stall + ANSWERING if stall is not None else None
    try:
        data, failure = _answer(answer, errors, time.monotonic() + timeout + ANSWERING, limit, tell)
    finally:
        os.close(answer)
        os.close(errors)
    status = _end(pid, 0.0 if failure else _EXIT)
    if failure:
        return [flush.FlushOutcome(f"uid {uid}", None, False, failure.format(timeout=timeout, stall=stall))]
    if status:
        return [flush.FlushOutcome(f"uid {uid}", None, False, "failed, see standard error")]
    outcomes = _outcomes(data)
    if outcomes is None:
        return [flush.FlushOutcome(f"uid {uid}", None, False, "its answer is none, see standard error")]
    if uid != os.geteuid():
        _record(uid, outcomes, asked_by)
    return outcomes


def _child(
    uid: int, gid: Optional[int], parent: int, put_answer: int, put_error: int, work: Callable[[], List[Any]]
) -> NoReturn:
    code = 1
    try:
        _leave_streams(put_error)
        if uid != places.node_uid():
            _become(uid, gid, put_answer)
            dies_with(parent)()
        outcomes = work()
        with os.fdopen(put_answer, "w") as out:
            json.dump([list(outcome) for outcome in outcomes], out)
        code = 0
    except BaseException as err:
        print(f"flush of uid {uid}: {clean(f'{type(err).__name__}: {err}')}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _leave_streams(put_error: int) -> None:
    """Let go of the caller's input and output: whoever reads them waits until nobody has them any more."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.dup2(put_error, 2)
    os.close(nowhere)
    os.close(put_error)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def _put(write: int, sign: Sign) -> None:
    """A line, in one write: the answer, which has none, is what comes behind the last."""
    with contextlib.suppress(OSError):
        os.write(write, json.dumps(list(sign)).encode() + b"\n")


def _sign(line: bytes) -> Optional[Sign]:
    try:
        found = Sign(*parse.document(line, _PIECE))
    except (ValueError, TypeError):
        return None
    good = type(found.announced) is bool and all(type(one) in (int, float) and one >= 0 for one in found[1:])
    return found if good else None


def _answer(
    answer: int, errors: int, end: float, stall: Optional[float], tell: Callable[[Sign], None]
) -> Tuple[bytes, str]:
    """(what the child has written behind its signs, why it was not all of it or ""). Its errors are passed on."""
    poll = select.poll()
    poll.register(answer, select.POLLIN)
    poll.register(errors, select.POLLIN)
    data = bytearray()
    moved = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= end:
            return b"", "not done after {timeout:g} s"
        if stall is not None and now >= moved + stall:
            return b"", "it has moved nothing for {stall:g} s"
        ready = poll.poll(((end if stall is None else min(end, moved + stall)) - now) * 1000)
        readable = {descriptor for descriptor, _ in ready}
        if errors in readable and not _pass_on(errors):
            poll.unregister(errors)
        if answer not in readable:
            continue
        part = os.read(answer, _PIECE)
        if not part:
            _pass_on(errors)
            return bytes(data), ""
        data += part
        while b"\n" in data:
            line, _, rest = bytes(data).partition(b"\n")
            data = bytearray(rest)
            sign = _sign(line)
            if sign is not None:
                moved = time.monotonic() if sign.still < STILL else moved
                tell(sign)
        if len(data) > _LONGEST_ANSWER:
            return b"", f"its answer has more than {_LONGEST_ANSWER} bytes"


def _pass_on(errors: int) -> bool:
    """What the child has said on standard error by now goes to ours; whether more may come."""
    if not select.select([errors], [], [], 0)[0]:
        return True
    text = os.read(errors, _PIECE).decode("utf-8", "backslashreplace")
    for line in text.splitlines():
        print(clean(line, _NOTE), file=sys.stderr, flush=True)
    return bool(text)


def _end(pid: int, patience: float) -> int:
    """End the child, which has `patience` seconds to end by itself; its exit status, 0 too for one that has to be left
    behind."""
    done = status = 0

    def look() -> int:
        nonlocal done, status
        done, status = os.waitpid(pid, os.WNOHANG)
        return done

    poll_until(look, bool, fixed_pause(0.005), seconds=patience)
    if not done:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return 0
    return status


def _outcomes(data: bytes) -> Optional[List[flush.FlushOutcome]]:
    try:
        rows: Any = parse.document(data, _LONGEST_ANSWER)
        found = [flush.FlushOutcome(*row) for row in rows]
    except (ValueError, TypeError):
        return None
    for one in found:
        if (
            not isinstance(one.run, str)
            or not isinstance(one.note, str)
            or type(one.removed) is not bool
            or type(one.again) is not bool
            or not isinstance(one.attempt, (str, type(None)))
            or not isinstance(one.lost, str)
        ):
            return None
    return [
        flush.FlushOutcome(
            clean(one.run),
            clean(one.attempt) if one.attempt else None,
            one.removed,
            clean(one.note, _NOTE),
            one.again,
            clean(one.lost, _NOTE),
        )
        for one in found
    ]


def _record(uid: int, outcomes: List[flush.FlushOutcome], asked_by: str) -> None:
    done = [one for one in outcomes if one.removed or one.attempt or one.lost]
    for one in done[:_MOST_RECORDS]:
        audit.record("flushed", f"run {one.run}", one.note, asked_by=asked_by, owner=f"uid {uid}")
    if len(done) > _MOST_RECORDS:
        audit.record(
            "flushed",
            f"{len(done) - _MOST_RECORDS} more runs",
            "as the ones before",
            asked_by=asked_by,
            owner=f"uid {uid}",
        )


def _become(uid: int, gid: Optional[int], keep: int) -> None:
    """The user, with the user's groups, of which one without an entry has none; and no descriptor but `keep`."""
    environment = {"PATH": PATH, "LANG": "C.UTF-8"}
    try:
        entry = pwd.getpwuid(uid)
        gid = entry.pw_gid if gid is None else gid
        os.initgroups(entry.pw_name, gid)
        environment.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
    except KeyError:
        gid = uid if gid is None else gid
        os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.umask(0o022)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environment)
    os.closerange(3, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
