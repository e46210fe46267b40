"""Flush for every user of this node: as root, in a child per user that has become that user.

Storage must see the owner's uid (an EFS access point, a quota), and segments in a world-writable directory must never
make root write anything.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import time
import traceback
from typing import List, Optional

from . import arena, flush


def uids(folder: str) -> List[int]:
    """Who has segments here."""
    return sorted({name.uid for name in arena.names(folder)})


def flush_as(uid: int, *, folder: str, job: Optional[str], timeout: float, max_age: float) -> List[flush.Outcome]:
    """Flush the segments of `uid` in a child process; it is killed at the deadline. Raises OSError."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            _become(uid)
            found = flush.flush(folder=folder, job=job, timeout=timeout, max_age=max_age)
            with os.fdopen(write, "w") as out:
                json.dump([list(outcome) for outcome in found], out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    end = time.monotonic() + timeout
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            # A child in D state on a dead mount does not die: it is abandoned, not waited for.
            os.kill(pid, signal.SIGKILL)
            os.close(read)
            return [flush.Outcome(f"uid {uid}", None, False, f"not done after {timeout:g} s")]
        time.sleep(0.02)
    with os.fdopen(read) as answer:
        text = answer.read()
    if status != 0 or not text:
        return [flush.Outcome(f"uid {uid}", None, False, "failed, see standard error")]
    return [flush.Outcome(*entry) for entry in json.loads(text)]


def _become(uid: int) -> None:
    if uid == arena.node_uid():
        return
    try:
        entry = pwd.getpwuid(uid)
        os.initgroups(entry.pw_name, entry.pw_gid)
        gid = entry.pw_gid
    except KeyError:
        os.setgroups([])
        gid = uid
    os.setgid(gid)
    os.setuid(uid)
    os.umask(0o022)
