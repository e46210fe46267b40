"""The process that outlives a killed daemon for as long as it takes to end the daemon's machines.

A machine's PID 1 does not die with its systemd-nspawn, and that not with the daemon. This process holds the other end
of a pipe from the daemon: when the pipe closes without a word, the daemon was killed, and everything is removed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import List, Optional

from hyperpod_kit.system.process import identify_unless_gone_or_zombie
from hyperpod_rehearsal import cleanup
from hyperpod_rehearsal.records import state
from hyperpod_rehearsal.records.layout import Layout

ALL_IS_WELL = b"."


class Guardian:
    """The daemon's side: starts the process, and lets it go when everything was removed in order."""

    def __init__(self, layout: Layout) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hyperpod_rehearsal.guardian", "--state", str(layout.root)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        identity = identify_unless_gone_or_zombie(self._process.pid)
        if identity is not None:
            state.write_process_identity(layout.guardian_file, identity)

    def end_without_cleanup(self) -> None:
        """End the process without any clean-up."""
        self._process.communicate(ALL_IS_WELL, timeout=30)


def main(argv: Optional[List[str]] = None) -> int:
    """Wait for the end of the daemon. Exit code 1 when something could not be removed after it."""
    parser = argparse.ArgumentParser(prog="python -m hyperpod_rehearsal.guardian")
    parser.add_argument("--state", type=Path, required=True)
    layout = Layout(parser.parse_args(argv).state)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(sys.stdin.fileno(), 1) == ALL_IS_WELL:
        return 0
    print("the daemon was killed: removing its machines", flush=True)
    remaining = cleanup.remove_host_resources_and_list_remaining(layout)
    if remaining:
        print("left behind:", ", ".join(remaining), flush=True)
    if remaining:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
