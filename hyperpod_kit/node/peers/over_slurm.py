"""A command on another node over Slurm: a job of our own where the node is free, a step beside a job where it is not.

Slurm lets nobody but its owner add a step to a job, not even root (measured with 22.05: "Access/permission denied"),
so root takes the owner's place for it. `--overlap` shares what the job has; the step ends within seconds. The owner may
look into that srun and that step, and change what they say: nothing of root's environment goes along, and whoever
passes the answer on says whose it is.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Sequence

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import records
from hyperpod_kit.slurm.hostlist import expand

STEP_NAME = "hyperpod-kit-mounts"
IMMEDIATE = 5
"""Seconds that a node may take to be given to us; one that is busy is asked beside its job."""


KEPT = ("PATH", "LANG", "SLURM_CONF")
"""Variables that srun gets of ours."""


@dataclass(frozen=True)
class Job:
    """A running job: how a step is added to it, and its owner's numbers."""

    job_id: str
    uid: int
    gid: int


@dataclass(frozen=True)
class SlurmRoute:
    """argv: what to run to get the command run on the node, None: `reason` not. owner: the uid of the user in whose job
    it runs, so that the answer is that user's word; None when it is our own job."""

    argv: Optional[Sequence[str]]
    reason: str = ""
    owner: Optional[int] = None


class SlurmTransport:
    """Knows which job runs where; Slurm is asked once, and only when somebody wants to know."""

    def __init__(self, runner: Runner, environ: Mapping[str, str] = os.environ) -> None:
        self._runner = runner
        # `env -i`: what setpriv and srun have is in /proc of this machine, theirs to read once they are the owner's.
        self._clean = ["env", "-i", *(f"{name}={environ[name]}" for name in KEPT if name in environ)]
        self._lock = threading.Lock()
        self._jobs: Optional[Dict[str, Job]] = None
        self._error = ""

    def route(self, name: str, command: Sequence[str]) -> SlurmRoute:
        """Return the command line that gets the command run on the node over Slurm, or why there is none. Runs
        nothing on the node itself."""
        jobs = self._running_jobs_by_node()
        if jobs is None:
            return SlurmRoute(None, self._error)
        step = [
            "srun",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={name}",
            "--overlap",
            f"--job-name={STEP_NAME}",
            "--export=NONE",
        ]
        job = jobs.get(name)
        if job is None:
            return SlurmRoute([*self._clean, *step, f"--immediate={IMMEDIATE}", "--time=1", *command])
        step_in_job = [*step, f"--jobid={job.job_id}", *command]
        if os.geteuid() == job.uid:
            return SlurmRoute([*self._clean, *step_in_job], owner=job.uid)
        if os.geteuid() != 0:
            return SlurmRoute(
                None, f"{name} is busy with job {job.job_id} of user {job.uid}: only root can ask beside it"
            )
        become = ["setpriv", f"--reuid={job.uid}", f"--regid={job.gid}", "--init-groups"]
        return SlurmRoute([*self._clean, *become, *step_in_job], owner=job.uid)

    def _running_jobs_by_node(self) -> Optional[Dict[str, Job]]:
        """Node -> a job that runs there; None when Slurm cannot be asked."""
        with self._lock:
            if self._jobs is None and not self._error:
                try:
                    self._jobs = self._query_jobs()
                except RunError as err:
                    self._error = err.stderr.strip() or err.message
            return self._jobs

    def _query_jobs(self) -> Dict[str, Job]:
        jobs: Dict[str, Job] = {}
        for record in records.query_squeue(self._runner):
            uid, gid = record.get("UserId", ""), record.get("GroupId", "")
            if record.get("JobState") != "RUNNING" or not uid.isdigit() or not gid.isdigit():
                continue
            step_of = record["JobId"]
            if "HetJobId" in record:
                step_of = f"{record['HetJobId']}+{record.get('HetJobOffset', '0')}"
            with contextlib.suppress(ValueError):
                for name in expand(record.get("NodeList", "")):
                    jobs.setdefault(name, Job(step_of, int(uid), int(gid)))
        return jobs
