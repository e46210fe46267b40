"""One record in the journal of each thing that is done with root's rights to what is another's.

Requeued, drained, pruned, flushed, unmounted, replaced: who asked, on what, why. Read by `hyperpod-kit diagnose
--actions`. The journal's own protocol, https://systemd.io/JOURNAL_NATIVE_PROTOCOL/, so that no library is needed.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import sys

from hyperpod_kit.environment import HPK_ROOT
from hyperpod_kit.untrusted.text import clean_one_line

MESSAGE_ID = "6f2b1c0d9a8e4f7ab35d0c1e92f4a677"
"""What all of these records have in common: `journalctl MESSAGE_ID=…`."""

JOURNAL = "/run/systemd/journal/socket"

_VALUE = 1000


def record_root_action_in_journal(
    action: str, target: str, reason: str, *, asked_by: str, owner: str = "", journal_socket: str = JOURNAL
) -> None:
    """Record in the journal that `action` (a verb in the past: `requeued`) was done on `on` (`job 12`, a path, a
    node).

    `asked_by`: the unit, hook or command that did it and, where one is known, the user behind it. `owner`:
    whose the thing was. Without a journal it is a line on standard error. Never raises: what is done is done.
    In a sandbox (`HPK_ROOT`) nothing is another's: nothing is recorded, since the journal is that of the
    machine around it.
    """
    if os.environ.get(HPK_ROOT):
        return
    import socket  # seldom needed, and dear to what runs twice a minute

    fields = {
        "HYPERPOD_KIT_ACTION": action,
        "HYPERPOD_KIT_ON": target,
        "HYPERPOD_KIT_WHY": reason,
        "HYPERPOD_KIT_ASKED_BY": asked_by,
        "HYPERPOD_KIT_OWNER": owner,
    }
    cleaned = {name: clean_one_line(value, _VALUE) for name, value in fields.items()}
    whose = f" of {cleaned['HYPERPOD_KIT_OWNER']}" if owner else ""
    action_and_object = f"{clean_one_line(action)} {cleaned['HYPERPOD_KIT_ON']}{whose}"
    message = f"{action_and_object} for {clean_one_line(asked_by)}: {cleaned['HYPERPOD_KIT_WHY']}"
    entry = {
        "MESSAGE": message,
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": "5",
        "SYSLOG_IDENTIFIER": "hyperpod-kit",
        "SYSLOG_PID": str(os.getpid()),
        **cleaned,
    }
    data = "".join(f"{name}={value}\n" for name, value in entry.items()).encode("utf-8", "replace")
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
            # A journal that does not read must not hold up a hook.
            sock.settimeout(1.0)
            sock.sendto(data, journal_socket)
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            print(f"hyperpod-kit: {message}", file=sys.stderr, flush=True)
