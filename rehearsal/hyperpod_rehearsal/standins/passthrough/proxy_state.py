"""efs-utils' notes on its mounts: /var/run/efs/<file system>.<mount point with dots>.<port of its proxy>.

A reader of /proc/mounts learns nothing of the file system; this file is where it stands. Form: efs-utils 3.1,
efs_utils_common/proxy.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Dict, Sequence

DIRECTORY_VARIABLE = "HPK_STANDIN_STATE"
DIRECTORY = "/var/run/efs"
PORTS = range(20049, 20450)
"""efs-utils' own default range."""


class ProxyState:
    """The state file of one mount, from its mount to its unmount."""

    def __init__(self, file_system: str, target: str, details: Dict[str, Any]) -> None:
        self._directory = os.environ.get(DIRECTORY_VARIABLE, DIRECTORY)
        self._file_system = file_system
        self._middle = os.path.abspath(target).replace("/", ".").lstrip(".")
        self._details = {"mountpoint": target, **{key: value for key, value in details.items() if value is not None}}
        self._path = ""

    def write_state_file_and_delete_stale(self, pid: int, command: Sequence[str]) -> None:
        """Write the state file of the process that serves the mount.

        Files of dead processes are deleted, as efs-utils' watchdog does.
        """
        os.makedirs(self._directory, mode=0o755, exist_ok=True)
        taken = set()
        for name in os.listdir(self._directory):
            path = os.path.join(self._directory, name)
            if self._is_of_dead_process(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            else:
                taken.add(name.rpartition(".")[2])
        port = next(number for number in PORTS if str(number) not in taken)
        self._path = os.path.join(self._directory, f"{self._file_system}.{self._middle}.{port}")
        # As hyperpod_kit.system.atomic_file does it: this program imports nothing of ours.
        fresh = os.path.join(self._directory, f"~{os.path.basename(self._path)}")
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump({"pid": pid, "cmd": list(command), "files": [], "mount_time": time.time(), **self._details}, file)
        os.rename(fresh, self._path)

    @staticmethod
    def _is_of_dead_process(path: str) -> bool:
        try:
            with open(path, encoding="utf-8") as file:
                pid = int(json.load(file)["pid"])
        except (OSError, ValueError, KeyError):
            return False  # somebody else's file
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        except (OSError, IndexError):
            return True

    def delete_state_file(self) -> None:
        """Delete the state file of a mount that was unmounted."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
