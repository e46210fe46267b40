"""A command on another node over Slurm: a job of our own where the node is free, a step beside a job where it is not.

Slurm lets nobody but its owner add a step to a job, not even root (measured with 22.05: "Access/permission denied"),
so root takes the owner's place for it. `--overlap` shares what the job has; the step ends within seconds.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm.control import DEADLINE
from hyperpod_kit.slurm.hostlist import expand

STEP_NAME = "hyperpod-kit-mounts"
IMMEDIATE = 5
"""Seconds that a node may take to be given to us; one that is busy is asked beside its job."""


@dataclass(frozen=True)
class Job:
    """A running job: its id and its owner's numbers."""

    job_id: str
    uid: int
    gid: int


class OverSlurm:
    """Knows which job runs where; Slurm is asked once, and only when somebody wants to know."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self._jobs: Optional[Dict[str, Job]] = None
        self._error = ""

    def argv(self, name: str, command: Sequence[str]) -> Tuple[Optional[List[str]], str]:
        """(what to run to get the command run on the node, "") or (None, why it cannot be)."""
        jobs = self._running()
        if jobs is None:
            return None, self._error
        step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={name}", "--overlap", f"--job-name={STEP_NAME}"]
        job = jobs.get(name)
        if job is None:
            return [*step, f"--immediate={IMMEDIATE}", "--time=1", *command], ""
        mine = [*step, f"--jobid={job.job_id}", *command]
        if os.geteuid() == job.uid:
            return mine, ""
        if os.geteuid() != 0:
            return None, f"{name} is busy with job {job.job_id} of user {job.uid}: only root can ask beside it"
        return ["setpriv", f"--reuid={job.uid}", f"--regid={job.gid}", "--init-groups", *mine], ""

    def _running(self) -> Optional[Dict[str, Job]]:
        """Node -> a job that runs there; None when Slurm cannot be asked."""
        with self._lock:
            if self._jobs is None and not self._error:
                try:
                    self._jobs = self._ask()
                except RunError as err:
                    self._error = err.stderr.strip() or err.message
            return self._jobs

    def _ask(self) -> Dict[str, Job]:
        done = self._runner.run(["squeue", "--noheader", "--states=RUNNING", "--format=%i|%U|%G|%N"], timeout=DEADLINE)
        found: Dict[str, Job] = {}
        for line in done.stdout.splitlines():
            words = line.strip().split("|")
            if len(words) == 4 and words[1].isdigit() and words[2].isdigit():
                for name in expand(words[3]):
                    found.setdefault(name, Job(words[0], int(words[1]), int(words[2])))
        return found
