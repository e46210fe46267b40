"""The few questions that are put to Slurm's own commands, and the few orders given, each with a deadline.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm.hostlist import compress

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
    """A node as slurmctld sees it. `state` is Slurm's own word, for example `ALLOCATED` or `DOWN*+DRAIN`."""

    name: str
    address: str
    port: int
    state: str
    reason: str = ""

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
                                     record.get("State", "UNKNOWN"), record.get("Reason", ""))
    if not found:
        raise RunError(done.argv, done.returncode, done.stdout, done.stderr)
    return found


def job(runner: Runner, job_id: str) -> Dict[str, str]:
    """`scontrol show job` as a dictionary. Raises RunError."""
    done = runner.run(["scontrol", "-o", "show", "job", job_id], timeout=DEADLINE)
    return parse_record(done.stdout.strip())


def forgotten(err: RunError) -> bool:
    """Whether `job` failed because Slurm knows no such job (any more), and not because slurmctld did not answer."""
    return "invalid job id" in (err.stderr + err.stdout).lower()


def requeue(runner: Runner, job_id: str) -> None:
    """Put the job back into the queue; Slurm then ends this run of it. Raises RunError when Slurm refuses."""
    runner.run(["scontrol", "requeue", job_id], timeout=DEADLINE)


def set_comment(runner: Runner, job_id: str, comment: str) -> None:
    """Replace the job's comment; its owner may. Raises RunError."""
    runner.run(["scontrol", "update", f"jobid={job_id}", f"comment={comment}"], timeout=DEADLINE)


def signal_steps(runner: Runner, job_id: str, name: str) -> None:
    """Send a signal to every step of the job, not to its batch script. Raises RunError."""
    runner.run(["scancel", f"--signal={name}", job_id], timeout=DEADLINE)


def running_steps(runner: Runner, job_id: str, prefix: str) -> List[str]:
    """Ids (`12.0`) of the job's steps whose name begins with `prefix` and that Slurm still holds. Raises RunError."""
    done = runner.run(["squeue", "--steps", "--noheader", "-j", job_id, "-o", "%i %j"], timeout=DEADLINE, check=False)
    pairs = (line.split(None, 1) for line in done.stdout.splitlines())
    return [pair[0] for pair in pairs if len(pair) == 2 and pair[1].startswith(prefix)]


def kill_steps(runner: Runner, job_id: str, prefix: str) -> List[str]:
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
