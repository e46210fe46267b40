"""Where a torture happens: directories of its own, and an end of everything that was started there."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hyperpod_kit.checkpoint.agent.shm import lock
from hyperpod_kit.system import process
from hyperpod_kit.system.process import Process
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_kit.untrusted import by_descriptor


@dataclass(frozen=True)
class Ground:
    """A scratch directory on disk and one in shared memory."""

    disk: Path
    shm: Path

    def make_subground(self, name: str) -> Ground:
        """Make a new, empty pair of directories below this one."""
        made = Ground(self.disk / name, self.shm / name)
        by_descriptor.make_directory(made.disk)
        by_descriptor.make_directory(made.shm)
        return made

    @property
    def root(self) -> str:
        return str(self.disk / "root")

    def find_living_agents(self) -> list[Process]:
        """Return the living agents that hold a lock here."""
        holders = [lock.read_agent_and_trainer(str(path)) for path in sorted(self.shm.glob("*.lock"))]
        return [holder[0] for holder in holders if holder is not None and process.is_alive(holder[0])]

    def kill_agents(self) -> int:
        """Kill the agents by SIGKILL and wait until they are gone; return how many there were."""
        doomed = self.find_living_agents()
        for agent in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent.pid, signal.SIGKILL)
        wait_until(lambda: not any(process.is_alive(agent) for agent in doomed), 10.0)
        return len(doomed)

    def wipe_shared_memory(self) -> None:
        """Delete all files in the shared memory, as the loss of a node does."""
        for path in self.shm.iterdir():
            by_descriptor.unlink(path)

    def kill_agents_and_remove(self) -> None:
        self.kill_agents()
        by_descriptor.remove_tree(self.disk, ignore_errors=True)
        by_descriptor.remove_tree(self.shm, ignore_errors=True)


@contextlib.contextmanager
def temporary_ground(directory: str | None = None) -> Iterator[Ground]:
    """Make a ground below `directory` (default: the temporary one), and remove it after the block."""
    disk = Path(tempfile.mkdtemp(prefix="hpk-torture-", dir=directory))
    memory = directory
    if os.access("/dev/shm", os.W_OK):
        memory = "/dev/shm"
    shm = Path(tempfile.mkdtemp(prefix="hpk-torture-", dir=memory))
    made = Ground(disk, shm)
    try:
        yield made
    finally:
        for lock_file in sorted(shm.rglob("*.lock")):
            Ground(disk, lock_file.parent).kill_agents()
        made.kill_agents_and_remove()


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Poll a callable until it is true; False when the time is over."""
    return bool(poll_until(condition, bool, fixed_pause(0.005), seconds=seconds))
