"""End a run whose checkpoint root hangs on the batch host alone.

`job run` hangs with the root, since its log and its ledger are there. Slurm cannot end such a run either: its
slurmstepd first writes why into the job's log, and hangs as well (seen with 22.05: COMPLETING for as long as the mount
hung). So a thread that touches no file marks the job and ends the script; `job sweep`, on the controller, queues it
again. This node has been drained for its mount by then.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import threading
import time
from typing import Callable, List, Optional

from hyperpod_kit.errors import JobError, RunError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.step.storage import CHECK_INTERVAL, MARKS, Probe, has_degraded_mounts
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.environment import AWAY_MARK, JobEnvironment

PATIENCE = 20.0
"""Seconds for which the root has to stay away; the checks of the node have taken their own time before."""


def kill_children_and_exit(exit_code: int) -> None:
    """End this process and its children, srun above all.

    It hangs at the log too, nothing finds an orphan of it, and the step's slurmstepds wait a minute for it to take
    their output.
    """
    for child in children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os._exit(exit_code)


def children() -> List[int]:
    """Return the pids of this process's children, whichever thread started them."""
    child_pids: List[int] = []
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            child_pids += map(int, file.read().split())
    return child_pids


class BatchHostWatch:
    """Watch the checkpoint root from a thread while the object is entered.

    `node` is the name of this host in Slurm, `state` the directory to probe, and `end` ends this process.
    """

    def __init__(
        self,
        runner: Runner,
        job: JobEnvironment,
        node: str,
        state: str,
        *,
        marks: str = MARKS,
        check_interval: float = CHECK_INTERVAL,
        patience: float = PATIENCE,
        end: Callable[[int], None] = kill_children_and_exit,
    ) -> None:
        self._runner = runner
        self._job = job
        self._node = node
        self._probe = Probe(state)
        self._marks = marks
        self._check_interval = check_interval
        self._patience = patience
        self._end = end
        self._over = threading.Event()

    def __enter__(self) -> BatchHostWatch:
        threading.Thread(target=self._end_run_once_root_stays_away, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _end_run_once_root_stays_away(self, clock: Callable[[], float] = time.monotonic) -> None:
        since: Optional[float] = None
        while not self._over.wait(self._check_interval):
            if not has_degraded_mounts(self._marks) or self._probe.answers():
                since = None
                continue
            if since is None:
                since = clock()
            if clock() - since >= self._patience and self._mark_job_for_sweep_if_requeueable():
                self._end(ExitCode.NO_STORAGE)
                return

    def _mark_job_for_sweep_if_requeueable(self) -> bool:
        """Mark the job where another node would serve it and Slurm may requeue it; return whether it is marked."""
        try:
            if not is_drained_for_mount_unlike_most(self._runner, self._node):
                return False
            record = control.query_job_record(self._runner, self._job.id)
            if record.get("Requeue") != "1":
                return False
            control.add_to_comment(self._runner, self._job.id, record, AWAY_MARK)
            return True
        except (RunError, JobError):
            return False


def is_drained_for_mount_unlike_most(runner: Runner, node_name: str) -> bool:
    """Return whether this node is drained for a mount, and half of all nodes at most are. Raises RunError."""
    record_by_node = control.query_nodes(runner)
    drained_nodes = [record.name for record in record_by_node.values() if record.is_drained_for_mount]
    return node_name in drained_nodes and 2 * len(drained_nodes) <= len(record_by_node)
