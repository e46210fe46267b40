"""Ask other nodes for their mounts: over ssh, and over Slurm where ssh does not let us in.

One JSON object on standard input says whom to ask, one line of JSON comes out for each node as soon as it has
answered, and a last one with the count: who reads this knows whether it is whole.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, TextIO, Tuple

from hyperpod_kit.errors import RunError, RunTimeout, UsageError
from hyperpod_kit.node.machine.paths import PROGRAM
from hyperpod_kit.run import LocalRunner, Runner
from hyperpod_kit.slurm import records
from hyperpod_kit.slurm.hostlist import expand

AT_ONCE = 256
"""Nodes that are asked at the same time, so that those which hang hold up few others."""

LIMIT = 256 << 10
"""Characters of a node's output that are passed on."""

SSH_FAILED = 255
"""ssh's own exit code; the program that it runs there ends with others."""


@dataclass(frozen=True)
class PeerQuery:
    """Whom to ask and how long to wait. nodes: (id, address, name in Slurm) each; times in seconds."""

    nodes: Tuple[Tuple[str, str, str], ...]
    command: Tuple[str, ...] = (PROGRAM, "node", "mounts", "--json")
    connect_timeout: float = 10.0
    timeout: float = 10.0

    @classmethod
    def read(cls, stream: TextIO) -> PeerQuery:
        """Read the query as JSON from the stream. Raises UsageError."""
        try:
            raw = json.load(stream)
            nodes = tuple((str(node["id"]), str(node["address"]), str(node["slurm"])) for node in raw["nodes"])
            return cls(nodes, connect_timeout=float(raw["connect_timeout"]), timeout=float(raw["timeout"]))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as err:
            raise UsageError(
                f"standard input is not a list of nodes to query: {err}",
                hint="hyperpod-kit validate-mounts --via controller writes it",
            ) from err


def query_peers(
    question: PeerQuery, runner: Runner, local_id: str, local_program: str = PROGRAM
) -> Iterator[Dict[str, Any]]:
    """One object a node: id, way, and returncode, stdout and stderr, or error; `owner`: the uid of the user in whose
    job it was asked, who may have changed the answer.

    `local_id`: this node, which runs `local_program` in place of the command's first word.
    """
    local = (local_id, (local_program, *question.command[1:]))
    slurm = SlurmTransport(runner)
    with ThreadPoolExecutor(max(1, min(AT_ONCE, len(question.nodes)))) as pool:
        futures = [pool.submit(_query_peer, question, runner, slurm, node, local) for node in question.nodes]
        for future in as_completed(futures):
            yield future.result()


def _query_peer(
    question: PeerQuery,
    runner: Runner,
    slurm: SlurmTransport,
    node: Tuple[str, str, str],
    local: Tuple[str, Sequence[str]],
) -> Dict[str, Any]:
    identity, address, name = node
    if identity and identity == local[0]:
        return {"id": identity, "way": "here", **_run_to_answer_fields(runner, local[1], question.timeout)}
    over_ssh = _run_to_answer_fields(runner, ssh_argv(question, address), question.connect_timeout + question.timeout)
    refused = over_ssh.get("returncode") == SSH_FAILED or "error" in over_ssh
    if not refused or over_ssh.get("timeout"):
        return {"id": identity, "way": "ssh", **over_ssh}
    ssh_error = over_ssh.get("error") or (over_ssh["stderr"].strip().splitlines() or ["ssh failed"])[-1]
    route = slurm.route(name, question.command)
    if route.argv is None:
        return {"id": identity, "way": "ssh", "error": f"from the controller: {ssh_error}; over Slurm: {route.reason}"}
    over_slurm = _run_to_answer_fields(runner, route.argv, question.connect_timeout + question.timeout)
    if "error" in over_slurm or not over_slurm["stdout"].strip():
        slurm_error = over_slurm.get("error") or (over_slurm["stderr"].strip().splitlines() or ["nothing said"])[-1]
        return {"id": identity, "way": "slurm", "error": f"from the controller: {ssh_error}; over Slurm: {slurm_error}"}
    return {"id": identity, "way": "slurm", "owner": route.owner, **over_slurm}


def ssh_argv(question: PeerQuery, address: str) -> List[str]:
    """Return the command line of OpenSSH's client, with the configuration of whoever runs it: how nodes are
    known is the cluster's own affair."""
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={max(1, round(question.connect_timeout))}",
        "ForwardX11=no",
        "LogLevel=ERROR",
    ]
    flags = [word for option in options for word in ("-o", option)]
    return ["ssh", "-T", *flags, "--", address, " ".join(shlex.quote(word) for word in question.command)]


def _run_to_answer_fields(runner: Runner, argv: Sequence[str], seconds: float) -> Dict[str, Any]:
    try:
        done = runner.run(argv, timeout=seconds, check=False)
    except RunTimeout:
        return {"error": f"no answer within {seconds:g} s", "timeout": True}
    except RunError as err:
        return {"error": err.stderr or err.message}
    return {"returncode": done.returncode, "stdout": done.stdout[:LIMIT], "stderr": done.stderr[-2000:]}


def main(stream: Optional[TextIO] = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run `hyperpod-kit node ask`: read a query from the stream and print one line of JSON for each node. Exit
    code 0 when all nodes were queried, whatever they returned."""
    from hyperpod_kit.node.machine.context import open_node

    node = open_node()
    question = PeerQuery.read(stream or sys.stdin)
    # A shell that is no login shell does not know where Slurm is.
    os.environ["PATH"] = environ.get("PATH", "/usr/bin:/bin") + ":/opt/slurm/bin"
    count = 0
    for response in query_peers(question, LocalRunner(), node.facts.instance_id, node.paths.under_root(PROGRAM)):
        print(json.dumps(response), flush=True)
        count += 1
    print(json.dumps({"end": count}), flush=True)
    return 0


# A command on another node over Slurm: a job of our own where the node is free, a step beside a job where it is not.
#
# Slurm lets nobody but its owner add a step to a job, not even root (measured with 22.05: "Access/permission
# denied"), so root takes the owner's place for it. `--overlap` shares what the job has; the step ends within seconds.
# The owner may look into that srun and that step, and change what they say: nothing of root's environment goes along,
# and whoever passes the answer on says whose it is.

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
                None,
                (
                    f"{name} is busy with job {job.job_id} of user {job.uid}: only root can query the node beside the "
                    "job"
                ),
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
