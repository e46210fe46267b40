"""The few questions that are put to Slurm's own commands, and the few orders given, each with a deadline.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from hyperpod_kit.errors import JobError, RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm.hostlist import compress
from hyperpod_kit.slurm.job_id import JobId

DEADLINE = 20.0
"""Seconds any Slurm command may take: a busy slurmctld answers late, a dead one never."""

SLURMD_PORT = 6818
"""Where slurmd listens when the node's record does not say."""

MOUNT_REASON = "hyperpod-kit:mount:"
"""How the reason of a node begins that was drained for a mount. Never `Action:`, which HyperPod acts upon."""

_PAIR = re.compile(r"([A-Za-z][\w:/]*)=(.*?)(?=\s+[A-Za-z][\w:/]*=|\s*$)")
_DOWN = re.compile(r"(?<!powered_)(?<!powering_)(?<!power_)down|fail|not_resp|\*", re.IGNORECASE)
_BAD = re.compile(r"down|fail|drain|not_resp|unk|inval|reboot|\*", re.IGNORECASE)


@dataclass(frozen=True)
class NodeRecord:
    """A node as slurmctld sees it. `state` is Slurm's own word, for example `ALLOCATED` or `DOWN*+DRAIN`.

    `booted`: when its machine was started, Unix seconds, 0 when that is not known.
    """

    name: str
    address: str
    port: int
    state: str
    reason: str = ""
    booted: float = 0.0

    @property
    def usable(self) -> bool:
        """Whether a step can be started there."""
        return _BAD.search(self.state) is None

    @property
    def down(self) -> bool:
        """Whether Slurm has lost it, which is more than that it must not be used."""
        return _DOWN.search(self.state) is not None


def parse_record(line: str) -> Dict[str, str]:
    """One line of `scontrol -o show …` as a dictionary; values may hold blanks."""
    return {match.group(1): match.group(2) for match in _PAIR.finditer(line)}


def nodes(runner: Runner, names: Sequence[str]) -> Dict[str, NodeRecord]:
    """Records of these nodes. A name that slurmctld does not know is left out. Raises RunError."""
    if not names:
        return {}
    found = all_nodes(runner, compress(names))
    return {name: found[name] for name in found if name in names}


def all_nodes(runner: Runner, hosts: str = "") -> Dict[str, NodeRecord]:
    """Records of all nodes, or of those of a host list. Raises RunError, also when there are none."""
    done = runner.run(["scontrol", "-o", "show", "node", *([hosts] if hosts else [])], timeout=DEADLINE, check=False)
    found: Dict[str, NodeRecord] = {}
    for line in done.stdout.splitlines():
        record = parse_record(line)
        name = record.get("NodeName", "")
        if name:
            found[name] = NodeRecord(name, record.get("NodeAddr") or name, int(record.get("Port", SLURMD_PORT)),
                                     record.get("State", "UNKNOWN"), record.get("Reason", ""),
                                     _moment(record.get("BootTime", "")))
    if not found:
        raise RunError(done.argv, done.returncode, done.stdout, done.stderr)
    return found


def _moment(text: str) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return 0.0


def records(runner: Runner, name: str = "") -> List[Dict[str, str]]:
    """One dictionary a record of `scontrol show job`, of all jobs without a name. Raises RunError."""
    done = runner.run(["scontrol", "-o", "show", "job", *([name] if name else [])], timeout=DEADLINE)
    return [record for record in map(parse_record, done.stdout.splitlines()) if "JobId" in record]


def parts(runner: Runner, job: JobId) -> List[Dict[str, str]]:
    """The job's own records and no other's: one, or one a component of a heterogeneous job, the leader's first.

    Raises RunError when Slurm does not answer or does not know the job, JobError when it answers with other jobs.
    """
    found = records(runner, job.name)
    own = [record for record in found if job.has(record)]
    if not own or (len(own) > 1 and not job.components):
        shown = ", ".join(str(JobId.of(record)) for record in found[:8]) or "no job"
        raise JobError(f"Slurm answers with {shown} when it is asked for job {job} (number {job.raw or 'unknown'})",
                       hint=f"scontrol show job {job}")
    return sorted(own, key=lambda record: int(record.get("HetJobOffset") or 0))


def job(runner: Runner, job_id: JobId) -> Dict[str, str]:
    """The one record of this job, of its leader when it is heterogeneous. Raises RunError, JobError."""
    return parts(runner, job_id)[0]


def forgotten(err: RunError) -> bool:
    """Whether `job` failed because Slurm knows no such job (any more), and not because slurmctld did not answer.

    Of an array that it still knows other tasks of, it says `Job 11_2 not found`.
    """
    said = (err.stderr + err.stdout).lower()
    return "invalid job id" in said or re.search(r"\bjob \S+ not found", said) is not None


def requeue(runner: Runner, job_id: JobId) -> None:
    """Put the job back into the queue; Slurm then ends this run of it. Raises RunError when Slurm refuses."""
    runner.run(["scontrol", "requeue", job_id.name], timeout=DEADLINE)


def set_comment(runner: Runner, job_id: JobId, comment: str) -> None:
    """Replace the job's comment; its owner may. Raises RunError."""
    runner.run(["scontrol", "update", f"jobid={job_id.name}", f"comment={comment}"], timeout=DEADLINE)


def signal_steps(runner: Runner, job_id: JobId, name: str) -> None:
    """Send a signal to every step of the job, not to its batch script. Raises RunError."""
    runner.run(["scancel", f"--signal={name}", job_id.name], timeout=DEADLINE)


def running_steps(runner: Runner, job_id: JobId, prefix: str) -> List[str]:
    """Ids (`12.0`, `11_2.0`) of the job's steps whose name begins with `prefix` and that Slurm still holds.

    Raises RunError.
    """
    ids = job_id.steps_of
    done = runner.run(["squeue", "--steps", "--noheader", "-j", ",".join(ids), "-o", "%i %j"], timeout=DEADLINE,
                      check=False)
    pairs = (line.split(None, 1) for line in done.stdout.splitlines())
    return [pair[0] for pair in pairs if len(pair) == 2 and pair[1].startswith(prefix)
            and pair[0].rpartition(".")[0] in ids]


def kill_steps(runner: Runner, job_id: JobId, prefix: str) -> List[str]:
    """SIGKILL those steps and return their ids. Raises RunError."""
    left = running_steps(runner, job_id, prefix)
    if left:
        runner.run(["scancel", "--signal=KILL", *left], timeout=DEADLINE, check=False)
    return left


def has_option(runner: Runner, program: str, option: str) -> Optional[bool]:
    """Whether `program --help` lists the option; None when the program cannot be run."""
    try:
        done = runner.run([program, "--help"], timeout=DEADLINE, check=False)
    except RunError:
        return None
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", done.stdout + done.stderr) is not None
