"""The jobs that have certain nodes, and the orders that let these nodes become empty.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Set, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Completed, Runner
from hyperpod_kit.slurm import control, records
from hyperpod_kit.slurm.environment import COMMENT_MARK, STEP_FAMILY
from hyperpod_kit.slurm.hostlist import compress, expand
from hyperpod_kit.slurm.job_states import HAS_NODES
from hyperpod_kit.untrusted.text import clean_one_line

FIELDS: Tuple[Tuple[str, str], ...] = (
    ("JobId", "JobID"),
    ("ArrayJobId", "ArrayJobID"),
    ("ArrayTaskId", "ArrayTaskID"),
    ("User", "UserName"),
    ("Name", "Name"),
    ("JobState", "State"),
    ("Since", "StartTime"),
    ("NodeList", "NodeList"),
    ("Requeue", "Requeue"),
    ("BatchFlag", "BatchFlag"),
    ("Comment", "Comment"),
)
"""As those of records.py."""

LONGEST_NAME = 64
"""Characters of a job's name that are shown: its owner has chosen it."""


@dataclass(frozen=True)
class NodeJob:
    """A job that has nodes. `since`: when it began, as Slurm prints it; `auto_resume`: it asked for that by the kit's
    own option, which leaves a mark in its comment; `requeues`: Slurm may put its batch script back into the queue."""

    id: str
    user: str
    name: str
    state: str
    since: str
    nodes: Tuple[str, ...]
    auto_resume: bool
    requeues: bool

    def to_line(self) -> str:
        """One line for a person."""
        if self.auto_resume:
            fate = "resumes by itself (auto-resume)"
        elif self.requeues:
            fate = "is requeued"
        else:
            fate = "ends"
        hosts = clean_one_line(compress(self.nodes), 200)
        return f"job {self.id} of {self.user}, {self.name}: {self.state} since {self.since} on {hosts}; it {fate}"


def query_jobs_holding_nodes(runner: Runner, nodes: Sequence[str]) -> List[NodeJob]:
    """Query the jobs that have any of these nodes, sorted by number. Raises RunError where squeue fails.

    All jobs are asked for: squeue ends with an error where it is given a node that Slurm does not know
    (yet).
    """
    delimiter = f"@{os.urandom(16).hex()}@"
    squeue_format = ",".join(f"{word}:0{delimiter}" for _, word in FIELDS)
    argv = ["squeue", "--local", "--all", "--noheader", "--states=all"]
    done = runner.run(
        argv, timeout=records.DEADLINE, check=False, env={**records.UNSET, "SQUEUE_FORMAT2": squeue_format}
    )
    if done.returncode:
        raise RunError(argv, done.returncode, done.stdout, done.stderr)
    printed = records.split_records(done.stdout, delimiter, FIELDS)
    if printed is None:
        raise RunError(argv, 1, stderr="squeue did not print the requested fields")
    requested = set(nodes)
    jobs = [_parse_node_job(record) for record in printed if record.get("JobState") in HAS_NODES]
    return sorted(
        (job for job in jobs if requested.intersection(job.nodes)), key=lambda job: _job_number_sort_key(job.id)
    )


def drain_open_nodes_and_list_with_reason(runner: Runner, nodes: Sequence[str], reason: str) -> List[str]:
    """Drain these nodes, and return those that this call drained or that already have this reason. Other
    drains stay as they are, and nodes that Slurm does not know are left out. Raises RunError."""
    records_by_name = _query_records_of_slurm_nodes(runner, nodes)
    open_nodes = [name for name, record in records_by_name.items() if "DRAIN" not in record.state]
    if open_nodes:
        argv = ["scontrol", "update", f"nodename={compress(open_nodes)}", "state=drain", f"reason={reason}"]
        runner.run(argv, timeout=records.DEADLINE)
    with_reason = [name for name, record in records_by_name.items() if _is_reason(record.reason, reason)]
    return sorted({*open_nodes, *with_reason})


def undrain_nodes_with_reason(runner: Runner, nodes: Sequence[str], reason: str) -> List[str]:
    """Undrain those of these nodes that are drained with exactly this reason, and return them. Raises
    RunError."""
    records_by_name = _query_records_of_slurm_nodes(runner, nodes)
    with_reason = [
        name
        for name, record in records_by_name.items()
        if _is_reason(record.reason, reason) and "DRAIN" in record.state
    ]
    if with_reason:
        # Not `resume`, which would also bring up a node that Slurm has down for a reason of its own.
        runner.run(
            ["scontrol", "update", f"nodename={compress(with_reason)}", "state=undrain"], timeout=records.DEADLINE
        )
    return with_reason


def query_slurmd_start_times_of_up_nodes(runner: Runner, nodes: Sequence[str]) -> Dict[str, float]:
    """Query when slurmd was started on each of these nodes that is not down, in Unix seconds. Raises RunError."""
    return {
        name: record.served_since
        for name, record in _query_records_of_slurm_nodes(runner, nodes).items()
        if not record.is_down
    }


def _query_records_of_slurm_nodes(runner: Runner, nodes: Sequence[str]) -> Dict[str, control.NodeRecord]:
    """Query the records of those nodes that Slurm knows, {} where it knows none: a controller and a login node
    are no nodes of Slurm's. Raises RunError."""
    try:
        return control.query_known_nodes(runner, nodes)
    except RunError as err:
        if "not found" in f"{err.stdout}{err.stderr}":
            return {}
        raise


def _is_reason(shown: str, reason: str) -> bool:
    return shown == reason or shown.startswith(f"{reason} [")


def _parse_node_job(record: Dict[str, str]) -> NodeJob:
    array, task = record.get("ArrayJobId", ""), record.get("ArrayTaskId", "")
    match = re.search(rf"{re.escape(COMMENT_MARK)}(\d+)", record.get("Comment", ""))
    requeues = record.get("Requeue") == "1" and record.get("BatchFlag") == "1"
    return NodeJob(
        f"{array}_{task}" if array and task.isdigit() else record["JobId"],
        clean_one_line(record.get("User", "-"), LONGEST_NAME),
        clean_one_line(record.get("Name", "-"), LONGEST_NAME),
        clean_one_line(record.get("JobState", "-"), LONGEST_NAME),
        clean_one_line(record.get("Since", "-"), LONGEST_NAME),
        tuple(_expand_or_empty(record.get("NodeList", ""))),
        match is not None and match.group(1) != "0",
        requeues,
    )


def _expand_or_empty(text: str) -> List[str]:
    try:
        return expand(text)
    except ValueError:
        return []


def _job_number_sort_key(job: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in job.split("_"))


def query_ids_of_jobs_that_save(runner: Runner) -> Set[str]:
    """Query the ids of the jobs in which a `job run` has a step at work, which saves when it is asked. Raises
    RunError."""
    argv = ["squeue", "--local", "--all", "--steps", "--noheader", "--format=%i %j"]
    done = runner.run(argv, timeout=records.DEADLINE, env=records.UNSET)
    pairs = (line.split(None, 1) for line in done.stdout.splitlines())
    return {pair[0].rpartition(".")[0] for pair in pairs if len(pair) == 2 and pair[1].startswith(STEP_FAMILY)}


def ask_to_save_or_error_message(runner: Runner, job: NodeJob) -> Optional[str]:
    """Have the batch script of a job, which is `job run`, save and queue itself again, as at its time limit; return
    Slurm's error message where it refuses, else None."""
    argv = ["scancel", "--batch", "--signal=USR1", job.id]
    return _error_message_or_none(runner.run(argv, timeout=records.DEADLINE, check=False))


def requeue_or_error_message(runner: Runner, job: NodeJob) -> Optional[str]:
    """Put a job back into the queue; return Slurm's error message where it refuses, else None."""
    return _error_message_or_none(runner.run(["scontrol", "requeue", job.id], timeout=records.DEADLINE, check=False))


def _error_message_or_none(done: Completed) -> Optional[str]:
    if done.returncode:
        return clean_one_line(done.stderr.strip() or done.stdout.strip(), 200)
    return None
