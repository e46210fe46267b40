"""Types the user's commands against a rehearsal cluster and reads what they print.

Everything here goes through the console script `hyperpod-kit`, as a user would; nothing is imported from the kit.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).with_name("hyperpod-kit")
CONFIG = REPOSITORY / "provisioning_parameters.example.json"
TRAIN = "/opt/train"
"""Where nodes see the training environment."""

LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "NODE_FAIL", "REQUEUE_FED", "SUSPENDED")
"""States of a job that can still go on; NODE_FAIL is what a job shows for a moment before its requeue."""

T = TypeVar("T")


class DemoError(Exception):
    """A command failed or a condition did not come true in time."""


@dataclass
class Driver:
    """One rehearsal cluster by its name; `logs` receives the output of every command."""

    name: str
    logs: Path
    config: Path = CONFIG
    environment: Dict[str, str] = field(default_factory=dict)
    shielded: bool = False
    """Run commands in a session of their own, where no Ctrl-C and no closing terminal reaches them."""

    def kit(self, *args: str, timeout: float = 300, check: bool = True, echo: bool = False) -> str:
        """Run `hyperpod-kit ARGS`; return its standard output. Raises DemoError with the end of its output."""
        return self._run(args, timeout, check, echo).stdout or ""

    def said(self, *args: str, timeout: float = 300) -> str:
        """Run `hyperpod-kit ARGS`; return the first line of what it told the person in front of it."""
        done = self._run(args, timeout, True, False)
        return next(iter((done.stderr or done.stdout).strip().splitlines()), "")

    def _run(self, args: Sequence[str], timeout: float, check: bool, echo: bool) -> subprocess.CompletedProcess[str]:
        argv = [str(PROGRAM), *args]
        done = run(argv, {**os.environ, **self.environment}, timeout, capture=not echo, session=self.shielded)
        with open(self.logs / "commands.log", "a") as log:
            log.write(f"$ {shlex.join(argv)}\n{done.stdout or ''}{done.stderr or ''}-> {done.returncode}\n")
        if check and done.returncode:
            tail = "\n".join(((done.stdout or "") + (done.stderr or "")).strip().splitlines()[-12:])
            raise DemoError(f"`hyperpod-kit {shlex.join(args)}` exited {done.returncode}\n{tail}")
        return done

    def data(self, *args: str, timeout: float = 300, check: bool = True) -> Any:
        """The same with --json."""
        return json.loads(self.kit(*args, "--json", timeout=timeout, check=check))

    def aws(self, *args: str) -> Dict[str, Any]:
        """Run AWS's own command line against the rehearsal. Raises DemoError with what it said."""
        argv = [str(PROGRAM.with_name("aws")), *args, "--output", "json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, **self.environment})
        if done.returncode:
            raise DemoError(f"`aws {shlex.join(args)}` exited {done.returncode}\n{done.stderr.strip()}")
        answer: Dict[str, Any] = json.loads(done.stdout or "{}")
        return answer

    def up(self, shares: Mapping[Path, str], echo: bool = False, trees: Sequence[Path] = ()) -> None:
        """Boot the endpoint and take its address and keys into the environment of later commands."""
        shared = [word for host, path in shares.items() for word in ("--share", f"{host}:{path}")]
        shared += [word for tree in trees for word in ("--tree", str(tree))]
        self.kit("rehearse", "up", "--name", self.name, *shared, timeout=900, echo=echo)
        exports = self.kit("rehearse", "env", "--name", self.name)
        for word in shlex.split(exports, comments=True):
            key, equals, value = word.partition("=")
            if equals:
                self.environment[key] = value

    def down(self) -> None:
        """Take everything down. Safe to call at any moment and twice."""
        self.kit("rehearse", "down", "--name", self.name, timeout=300)

    def on(
        self, node: str, command: str, *, user: Optional[str] = None, check: bool = True, timeout: float = 180
    ) -> str:
        """Run a shell command on a node, as root or as `user`."""
        inner = ["runuser", "-l", user, "-c", command] if user else ["bash", "-c", command]
        return self.kit("rehearse", "exec", "--name", self.name, node, "--", *inner, check=check, timeout=timeout)

    def endpoint_of_nodes(self) -> str:
        """Where AWS is for who is on a node; AWS's own nodes need no such word."""
        return self.on("controller", '. /etc/environment; echo "$AWS_ENDPOINT_URL"').strip()

    def nodes(self) -> List[Dict[str, Any]]:
        """list-cluster-nodes: `instance_id`, `group`, `status`, `address` each."""
        found: List[Dict[str, Any]] = self.data("list-cluster-nodes", str(self.config))["nodes"]
        return found

    def submit(
        self,
        script: str,
        *args: str,
        root: str,
        options: Sequence[str] = ("--auto-resume=1",),
        variables: Optional[Mapping[str, str]] = None,
    ) -> str:
        """sbatch as the ordinary user `trainer`, in the directory that an admin gave them; return the job id.
        `variables`: of the job's environment."""
        self.on("controller", "install -d -o trainer -g trainer /fsx/trainer")
        line = shlex.join(
            [
                "env",
                *(f"{name}={value}" for name, value in (variables or {}).items()),
                "sbatch",
                "--parsable",
                "--chdir",
                "/fsx/trainer",
                "--output",
                "/fsx/trainer/train-%j.out",
                *options,
                script,
                root,
                *args,
            ]
        )
        return self.on("controller", line, user="trainer").strip().splitlines()[-1].split(";")[0]

    def job_state(self, job: str) -> str:
        """RUNNING, PENDING, COMPLETED, …; empty when Slurm has forgotten the job or does not answer."""
        out = self.on("controller", f"scontrol -o show job {job}", check=False)
        found = re.search(r"JobState=(\S+)", out)
        return found.group(1) if found else ""

    def job_nodes(self, job: str) -> List[str]:
        """Host names of a running job, the batch host first."""
        return self.on("controller", f"scontrol show hostnames $(squeue -h -j {job} -o %N)").split()

    def output(self, job: str) -> str:
        """What the job has printed so far."""
        return self.on("controller", f"cat /fsx/trainer/train-{job}.out", check=False)


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
    capture: bool,
    session: bool = False,
    grace: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """subprocess.run, but a command that is given up, by Ctrl-C or its deadline, may clean up for `grace` seconds."""
    pipe = subprocess.PIPE if capture else None
    proc = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=dict(env), start_new_session=session
    )
    try:
        out, err = proc.communicate(timeout=timeout)
    except BaseException:
        proc.terminate()
        try:
            proc.communicate(timeout=grace)
        except subprocess.TimeoutExpired:
            proc.kill()
            proc.wait()
        raise
    return subprocess.CompletedProcess(argv, proc.returncode, out, err)


def events(output: str) -> List[Dict[str, Any]]:
    """Every JSON object that a line of a job's output holds, in order (`hyperpod-kit: {…}` and the trainer's own)."""
    found = []
    for line in output.splitlines():
        start = line.find("{")
        if start < 0:
            continue
        try:
            value = json.loads(line[start:])
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def steps(output: str) -> List[int]:
    """Steps that the trainer reported, in order."""
    return [event["step"] for event in events(output) if "loss" in event]


def wait_until(what: str, condition: Callable[[], Optional[T]], *, timeout: float, every: float = 0.5) -> T:
    """Poll until `condition` returns something true. Raises DemoError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise DemoError(f"no {what} within {timeout:g} s")
        time.sleep(every)
