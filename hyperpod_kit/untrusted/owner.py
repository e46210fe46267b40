"""Root acts on what belongs to a user as that user, in a child that has become the user for good, and waits no longer
than what is asked gives something.

As the user nothing can be read or changed that the user could not read or change, whatever lies there and whatever it
is exchanged for meanwhile. And a file system that the user serves himself (FUSE, with `allow_other`) may leave every
question unanswered: it costs an error and not the rest of the work.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # a child that has become a user may not be able to import any more
import contextlib
import encodings.ascii
import encodings.idna  # noqa: F401
import errno
import json
import os
import pwd
import select
import signal
import sys
import time
from typing import Any, Callable, NamedTuple, NoReturn, Optional

from hyperpod_kit.errors import HyperpodKitError, Unreachable, Untrusted, UsageError
from hyperpod_kit.untrusted import parse

time.strptime("1970", "%Y")  # imports what dates need, for the same reason

ANSWER = 60.0
"""Seconds that a child may take without reading or writing anything and without working."""

LONGEST = 86400.0
"""Seconds that a child may take at all."""

_RATE = 1 << 20
"""Bytes that a child has to read or write in a second, on average, beyond ANSWER."""
_LOOK = 0.05
_LARGEST = 64 << 20
_WHOLE_MACHINE = ["0", "0", "4294967295"]


class OwnerPatience(NamedTuple):
    """How long a child may take: `answer` seconds, more for what it gets done, and never more than `longest`."""

    answer: float = ANSWER
    longest: float = LONGEST

    def allowed(self, moved: int, worked: float) -> float:
        """Seconds for `moved` bytes and `worked` seconds of processor time."""
        return min(self.longest, self.answer + moved / _RATE + 100.0 * worked)


PATIENCE = OwnerPatience()


def is_root() -> bool:
    """Whether this process is root of the machine, and not of a user namespace: then it could be any user."""
    if os.geteuid():
        return False
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() == _WHOLE_MACHINE
    except OSError:
        return False


def of(path: str, patience: OwnerPatience = PATIENCE) -> Optional[int]:
    """Whose `path` is, where that is another user and this process is root; else None.

    Raises Unreachable when it does not answer, OSError.
    """
    if not is_root():
        return None
    uid = _result(lambda: _uid_of(path), 0, path, patience)
    return uid if isinstance(uid, int) and uid else None


def _uid_of(path: str) -> int:
    try:
        return os.stat(path).st_uid
    except (FileNotFoundError, NotADirectoryError):
        return 0  # whoever looks for it says so


def as_owner(path: str, work: Callable[[], Any], patience: OwnerPatience = PATIENCE) -> Any:
    """What `work` gives (something that JSON has), done as the owner of `path` where this process is root and the
    owner is another user. Only `path` is worked on, and nothing that `work` does to this process's memory stays.

    Raises what `work` raises of HyperpodKitError (as UsageError, Unreachable or HyperpodKitError) and OSError,
    Unreachable when it does not get on.
    """
    uid = of(path, patience)
    return work() if uid is None else as_user(uid, work, path, patience)


def as_user(uid: int, work: Callable[[], Any], path: str, patience: OwnerPatience = PATIENCE) -> Any:
    """The same as that user. `path`: for messages."""
    return _result(work, uid, path, patience)


def _result(work: Callable[[], Any], uid: int, path: str, patience: OwnerPatience) -> Any:
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, uid, theirs)
    os.close(theirs)
    try:
        answer = _hear(pid, ours, path, patience)
    finally:
        os.close(ours)
        _end(pid)
    try:
        said = parse.json_object(answer, _LARGEST)
    except ValueError as err:
        raise Untrusted(f"{path}: a process of uid {uid} ended without an answer: {err}") from None
    if "value" in said:
        return said["value"]
    _raise(said)


def _raise(said: Any) -> NoReturn:
    message, hint = str(said.get("message", "")), said.get("hint")
    hint = hint if isinstance(hint, str) else None
    if said.get("kind") == "OSError":
        number = said.get("errno")
        raise OSError(number if isinstance(number, int) else errno.EIO, message, said.get("file"))
    code = said.get("exit_code")
    error = {2: UsageError, 3: Unreachable}.get(code, HyperpodKitError)(message, hint=hint)
    if isinstance(code, int):
        error.exit_code = code
    raise error


def _hear(pid: int, ours: int, path: str, patience: OwnerPatience) -> bytes:
    """All that it says. Raises Unreachable when it does not get on."""
    begun, data = time.monotonic(), bytearray()
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    pause = _LOOK
    while len(data) <= _LARGEST:
        if poll.poll(pause * 1000.0):
            part = os.read(ours, 1 << 20)
            if not part:
                return bytes(data)
            data += part
            continue
        pause = min(1.0, pause * 2)
        elapsed = time.monotonic() - begun
        if elapsed > min(patience.answer, patience.longest) and elapsed > patience.allowed(*_progress(pid)):
            raise Unreachable(
                f"{path} does not answer, for {elapsed:.0f} s; its owner may have mounted something there",
                hint=f"findmnt --submounts --target {path}",
            )
    raise Untrusted(f"{path}: an answer of more than {_LARGEST} bytes")


def _progress(pid: int) -> tuple[int, float]:
    """(bytes read and written, seconds of processor time) of a process."""
    moved, ticks = 0, 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            moved = sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
        with open(f"/proc/{pid}/stat", "rb") as raw:
            fields = raw.read().rpartition(b")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
    return moved, ticks / os.sysconf("SC_CLK_TCK")


def _end(pid: int) -> None:
    """End it; one that the kernel does not let go is not waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
                continue
        return


def _child(work: Callable[[], Any], uid: int, theirs: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if uid:
            become(uid)
        answer = _answer(work)
        sys.stdout.flush()
        data = memoryview(json.dumps(answer).encode())
        while data:
            data = data[os.write(theirs, data) :]
        code = 0
    except BaseException:
        code = 1
    finally:
        os._exit(code)


def _answer(work: Callable[[], Any]) -> Any:
    try:
        return {"value": work()}
    except HyperpodKitError as err:
        return {"kind": "error", "message": err.message, "hint": err.hint, "exit_code": err.exit_code}
    except OSError as err:
        file = os.fsdecode(err.filename) if isinstance(err.filename, (str, bytes)) else None
        return {"kind": "OSError", "message": err.strerror or str(err), "errno": err.errno, "file": file}
    except Exception as err:
        return {"kind": "error", "message": f"{type(err).__name__}: {err}"}


def become(uid: int) -> None:
    """That user for good, with the user's groups; one without an entry has none."""
    try:
        entry = pwd.getpwuid(uid)
        os.initgroups(entry.pw_name, entry.pw_gid)
        gid = entry.pw_gid
        os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
    except KeyError:
        os.setgroups([])
        gid = uid
    os.setgid(gid)
    os.setuid(uid)
    os.umask(0o022)
