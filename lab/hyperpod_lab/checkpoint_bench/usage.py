"""What the engine holds: memory and descriptors of the trainer and of its agent, from /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

_PERIOD = 0.02


def find_child_agent_pids() -> list[int]:
    """Return the pids of the agents that this process has started."""
    trainer_pid = os.getpid()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != trainer_pid and _parent_pid(entry) == trainer_pid:
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"checkpoint.agent.agent_main" in command:
                pids.append(int(entry.name))
    return pids


def _parent_pid(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def anonymous_memory_bytes(pid: int) -> int:
    """Return the memory that is the process's own: anonymous pages, not the shared segments, not files."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def descriptor_count(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def shared_memory_segment_bytes(shared_memory_directory: str) -> int:
    """Return how many bytes this user's segments take in shared memory."""
    total = 0
    for entry in os.scandir(shared_memory_directory):
        if entry.name.startswith("hpk-"):
            total += entry.stat().st_blocks * 512
    return total


class Watch:
    """Peaks while the block runs, sampled every 20 ms."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._stop = threading.Event()
        self.private = {pid: 0 for pid in pids}
        self.descriptors = {pid: 0 for pid in pids}
        self.together = 0
        """Descriptors of all of them at one moment."""
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True)

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(_PERIOD):
            now = {pid: descriptor_count(pid) for pid in self._pids}
            self.together = max(self.together, sum(now.values()))
            for pid in self._pids:
                self.private[pid] = max(self.private[pid], anonymous_memory_bytes(pid))
                self.descriptors[pid] = max(self.descriptors[pid], now[pid])

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
