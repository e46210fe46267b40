"""The collector, which logs what the kernel tells of opens, and the watch over it: a process that stands still must
never be waited for by everybody's opens.

Each open waits for the collector's answer. So it runs as a child that gives signs of life; without one for LIMIT
seconds it is killed, whereupon the kernel lets all waiters go, and a new one is started. The gap is in the log.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import socket
import sys
import time
from collections import OrderedDict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from hyperpod_kit.errors import Absent, NodeError
from hyperpod_kit.node.file_audit import fanotify
from hyperpod_kit.node.file_audit.fanotify import FileEvent, NameEventGroup, PermissionGroup
from hyperpod_kit.system import hash_chain
from hyperpod_kit.system.process import make_parent_death_hook
from hyperpod_kit.system.readable import wait_until_readable
from hyperpod_kit.untrusted import by_descriptor

LIMIT = 2.0
"""Seconds without a sign of life; the collector gives two a second."""
SHORTEST, LONGEST = 0.1, 10.0
"""Seconds before a new one is started, longer and longer while none lives."""


def supervise_audit(path: str, log: str) -> int:
    """Audit the file system of `path` until SIGTERM or SIGINT, starting the collector again whenever it ends.
    Raises NodeError, Absent where it cannot be begun."""
    _require_auditable(path, log)
    ending: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, frame: ending.append(caught))
    reason, pause = "", SHORTEST
    while not ending:
        started_at = time.monotonic()
        status = _run_collector(path, log, reason, ending)
        if not ending:
            reason = f"the collector was {status}; events until its restart were not recorded"
            # A disk that is full stays so for a while.
            if time.monotonic() - started_at > LONGEST:
                pause = SHORTEST
            else:
                pause = min(pause * 2, LONGEST)
            until = time.monotonic() + pause
            while not ending and time.monotonic() < until:
                time.sleep(SHORTEST)
    return 0


def _require_auditable(path: str, log: str) -> None:
    if os.geteuid() != 0:
        raise NodeError("only root may audit a file system", hint="sudo hyperpod-kit node audit …")
    if not os.path.ismount(path) or os.stat(path).st_dev == os.stat("/").st_dev:
        raise Absent(
            f"{path} is not a mount point: an audit covers a whole file system, and never that of /",
            hint="findmnt lists the mounts",
        )
    directory = os.path.dirname(os.path.abspath(log))
    if os.stat(directory).st_dev == os.stat(path).st_dev:
        raise NodeError(f"{log} is on {path} itself: writing it would wait for itself", hint="--log on another disk")


def _run_collector(path: str, log: str, reason: str, received_signals: List[int]) -> str:
    """Run one collector until its end, and return what became of it, in words."""
    reader, writer = os.pipe()
    arm = make_parent_death_hook(os.getpid())
    child = os.fork()
    if child == 0:
        os.close(reader)
        arm()
        _collect_as_child_and_exit(path, log, reason, writer)
    os.close(writer)
    try:
        while True:
            ready = wait_until_readable([reader], LIMIT)
            if received_signals:
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
                return "ended"
            if not ready:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"silent for {LIMIT:.0f} s and killed"
            if not os.read(reader, 4096):
                _, status = os.waitpid(child, 0)
                return f"gone ({status})"
    except InterruptedError:
        return "interrupted"
    finally:
        os.close(reader)


def _collect_as_child_and_exit(path: str, log: str, reason: str, heartbeat_descriptor: int) -> None:
    stopped: List[int] = []
    signal.signal(signal.SIGTERM, lambda caught, frame: stopped.append(caught))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = 1
    try:
        audit_log = AuditLog(log)
        if reason:
            audit_log.append_gap(reason)
        collect_events(path, audit_log, lambda: _send_heartbeat(heartbeat_descriptor), lambda: bool(stopped))
        code = 0
    except OSError as err:
        print(f"audit of {path}: {err}", file=sys.stderr, flush=True)
    os._exit(code)


def _send_heartbeat(descriptor: int) -> Any:
    os.write(descriptor, b".")


# From the kernel's events to lines of a log: one record each, in a chain; what could not be seen is a record too.

_TAIL = 1 << 16
"""Bytes at the end of a log in which its last line is whole: two paths of 4,096 bytes, each byte escaped."""
TICK = 0.5
"""Seconds between two signs of life."""

_OPERATIONS = (
    (fanotify.CLOSE_WRITE, "write"),
    (fanotify.CLOSE_READ, "read"),
    (fanotify.CREATE, "create"),
    (fanotify.DELETE, "delete"),
    (fanotify.RENAME, "rename"),
)


class AuditLog:
    """Lines at the end of a file; its chain goes on where an earlier one ended. Raises OSError."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._host = socket.gethostname()
        self._chain, self._number, is_complete = _read_last_digest_number_completeness(path)
        self._descriptor = by_descriptor.open_own_or_root_file(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        if not is_complete:
            os.write(self._descriptor, b"\n")

    def write(self, body: Dict[str, Any]) -> None:
        """Append one record, at once in the kernel's hands: it survives the death of this process."""
        self._number += 1
        record = {"time": round(self._clock(), 6), "host": self._host, "number": self._number, **body}
        text, self._chain = hash_chain.encode_line(self._chain, record)
        os.write(self._descriptor, f"{text}\n".encode("utf-8", "surrogateescape"))

    def append_gap(self, reason: str) -> None:
        """Append a record that something may have happened that is not in the log."""
        self.write({"op": "gap", "why": reason})


def collect_events(
    path: str, log: AuditLog, send_heartbeat: Callable[[], None], should_stop: Callable[[], bool]
) -> None:
    """Record the events of the file system until `should_stop()`. `send_heartbeat()` is called twice a second,
    and after each handful of events. Raises OSError."""
    identities = ProcessTable()
    permission_group = PermissionGroup(path)
    name_group: Optional[NameEventGroup] = None
    try:
        name_group = NameEventGroup(path)
    except OSError as err:
        log.append_gap(f"this kernel does not report creating, removing and renaming: {err}")
    log.write({"op": "began", "path": path})
    groups = [group.descriptor for group in (permission_group, name_group) if group is not None]
    while not should_stop():
        send_heartbeat()
        wait_until_readable(groups, TICK)
        for event in permission_group.events():
            program = ""
            if event.mask & fanotify.EXEC_PERM:
                program = event.path
            identity = None
            if event.pid != os.getpid():
                identity = identities.read_and_cache_identity(event.pid, program)
            # Answered first: nobody waits for the disk of the log.
            permission_group.allow_and_close(event)
            _record_read_or_write_event(log, event, identity, identities)
        for event in name_group.events() if name_group is not None else ():
            _record_create_delete_rename_event(log, event, identities)
    log.write({"op": "ended", "path": path})


def _record_read_or_write_event(log: AuditLog, event: FileEvent, identity: Any, identities: ProcessTable) -> None:
    if event.mask & fanotify.OVERFLOW:
        log.append_gap("the kernel's queue was full")
    elif event.mask & (fanotify.CLOSE_WRITE | fanotify.CLOSE_READ) and event.pid != os.getpid():
        _write_record_for_each_operation(log, event, identity or identities.current_or_cached_identity(event.pid))


def _record_create_delete_rename_event(log: AuditLog, event: FileEvent, identities: ProcessTable) -> None:
    if event.mask & fanotify.OVERFLOW:
        log.append_gap("the kernel's queue was full")
    elif event.pid != os.getpid():
        _write_record_for_each_operation(log, event, identities.current_or_cached_identity(event.pid))


def _write_record_for_each_operation(log: AuditLog, event: FileEvent, identity: Any) -> None:
    """One record for each operation: the kernel may put several of one file into one event."""
    for bit, operation in _OPERATIONS:
        if not event.mask & bit:
            continue
        body: Dict[str, Any] = {"op": operation, "path": _escape_non_utf8(event.path), "pid": event.pid}
        if event.new_path:
            body["new_path"] = _escape_non_utf8(event.new_path)
        if event.mask & fanotify.ON_DIRECTORY:
            body["directory"] = True
        if identity is None:
            body["why"] = "the process ended before it was identified"
        else:
            body.update({key: value for key, value in identity._asdict().items() if value != ""})
        log.write(body)


def _escape_non_utf8(path: str) -> str:
    """Bytes that are no UTF-8 stay readable as \\x escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _read_last_digest_number_completeness(path: str) -> Tuple[str, int, bool]:
    """Digest and number of the last line, and whether it is whole. A file that ends within a line has lost its end with
    the node's power: a new chain begins behind it, which is seen where it is read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            tail = file.read()
    except FileNotFoundError:
        return hash_chain.START, 0, True
    is_complete = not tail or tail.endswith(b"\n")
    try:
        last = json.loads(tail.splitlines()[-1])
        return str(last[hash_chain.KEY]), int(last["number"]), is_complete
    except (IndexError, ValueError, KeyError, TypeError):
        return hash_chain.START, 0, is_complete


# Who a process is: user, command, Slurm job; read while it stands still, and remembered for what it does later.

MOST = 65536
"""Processes that are remembered; the oldest are forgotten."""
_LOADER = re.compile(r"ld-linux|ld\.so|ld-musl|ld[0-9.-]+\.so")
_JOB = re.compile(r"/(?:job_|job)(\d+)(?:/|$)", re.M)
_JOB_VARIABLE = re.compile(rb"(?:^|\0)SLURM_JOB_ID=(\d{1,12})(?:\0|$)")


class Identity(NamedTuple):
    """`job`: "" for none; `job_by`: `cgroup`, which a user cannot leave, or `environment`, which he can write; `seen`:
    `earlier` where the process was gone, and this is what it was at its last open or exec."""

    uid: int
    user: str
    command: str
    job: str
    job_by: str
    seen: str = ""


class ProcessTable:
    """Users are read at once: while a process stands still, nothing may be opened that is audited itself."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._users: Dict[int, str] = {account.pw_uid: account.pw_name for account in pwd.getpwall()}
        self._identities: OrderedDict[int, Identity] = OrderedDict()

    def read_and_cache_identity(self, pid: int, program: str = "") -> Optional[Identity]:
        """Read who a process is now, and cache it; None when it is gone. `program`: what it is about to become."""
        job, by = self._slurm_job_id_and_source(
            pid
        )  # before the state: who is alive after that was alive when it was read
        try:
            with open(f"{self._proc}/{pid}/status", encoding="utf-8", errors="replace") as file:
                status = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
            uid = int(status["Uid"].split()[3])  # of file accesses
        except (OSError, KeyError, ValueError, IndexError):
            return None
        if status.get("State", "").strip()[:1] in ("Z", "X") and pid in self._identities:
            return self._identities[pid]._replace(seen="earlier")  # its environment is gone, and soon its control group
        command = os.path.basename(program) or status.get("Name", "").strip()
        if _LOADER.match(command) and pid in self._identities:
            # Opened for the program that was named just before.
            command = self._identities[pid].command
        identity = Identity(uid, self._users.get(uid, ""), command, job, by)
        self._identities[pid] = identity
        self._identities.move_to_end(pid)
        if len(self._identities) > MOST:
            self._identities.popitem(last=False)
        return identity

    def current_or_cached_identity(self, pid: int) -> Optional[Identity]:
        """Return who a process is, else who it was when it was last read; None when neither is known."""
        now = self.read_and_cache_identity(pid)
        if now is not None or pid not in self._identities:
            return now
        return self._identities[pid]._replace(seen="earlier")

    def _slurm_job_id_and_source(self, pid: int) -> tuple[str, str]:
        try:
            with open(f"{self._proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
                match = _JOB.search(file.read())
            if match:
                return match[1], "cgroup"
            with open(f"{self._proc}/{pid}/environ", "rb") as raw:
                named = _JOB_VARIABLE.search(raw.read(1 << 20))
            if named:
                return (named[1].decode(), "environment")
            return ("", "")
        except OSError:
            return "", ""
