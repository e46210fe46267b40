"""In the place of `srun --auto-resume=1`: srun below it, started again when the cluster agent has exchanged the nodes.

Words and order are those of public logs, misspellings included.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from types import FrameType
from typing import Any, Dict, List, Optional, Sequence

from hyperpod_rehearsal.standins.step_retry.agent_call import AgentError, call_agent

BELOW, WATCH = "HYPERPOD_STANDIN_BELOW", "HYPERPOD_STANDIN_WATCH"
SLURM_BIN = "/opt/slurm/bin"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_GRACE = 15.0
"""Seconds between TERM and KILL for an srun that waits for a node which is gone."""


class RetriedSrun:
    """One `srun`: `program` is its real path, `arguments` its own."""

    def __init__(self, program: str, arguments: Sequence[str]) -> None:
        self._argv = [program, *arguments]
        self._job = os.environ["SLURM_JOB_ID"]
        self._step = "0"
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._srun: Optional[subprocess.Popen[bytes]] = None
        self._ended = False
        self._controller = _read_controller_address()
        self._listener = socket.create_server(("0.0.0.0", 0))
        threading.Thread(target=self._terminate_srun_on_task_failure, daemon=True).start()

    def run_with_retries(self) -> int:
        """Run the step until it succeeds, is not retried, or srun is ended by a signal; returns the exit code."""
        for number in FORWARDED:
            signal.signal(number, self._forward_signal)
        attempt = 0
        while True:
            code = self._launch_and_wait()
            if code == 0 or self._ended:
                return code
            try:
                if not self._exchange_unhealthy_nodes_if_retried():
                    return code
            except AgentError as err:
                self._log(f"{err}", "Error")
                return code
            attempt += 1
            self._log(f"Retrying step. Attempt number: {attempt}")

    def _launch_and_wait(self) -> int:
        """Start the real srun and wait for it; its exit code."""
        reading, writing = os.pipe()
        listener_address = f"{socket.gethostname()}:{self._listener.getsockname()[1]}"
        env = {**os.environ, BELOW: str(writing), WATCH: listener_address}
        libc = ctypes.CDLL(None)
        # Who kills this process means srun: its ranks must not go on without it.
        self._child = subprocess.Popen(
            self._argv,
            env=env,
            pass_fds=[writing],
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
        os.close(writing)
        with os.fdopen(reading) as step_pipe:
            self._step = step_pipe.readline().strip() or self._step
        self._srun = self._child
        code = self._child.wait()
        self._srun = None
        if code >= 0:
            return code
        return 128 - code

    def _terminate_srun_on_task_failure(self) -> None:
        """Terminate srun when a task reports its failure, and kill it after a grace period.

        srun ends its step by itself, but not where a node of the step no longer answers it.
        """
        while True:
            with self._listener.accept()[0] as connection:
                connection.settimeout(5)
                try:
                    is_failure = connection.recv(16).startswith(b"failed")
                except OSError:
                    is_failure = False
            child = self._srun
            if is_failure and child is not None and child.poll() is None:
                child.terminate()
                try:
                    child.wait(_GRACE)
                except subprocess.TimeoutExpired:
                    child.kill()

    def _forward_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self._ended = self._ended or number in ENDING
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)

    def _exchange_unhealthy_nodes_if_retried(self) -> bool:
        """Have the agent diagnose and replace unhealthy nodes; returns whether the step is to be started again.

        Raises AgentError.
        """
        self._log("Initiating communication with cluster agent to diagnose health of nodes")
        diagnosis = self._call_agent("diagnose")
        self._log(f"Response from cluster agent: JobId={self._job}, ResumeAction={diagnosis['action']}")
        if diagnosis["action"] != "RETRYSTEP":
            if diagnosis["action"] == "REQUEUEJOB":
                signal.pause()  # Slurm ends this run of the job
            return False
        self._log("Job failed - replacing nodes")
        self._log("Job failed - Droping unhealthy nodes")
        shrunk = self._call_agent("shrink")
        self._log(f"Succesfully shrink job to retain healthy nodes {shrunk['nodes']}")
        donor = self._allocate_donor_job(shrunk["missing"], shrunk["nodes"])
        if donor is None or self._ended:
            return False
        expanded = self._call_agent("expand", donor=donor)
        self._log("Job Expansion complete")
        self._log(f"Updating to new node list {expanded['nodes']}")
        self._argv = [with_new_nodelist(word, expanded["nodes"]) for word in self._argv]
        return not self._ended

    def _call_agent(self, action: str, **more: str) -> Dict[str, Any]:
        return call_agent(self._controller, {"action": action, "job": self._job, **more})

    def _allocate_donor_job(self, count: int, excluded: str) -> Optional[str]:
        """The number of a job with so many other nodes, once there are such; it gives them to ours."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SALLOC", "SPANK"))}
        argv = [f"{SLURM_BIN}/salloc", "--no-shell", f"--dependency=expand:{self._job}", f"--nodes={count}"]
        argv.append(f"--exclude={excluded}")
        for name, option in (
            ("SLURM_NTASKS_PER_NODE", "--ntasks-per-node"),
            ("SLURM_CPUS_PER_TASK", "--cpus-per-task"),
            ("SLURM_JOB_PARTITION", "--partition"),
        ):
            if os.environ.get(name):
                argv.append(f"{option}={os.environ[name]}")
        salloc = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/")
        self._child = salloc
        granted = None
        assert salloc.stderr is not None
        for raw in salloc.stderr:
            line = raw.decode(errors="replace").rstrip()
            granted = granted or re.search(r"Granted job allocation (\d+)", line)
            if "queued and waiting" in line or "error" in line:
                print(line.replace("salloc:", "srun:", 1), file=sys.stderr, flush=True)
        if salloc.wait() == 0 and granted:
            return granted.group(1)
        return None

    def _log(self, message: str, kind: str = "Info") -> None:
        print(f"[Auto Resume] {kind}: JobID: {self._job} StepID: {self._step} {message}", file=sys.stderr, flush=True)


def with_new_nodelist(word: str, nodes: str) -> str:
    """An argument of srun with the job's nodes in the place of those that it named before."""
    if word.startswith("--nodelist="):
        return f"--nodelist={nodes}"
    return word


def _read_controller_address() -> str:
    """The address of slurm.conf's first SlurmctldHost, its name where none is given."""
    shown = subprocess.run(
        [f"{SLURM_BIN}/scontrol", "show", "config"], stdout=subprocess.PIPE, universal_newlines=True, timeout=30
    ).stdout
    match = re.search(r"^SlurmctldHost\[0\]\s*=\s*([^(\s]+)(?:\(([^)\s]+)\))?", shown, re.M)
    if match:
        return match.group(2) or match.group(1)
    return "localhost"


def main(argv: List[str]) -> int:
    return RetriedSrun(argv[0], argv[1:]).run_with_retries()
