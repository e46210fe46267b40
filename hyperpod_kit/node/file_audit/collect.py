"""From the kernel's events to lines of a log: one record each, in a chain; what could not be seen is a record too.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Callable, Dict, Optional, Tuple

from hyperpod_kit.node.file_audit import fanotify
from hyperpod_kit.node.file_audit.fanotify import FileEvent, NameEventGroup, PermissionGroup
from hyperpod_kit.node.file_audit.identity import ProcessTable
from hyperpod_kit.system import hash_chain
from hyperpod_kit.system.readable import wait_until_readable
from hyperpod_kit.untrusted import by_descriptor

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
        log.append_gap(f"creating, removing and renaming is not seen here: {err}")
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
            body["why"] = "the process was gone before it was asked for"
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
