"""Root acts on what belongs to a user as that user, in a child that has become the user for good, and waits no longer
than what is asked gives something. What belongs to root is worked on in a child too, which stays root: its deadline
is the same.

What such a child prints is printed by this process, and the child has none of its streams: one that a dead mount keeps
in the kernel would keep them too, and whoever reads this process's output would wait for its end for ever.

As the user nothing can be read or changed that the user could not read or change, whatever lies there and whatever it
is exchanged for meanwhile. And a file system that the user serves himself (FUSE, with `allow_other`) may leave every
question unanswered: it costs an error and not the rest of the work.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # a child that has become a user may not be able to import any more
import contextlib
import ctypes
import encodings.ascii
import encodings.idna  # noqa: F401
import errno
import functools
import io
import json
import os
import pwd
import select
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Tuple, Type

from hyperpod_kit.errors import HyperpodKitError, Unreachable, Untrusted, UsageError
from hyperpod_kit.untrusted import parse, walk

time.strptime("1970", "%Y")  # imports what dates need, for the same reason

SILENCE_SECONDS = 55.0
"""Seconds that a child may take without reporting, reading or writing anything and without working: with the start and
the end of the program around it, 60 seconds."""

LONGEST = 86400.0
"""Seconds that a child may take at all."""

SILENCES = 3
"""Children that may fall silent as one user, before no more is asked as that user: each costs ANSWER."""
_SILENT: Dict[int, int] = {}

_RATE = 1 << 20
"""Bytes that a child has to read or write in a second, on average, beyond ANSWER."""
_POLL_SECONDS = 0.05
_MOMENT = 2.0
"""Seconds that a child has to end in."""

_LARGEST = 64 << 20
_PR_SET_PDEATHSIG = 1
_WRITING = threading.Lock()
_WHOLE_MACHINE = ["0", "0", "4294967295"]


Receiver = Callable[[Any], None]


class OwnerLimits(NamedTuple):
    """How long a child may take: `silence` seconds since its last report, more for what it gets done, and never
    more than `longest`."""

    silence: float = SILENCE_SECONDS
    longest: float = LONGEST

    def allowed_silence_seconds(self, moved_bytes: int, cpu_seconds: float) -> float:
        """Seconds since its last report, for `moved` bytes and `worked` seconds of processor time since then."""
        return min(self.longest, self.silence + moved_bytes / _RATE + 100.0 * cpu_seconds)

    def allowed_standstill_seconds(self, moved_bytes: int) -> float:
        """Seconds in which nothing moves, after `moved` bytes, which a system may have to write out first."""
        return min(self.longest, self.silence + moved_bytes / _RATE)


DEFAULT_LIMITS = OwnerLimits()


def is_machine_root() -> bool:
    """Whether this process is root of the machine, and not of a user namespace: then it could be any user."""
    if os.getuid():
        return False
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() == _WHOLE_MACHINE
    except OSError:
        return False


def uid_to_act_as_if_root(path: str, limits: OwnerLimits = DEFAULT_LIMITS) -> Optional[int]:
    """Return the uid as which a process that is root works on `path`, 0 for root: see
    `walk.uid_for_root_to_act_as`. None where it is not root.

    Raises Untrusted for a link that leads to what is another's, Unreachable when it does not answer,
    OSError.
    """
    if not is_machine_root():
        return None
    return int(run_as_user_in_child(lambda: walk.uid_for_root_to_act_as(path), 0, path, limits))


def run_as_owner_in_child_if_root(path: str, work: Callable[[], Any], limits: OwnerLimits = DEFAULT_LIMITS) -> Any:
    """What `work` gives (something that JSON has), done as the owner of `path` in a child where this process is root,
    and in this process otherwise. Only `path` is worked on, and nothing that `work` does to this process's memory
    stays.

    Raises what `work` raises of HyperpodKitError (as UsageError, Unreachable or HyperpodKitError) and OSError,
    Unreachable when it does not get on.
    """
    uid = uid_to_act_as_if_root(path, limits)
    if uid is None:
        return work()
    return run_as_user_in_child(work, uid, path, limits)


def run_as_user_with_reports(
    path: str,
    uid: Optional[int],
    work: Callable[[Receiver], Any],
    receive: Receiver,
    limits: OwnerLimits = DEFAULT_LIMITS,
) -> Any:
    """`work(report)` as that user; `receive` gets here what is reported there (something that JSON has), at once.
    `uid`: None where this process is not root, then it is done in this process.

    Who reports something gets on. Raises as `run_as_owner_in_child_if_root`.
    """
    if uid is None:
        return work(receive)
    return _run_in_child(work, uid, path, limits, receive)


def run_as_user_in_child(work: Callable[[], Any], uid: int, path: str, limits: OwnerLimits = DEFAULT_LIMITS) -> Any:
    """What `work` gives as that user. `path`: for messages. Raises as `run_as_owner_in_child_if_root`."""
    return _run_in_child(lambda report: work(), uid, path, limits, lambda value: None)


def _run_in_child(work: Callable[[Receiver], Any], uid: int, path: str, limits: OwnerLimits, receive: Receiver) -> Any:
    if _SILENT.get(uid, 0) >= SILENCES:
        raise Unreachable(
            f"{path} was not checked: {SILENCES} others of uid {uid} do not answer", hint="findmnt --list"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    # By hand: it becomes a user and reports how it gets on, and `system` has what lies above this package.
    source, sink = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_work_in_child_and_exit(work, uid, sink, parent)
    os.close(sink)
    response = None
    try:
        for line in _read_lines_of_child(pid, source, uid, path, limits):
            message = _parse_child_message(line, uid, path)
            if "report" in message:
                receive(message["report"])
            elif "printed" in message:
                _print_child_output(message)
            else:
                response = message
    except KeyboardInterrupt:
        _interrupt_and_wait_briefly(pid)
        raise
    finally:
        os.close(source)
        status = _kill_and_reap(pid)
    if response is None:
        raise Untrusted(
            f"{path}: a process of uid {uid} ended without an answer{_describe_killing_signal_or_empty(status)}"
        )
    if "value" in response:
        return response["value"]
    _raise_error_from_response(response)


def _parse_child_message(line: bytes, uid: int, path: str) -> Any:
    try:
        return parse.parse_json_object(line, _LARGEST)
    except ValueError as err:
        raise Untrusted(f"{path}: a process of uid {uid} returned invalid JSON: {err}") from None


def _print_child_output(message: Any) -> None:
    if message.get("on") == "stderr":
        stream = sys.stderr
    else:
        stream = sys.stdout
    stream.write(str(message["printed"]))
    stream.flush()


def _raise_error_from_response(response: Any) -> NoReturn:
    message, hint = str(response.get("message", "")), response.get("hint")
    if not isinstance(hint, str):
        hint = None
    if response.get("kind") == "OSError":
        number = response.get("errno")
        if not isinstance(number, int):
            number = errno.EIO
        raise OSError(number, message, response.get("file"))
    error_class = _error_class_of_response(response)
    error = error_class.__new__(error_class)
    HyperpodKitError.__init__(error, message, hint=hint)
    for name, value in dict(response.get("facts") or {}).items():
        setattr(error, name, value)
    code = response.get("exit_code")
    if isinstance(code, int):
        error.exit_code = code
    raise error


def _error_class_of_response(response: Any) -> Type[HyperpodKitError]:
    """The error's own class where this process has it, else one of its exit code."""
    classes: List[Type[HyperpodKitError]] = [HyperpodKitError]
    for error_class in classes:
        classes += error_class.__subclasses__()
        if error_class.__name__ == response.get("class"):
            return error_class
    return {2: UsageError, 3: Unreachable}.get(response.get("exit_code"), HyperpodKitError)


def _json_attributes_of(err: HyperpodKitError) -> Dict[str, Any]:
    """What it has beside its words, as far as JSON can say it."""
    plain = (str, int, float, bool, type(None), list, tuple)
    return {name: value for name, value in vars(err).items() if isinstance(value, plain)}


def _count_silent_child_of_user(uid: int) -> None:
    """That a child has fallen silent as another user: what is root's own is mounted by nobody out of ill will."""
    if uid and os.getuid() == 0:
        _SILENT[uid] = _SILENT.get(uid, 0) + 1


class _ChildProgressWatch:
    """What a child has got done, looked at from outside."""

    def __init__(self, pid: int, limits: OwnerLimits) -> None:
        self._pid, self._limits = pid, limits
        self._started_at = time.monotonic()
        self.reset_silence()

    def reset_silence(self) -> None:
        """Start to count the silence anew: the child has reported."""
        self._latest = self._moving = time.monotonic()
        self._first = self._progress = process_io_bytes_and_cpu_seconds(self._pid)

    def excessive_silence_seconds_or_none(self) -> Optional[float]:
        """Seconds for which nothing has come of it, where these are more than it may take."""
        now, current = time.monotonic(), process_io_bytes_and_cpu_seconds(self._pid)
        if current != self._progress:
            self._progress, self._moving = current, now
        moved, worked = current[0] - self._first[0], current[1] - self._first[1]
        # Who hangs has worked before: what is allowed for that must not lengthen the wait for what does not move.
        if now - self._moving > self._limits.allowed_standstill_seconds(moved):
            return now - self._moving
        if (
            now - self._latest > self._limits.allowed_silence_seconds(moved, worked)
            or now - self._started_at > self._limits.longest
        ):
            return now - self._latest
        return None


def _read_lines_of_child(pid: int, source: int, uid: int, path: str, limits: OwnerLimits) -> Iterator[bytes]:
    """Each line that it writes. Raises Unreachable when it does not get on."""
    watch = _ChildProgressWatch(pid, limits)
    data = bytearray()
    poll = select.poll()
    poll.register(source, select.POLLIN)
    pause = _POLL_SECONDS
    while True:
        if poll.poll(pause * 1000.0):
            part = os.read(source, 1 << 20)
            if not part:
                return
            data += part
            if len(data) > _LARGEST:
                raise Untrusted(f"{path}: an answer of more than {_LARGEST} bytes")
            if b"\n" in part:
                *lines, rest = bytes(data).split(b"\n")
            else:
                *lines, rest = (bytes(data),)
            if lines:
                data = bytearray(rest)
                yield from lines
                watch.reset_silence()
                pause = _POLL_SECONDS
            continue
        pause = min(1.0, pause * 2)
        silence = watch.excessive_silence_seconds_or_none()
        if silence is not None:
            _count_silent_child_of_user(uid)
            raise Unreachable(
                f"{path} does not answer, for {silence:.0f} s; its owner may have mounted something there",
                hint="findmnt --list",  # asks no mount, as --target would
            )


def process_io_bytes_and_cpu_seconds(pid: int) -> tuple[int, float]:
    """(bytes read and written, seconds of processor time) of a process."""
    moved, ticks = 0, 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            moved = sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
        with open(f"/proc/{pid}/stat", "rb") as raw:
            fields = raw.read().rpartition(b")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
    return moved, ticks / os.sysconf("SC_CLK_TCK")


def _interrupt_and_wait_briefly(pid: int) -> None:
    """Have it take back what it has half made, as far as that is quick."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    _wait_briefly(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)


def _kill_and_reap(pid: int) -> int:
    """End it, and its status, which is how it has ended itself where it had; 0 for one that the kernel does not let go,
    which is not waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    statuses: List[int] = []

    def has_ended() -> bool:
        ended, status = os.waitpid(pid, os.WNOHANG)
        statuses.append(status)
        return ended != 0

    _wait_briefly(has_ended)
    if statuses:
        return statuses[-1]
    return 0


def _describe_killing_signal_or_empty(wait_status: int) -> str:
    """For a message: the system ends who takes too much memory."""
    if os.WIFSIGNALED(wait_status):
        return f", by {signal.Signals(os.WTERMSIG(wait_status)).name}"
    return ""


def _wait_briefly(has_ended: Callable[[], bool]) -> None:
    """Wait for that, for a moment."""
    end = time.monotonic() + _MOMENT
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end and not has_ended():
            time.sleep(0.005)


def _run_work_in_child_and_exit(work: Callable[[Receiver], Any], uid: int, sink: int, parent: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _forward_streams_to_parent(sink)
        if uid not in (0, os.geteuid()):
            become_user_permanently(uid)
        _die_with_parent(parent)
        _write_json_line(
            sink, _run_work_to_response(lambda: work(lambda value: _write_json_line(sink, {"report": value})))
        )
        code = 0
    except BaseException:
        code = 1
    finally:
        os._exit(code)


class _Printed(io.TextIOBase):
    """A stream whose text the parent prints on its own."""

    def __init__(self, sink: int, on: str) -> None:
        super().__init__()
        self._sink, self._on = sink, on

    def write(self, text: str) -> int:
        """Hand it over."""
        if text:
            _write_json_line(self._sink, {"printed": text, "on": self._on})
        return len(text)

    def fileno(self) -> int:
        """Of the stream that it stands for, which leads nowhere here."""
        if self._on == "stdout":
            return 1
        return 2


def _forward_streams_to_parent(sink: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    sys.stdout, sys.stderr = _Printed(sink, "stdout"), _Printed(sink, "stderr")


def _die_with_parent(parent: int) -> None:
    """Nobody waits for this process once its parent was killed: it ends then, too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _write_json_line(sink: int, message: Any) -> None:
    data = memoryview(json.dumps(message, default=str).encode() + b"\n")
    with _WRITING:
        while data:
            data = data[os.write(sink, data) :]


def _run_work_to_response(work: Callable[[], Any]) -> Dict[str, Any]:
    try:
        return {"value": work()}
    except HyperpodKitError as err:
        fields = {
            "message": err.message,
            "hint": err.hint,
            "exit_code": err.exit_code,
            "facts": _json_attributes_of(err),
        }
        return {"kind": "error", "class": type(err).__name__, **fields}
    except OSError as err:
        file = None
        if isinstance(err.filename, (str, bytes)):
            file = os.fsdecode(err.filename)
        return {"kind": "OSError", "message": err.strerror or str(err), "errno": err.errno, "file": file}
    except Exception as err:
        return {"kind": "error", "message": f"{type(err).__name__}: {err}"}


@contextlib.contextmanager
def acting_as_user_if_root(uid: int) -> Iterator[None]:
    """The rest of the block is done with that user's rights, and this process can be root again: for a process of one
    thread that looks at what belongs to many. Nothing to do where it is not root, or the user is."""
    if not uid or os.geteuid():
        yield
        return
    gid, groups = primary_and_supplementary_groups(uid)
    before = os.getegid(), os.getgroups()
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before[0])
        os.setgroups(before[1])


@functools.lru_cache(maxsize=1024)
def primary_and_supplementary_groups(uid: int) -> Tuple[int, List[int]]:
    """(gid, supplementary groups) of a user; one without an entry has none."""
    try:
        entry = pwd.getpwuid(uid)
        return entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
    except KeyError:
        return uid, []


def become_user_permanently(uid: int) -> None:
    """Become that user for good, with the user's groups; one without an entry has none."""
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
