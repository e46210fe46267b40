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
from typing import Any, Callable, List, Optional, Tuple

from hyperpod_kit import audit
from hyperpod_kit.checkpoint.agent import flush, places
from hyperpod_kit.checkpoint.agent.flush_progress import STILL, Sign
from hyperpod_kit.system.process import dies_with
from hyperpod_kit.system.wait import every, look_until
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import clean

_LONGEST_ANSWER = 1 << 20
_MOST_RECORDS = 32
_PIECE = 65536
_NOTE = 2000
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


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
    """Flush the segments of `uid` in a child process; it is killed at the deadline, and where it has moved nothing for
    `stall` seconds. `tell` hears each second how far it is. Raises OSError.

    `gid`: instead of the user's own group. What was done for another user is recorded, as asked for by `asked_by`.
    """
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if uid != places.node_uid():
                _become(uid, gid, write)
                dies_with(parent)()
            found = flush.flush(
                folder=folder, job=job, timeout=timeout, max_age=max_age, tell=lambda sign: _put(write, sign)
            )
            with os.fdopen(write, "w") as out:
                json.dump([list(outcome) for outcome in found], out)
            code = 0
        except BaseException as err:
            print(f"flush of uid {uid}: {clean(f'{type(err).__name__}: {err}')}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    os.close(write)
    try:
        data, why = _answer(read, time.monotonic() + timeout, stall, tell)
    finally:
        os.close(read)
    if not why:
        why = _end(pid, time.monotonic() + 5.0)
    if why:
        # A child in D state on a dead mount does not die: it is abandoned, not waited for.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return [flush.FlushOutcome(f"uid {uid}", None, False, why.format(timeout=timeout))]
    outcomes = _outcomes(data)
    if outcomes is None:
        return [flush.FlushOutcome(f"uid {uid}", None, False, "its answer is none, see standard error")]
    if uid != os.geteuid():
        _record(uid, outcomes, asked_by)
    return outcomes


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


def _answer(read: int, end: float, stall: Optional[float], tell: Callable[[Sign], None]) -> Tuple[bytes, str]:
    """(what the child has written behind its signs, why it was not all of it or "")."""
    poll = select.poll()
    poll.register(read, select.POLLIN)
    data = bytearray()
    moved = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= end:
            return b"", "not done after {timeout:g} s"
        if stall is not None and now >= moved + stall:
            return b"", f"it has moved nothing for {stall:g} s"
        if not poll.poll(((end if stall is None else min(end, moved + stall)) - now) * 1000):
            continue
        part = os.read(read, _PIECE)
        if not part:
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


def _end(pid: int, end: float) -> str:
    left = end - time.monotonic()
    done, status = look_until(lambda: os.waitpid(pid, os.WNOHANG), lambda found: found[0], every(0.005), seconds=left)
    if not done:
        return "it has answered and does not end"
    return "" if status == 0 else "failed, see standard error"


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
