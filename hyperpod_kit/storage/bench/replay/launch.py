"""Start the ranks of a phase, collect their results, and leave nothing running."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar

from hyperpod_kit.environment import HPK_FAILPOINT, HPK_RESUME_FROM, HPK_RESUME_MEMORY, HPK_SHM_DIR
from hyperpod_kit.storage.bench.replay.assignment import AnyAssignment, Assignment
from hyperpod_kit.storage.bench.replay.workload import rank_count_of_mode
from hyperpod_kit.untrusted import by_descriptor

_TIMEOUT = 420.0
_END_SECONDS = 10.0
# A fresh process forked from one that has imported torch: an import of torch would cost more than most samples.
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOAD = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict")

AnyLauncher = TypeVar("AnyLauncher", bound="RankLauncher")


class BenchError(Exception):
    """A phase failed: its first error, and the tail of its log."""


class RankLauncher:
    """A scratch directory on the disk to measure, and one in shared memory; both are removed at the end, also after a
    SIGTERM, which ends the block as an exception does."""

    def __init__(self, base: Path, shared: str, preload: Sequence[str]) -> None:
        """`preload`: modules that every rank needs, beside torch."""
        self.directory = Path(tempfile.mkdtemp(prefix="hyperpod-kit-bench-", dir=base))
        self.shared = tempfile.mkdtemp(prefix="hyperpod-kit-bench-", dir=shared)
        self._previous_shm_directory = os.environ.get(HPK_SHM_DIR)
        self._previous_handler: Any = None
        self._preload = [*_PRELOAD, *preload]
        self._count = 0

    def __enter__(self: AnyLauncher) -> AnyLauncher:
        self._previous_handler = signal.signal(signal.SIGTERM, _exit_on_signal)
        os.environ[HPK_SHM_DIR] = self.shared
        for name in (HPK_RESUME_FROM, HPK_RESUME_MEMORY, HPK_FAILPOINT, "SLURM_JOB_ID"):
            os.environ.pop(name, None)
        _CONTEXT.set_forkserver_preload(self._preload)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait_or_kill_agents()
        by_descriptor.remove_tree(self.directory, ignore_errors=True)
        by_descriptor.remove_tree(self.shared, ignore_errors=True)
        if self._previous_shm_directory is None:
            os.environ.pop(HPK_SHM_DIR, None)
        else:
            os.environ[HPK_SHM_DIR] = self._previous_shm_directory
        signal.signal(signal.SIGTERM, self._previous_handler)

    def make_directory(self, name: str) -> Path:
        """Make a directory for one run's files."""
        path = self.directory / name
        by_descriptor.make_directory(path)
        return path

    def end_agents_and_remove_run_files(self, directory: Path) -> None:
        """Remove a run's files, and what its killed trainers left in shared memory."""
        self.wait_or_kill_agents()
        by_descriptor.remove_tree(directory)
        for entry in os.scandir(self.shared):
            by_descriptor.unlink(entry.path)

    def make_assignments(self, phase: str, size: str, mode: str, repeat: int, directory: Path) -> list[Assignment]:
        """Make the assignments of all ranks for the next start; each has its share of the cores."""
        self._count += 1
        world = rank_count_of_mode(mode)
        threads = max(1, len(os.sched_getaffinity(0)) // world)
        tag = f"{self._count:03d}-{phase}"
        return [
            Assignment(phase, size, mode, number, world, threads, repeat, str(directory), tag)
            for number in range(world)
        ]

    def run_ranks(
        self, run: Callable[[AnyAssignment], None], assignments: Sequence[AnyAssignment]
    ) -> list[dict[str, Any]]:
        """Run `run` for each rank, in a process of its own, and return the results. Raises BenchError."""
        processes = [_CONTEXT.Process(target=run, args=(assignment,)) for assignment in assignments]
        for process in processes:
            process.start()
        deadline_at = time.monotonic() + _TIMEOUT
        try:
            while any(process.is_alive() for process in processes) and time.monotonic() < deadline_at:
                if any(
                    assignment.result_path.exists() and "error" in json.loads(assignment.result_path.read_text())
                    for assignment in assignments
                ):
                    deadline_at = min(deadline_at, time.monotonic() + _END_SECONDS)  # the other ranks wait for this one
                time.sleep(0.02)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
        results = [_read_result_or_error(assignment) for assignment in assignments]
        for assignment, result in zip(assignments, results, strict=True):
            if "error" in result:
                raise _bench_error(assignment, result["error"])
        return results

    def wait_or_kill_agents(self) -> None:
        """Wait until the agents of killed trainers have written what they hold and ended; kill them after 10 s."""
        deadline_at = time.monotonic() + _END_SECONDS
        while agents := _agent_pids(self.shared):
            if time.monotonic() > deadline_at:
                for pid in agents:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _read_result_or_error(assignment: AnyAssignment) -> dict[str, Any]:
    """Read a rank's result; an error where it has left none."""
    if not assignment.result_path.exists():
        return {"error": f"rank {assignment.rank} wrote no result within {_TIMEOUT:g} s"}
    result: dict[str, Any] = json.loads(assignment.result_path.read_text())
    return result


def _bench_error(assignment: AnyAssignment, error: str) -> BenchError:
    """Make a rank's error with the tail of its log."""
    lines = [f"{assignment.size} {assignment.mode} {assignment.phase}, rank {assignment.rank}: {error}"]
    if assignment.log_path.exists():
        lines += assignment.log_path.read_text().splitlines()[-12:]
    return BenchError("\n".join(lines))


def _agent_pids(shm_directory: str) -> list[int]:
    """List the agents whose segments lie under `shared`."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_under_shared = f"{HPK_SHM_DIR}={shm_directory}\0".encode() in (entry / "environ").read_bytes()
                if is_under_shared and b"checkpoint.agent.agent_main" in (entry / "cmdline").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids
