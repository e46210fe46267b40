"""The few questions that are put to Slurm's own commands, and the few orders given, each with a deadline.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.errors import JobError, RunError
from hyperpod_kit.run import Completed, Runner
from hyperpod_kit.slurm import node_reasons, records
from hyperpod_kit.slurm.hostlist import compress
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.slurm.versions import HOLDS_BY_REASON

DEADLINE = records.DEADLINE

SLURMD_PORT = 6818
"""Where slurmd listens when the node's record does not say."""

MOUNT_REASON = "hyperpod-kit:mount:"
"""How the reason of a node begins that was drained for a mount. Never `Action:`, which HyperPod acts upon."""

UNHEARD = "None"
"""SlurmdStartTime of a node of which slurmctld has not heard since its own start."""

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_PAIR = re.compile(r"(?<!\S)([A-Za-z][\w:/]*)=(\S*)")
_FREE = re.compile(r"\s(?:Reason|Comment|Extra)=")
_DOWN = re.compile(r"(?<!powered_)(?<!powering_)(?<!power_)down|fail|not_resp|\*", re.IGNORECASE)


_ROUNDED = 2.0
"""Seconds by which two words of one boot may differ: slurmd takes it from the uptime, both in whole seconds."""


class NodeStart(NamedTuple):
    """When a machine and its slurmd were started, Unix seconds by that machine's own clock, 0 for not known: good for
    a comparison with an earlier word of the same machine, and with nothing else."""

    booted: float
    served_since: float

    def was_rebooted_since(self, before: NodeStart) -> bool:
        """Return whether the machine was started again after `before` was taken: its boot time and slurmd's start
        time both differ. A clock that was set changes only one of the two; False where any of the four times is
        unknown."""
        if not (self.booted and self.served_since and before.booted and before.served_since):
            return False
        return abs(self.booted - before.booted) > _ROUNDED and self.served_since != before.served_since


@dataclass(frozen=True)
class NodeRecord:
    """A node as slurmctld sees it. `state` is Slurm's own word, for example `ALLOCATED` or `DOWN*+DRAIN`.

    `booted`: when its machine was started, at the latest, Unix seconds, 0 when that is not known. `is_registered`: its
    slurmd has registered since slurmctld was started; before, no step is started there (_pick_step_nodes of its
    sources). `served_since`: when its slurmd was started, 0 when that is not known.
    """

    name: str
    address: str
    port: int
    state: str
    reason: str = ""
    booted: float = 0.0
    is_registered: bool = True
    served_since: float = 0.0

    @property
    def start_times(self) -> NodeStart:
        """The boot time and the slurmd start time that this node's slurmd reported."""
        return NodeStart(self.booted, self.served_since)

    @property
    def can_start_steps(self) -> bool:
        """Whether a job that holds this node can start a step there, and should (node_reasons.py)."""
        return node_reasons.can_start_steps(self.state, self.reason)

    @property
    def is_draining(self) -> bool:
        """Whether the node takes no other jobs, whatever for."""
        return node_reasons.is_draining(self.state)

    @property
    def is_unregistered_since_slurmctld_start(self) -> bool:
        """Whether the node has not registered with slurmctld since that was started, but may well be up."""
        return not self.is_registered and (self.can_start_steps or self.state.startswith("UNKNOWN"))

    @property
    def is_drained_for_mount(self) -> bool:
        """Whether the node is drained for a mount of the kit's. A reason may outlive the drain, so the state
        counts too."""
        return self.reason.startswith(MOUNT_REASON) and HOLDS_BY_REASON.search(self.state) is not None

    @property
    def is_down(self) -> bool:
        """Whether Slurm has lost the node (down, failed, not responding), which is more than that it must not be
        used."""
        return _DOWN.search(self.state) is not None


def node_fields(line: str) -> Dict[str, str]:
    """Parse one line of `scontrol -o show node` into a dictionary, `Reason` with who gave it and when; {} for
    any other line.

    What is free text (Reason, Comment, Extra: 22.05 and 24.11 print them last) ends the fields, and of a
    field that is there twice the first counts. A job has no text in the record of a node.
    """
    if not line.startswith("NodeName="):
        return {}
    end = _FREE.search(line)
    fields: Dict[str, str] = {}
    for match in _PAIR.finditer(line[: end.start()] if end else line):
        fields.setdefault(match.group(1), match.group(2))
    _, given, reason = line.partition(" Reason=")
    if given:
        return {**fields, "Reason": reason.strip()}
    return fields


def query_known_nodes(runner: Runner, names: Sequence[str]) -> Dict[str, NodeRecord]:
    """Query the records of these nodes, by name. A name that slurmctld does not know is left out. Raises
    RunError."""
    names = [name for name in names if _NODE.fullmatch(name)]
    if not names:
        return {}
    records_by_name = query_nodes(runner, compress(names))
    return {name: records_by_name[name] for name in records_by_name if name in names}


def query_nodes(runner: Runner, hostlist: str = "") -> Dict[str, NodeRecord]:
    """Query the records of all nodes, or of those of a host list. Raises RunError, also when there are none."""
    done = _show_node(runner, hostlist)
    records_by_name: Dict[str, NodeRecord] = {}
    twice: List[str] = []
    for line in done.stdout.splitlines():
        record = _node_record(line)
        if record and record.name in records_by_name:
            twice.append(record.name)
        elif record:
            records_by_name[record.name] = record
    for name in dict.fromkeys(twice):
        # A line feed in somebody's comment on a node: what stands first when it is asked for alone is its own.
        alone = _node_record((_show_node(runner, name).stdout.splitlines() or [""])[0])
        if alone and alone.name == name:
            records_by_name[name] = alone
        else:
            del records_by_name[name]
    if not records_by_name:
        raise RunError(done.argv, done.returncode, done.stdout, done.stderr)
    return records_by_name


def _show_node(runner: Runner, hosts: str) -> Completed:
    return runner.run(["scontrol", "-o", "show", "node", *([hosts] if hosts else [])], timeout=DEADLINE, check=False)


def _node_record(line: str) -> Optional[NodeRecord]:
    record = node_fields(line)
    name, port = record.get("NodeName", ""), record.get("Port", "")
    if re.fullmatch("[0-9]{1,5}", port):
        number = int(port)
    else:
        number = SLURMD_PORT
    if name:
        return NodeRecord(
            name,
            record.get("NodeAddr") or name,
            number,
            record.get("State", "UNKNOWN"),
            record.get("Reason", ""),
            _boot_time_upper_bound(parse_slurm_time_or_zero(record.get("BootTime", ""))),
            record.get("SlurmdStartTime") != UNHEARD,
            parse_slurm_time_or_zero(record.get("SlurmdStartTime", "")),
        )
    return None


def _boot_time_upper_bound(booted: float) -> float:
    """Return the latest time at which the machine may have booted, 0 for unknown: slurmd subtracts the uptime
    from the time, both in whole seconds, which is a second too early at most."""
    if booted:
        return booted + 1.0
    return 0.0


def parse_slurm_time_or_zero(text: str) -> float:
    """Parse a time as Slurm prints it, or Unix seconds; return Unix seconds, 0 for anything else."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return 0.0


def query_matching_job_records(
    runner: Runner, job: JobId, fields: Tuple[Tuple[str, str], ...] = records.FIELDS
) -> List[Dict[str, str]]:
    """The job's own records and no other's: one, or one a component of a heterogeneous job, the leader's first.

    Raises RunError when Slurm does not answer or does not know the job, JobError when it answers with other jobs.
    """
    records_read = records.query_squeue(runner, job.slurm_id, fields=fields)
    job_entries = [record for record in records_read if job.matches_record(record)]
    if not job_entries or (len(job_entries) > 1 and not job.components):
        shown = ", ".join(str(JobId.from_record(record)) for record in records_read[:8]) or "no job"
        raise JobError(
            f"Slurm returned {shown} for job {job} (number {job.raw or 'unknown'})",
            hint=f"scontrol show job {job}",
        )
    return sorted(job_entries, key=lambda record: int(record.get("HetJobOffset") or 0))


def query_job_record(runner: Runner, job_id: JobId) -> Dict[str, str]:
    """Query the one record of this job, of its leader when it is heterogeneous. Raises RunError, JobError."""
    return query_matching_job_records(runner, job_id)[0]


def query_job_record_with_times(runner: Runner, job_id: JobId) -> Dict[str, str]:
    """Query this job's record with records.TIME_FIELDS; its times are for `parse_time`. Raises RunError,
    JobError."""
    return query_matching_job_records(runner, job_id, records.TIME_FIELDS)[0]


def query_last_queued_at(runner: Runner, job_id: JobId) -> float:
    """Query when the job came into the queue last, by a requeue too, in Unix seconds; 0 when squeue prints
    none. Raises RunError."""
    argv = ["squeue", "--local", "--all", "--noheader", "--states=all", "-j", job_id.slurm_id, "-o", "%V"]
    done = runner.run(argv, timeout=DEADLINE, check=False, env={**records.UNSET, **records.UNIX_TIMES})
    return max((parse_slurm_time_or_zero(line.strip()) for line in done.stdout.splitlines()), default=0.0)


def is_unknown_job(err: RunError) -> bool:
    """Return whether `query_job_record` failed because Slurm knows no such job (any more), and not because
    slurmctld did not answer."""
    return isinstance(err, records.UnknownJob)


def requeue(runner: Runner, job_id: JobId) -> None:
    """Put the job back into the queue; Slurm then ends this run of it. Raises RunError when Slurm refuses."""
    runner.run(["scontrol", "requeue", job_id.slurm_id], timeout=DEADLINE)


def set_comment(runner: Runner, job_id: JobId, comment: str) -> None:
    """Replace the job's comment; its owner may. Raises RunError."""
    runner.run(["scontrol", "update", f"jobid={job_id.slurm_id}", f"comment={comment}"], timeout=DEADLINE)


def add_to_comment(runner: Runner, job_id: JobId, record: Mapping[str, str], mark: str) -> None:
    """Add a word to the comment that the job has by its record, unless it is there. Raises RunError."""
    words = [word for word in record.get("Comment", "").split() if word != "(null)"]
    if mark not in words:
        set_comment(runner, job_id, " ".join([*words, mark]))


def signal_steps(runner: Runner, job_id: JobId, step_name_prefix: str, signal_name: str) -> None:
    """Send a signal to the job's steps whose name begins with `step_name_prefix`. Raises RunError."""
    steps = query_running_step_ids(runner, job_id, step_name_prefix)
    if steps:
        runner.run(["scancel", f"--signal={signal_name}", *steps], timeout=DEADLINE)


def query_running_step_ids(runner: Runner, job_id: JobId, step_name_prefix: str) -> List[str]:
    """Query the ids (`12.0`, `11_2.0`) of the job's steps whose name begins with `step_name_prefix` and that
    Slurm still lists.

    Raises RunError.
    """
    ids = job_id.step_job_ids
    done = runner.run(
        ["squeue", "--steps", "--noheader", "-j", ",".join(ids), "-o", "%i %j"],
        timeout=DEADLINE,
        check=False,
        env=records.UNSET,
    )
    pairs = (line.split(None, 1) for line in done.stdout.splitlines())
    return [
        pair[0]
        for pair in pairs
        if len(pair) == 2 and pair[1].startswith(step_name_prefix) and pair[0].rpartition(".")[0] in ids
    ]


def query_batch_step_nodes(runner: Runner) -> Dict[str, str]:
    """Query on which node each job's batch script was started: id (`12`, `11_2`) -> node. Raises RunError.

    A job's BatchHost does not say it: a slurmctld that was restarted, or in newer releases has read slurm.conf again,
    gives the first of the nodes that the job still has (seen with 22.05 and 24.11).
    """
    argv = ["squeue", "--steps", "--local", "--all", "--noheader", "-o", "%i %N"]
    done = runner.run(argv, timeout=DEADLINE, env=records.UNSET)
    nodes: Dict[str, str] = {}
    for line in done.stdout.splitlines():
        step_id, _, node = line.strip().partition(" ")
        job_id, _, step_name = step_id.rpartition(".")
        if step_name == "batch" and node.strip():
            nodes[job_id] = node.strip()
    return nodes


def kill_steps(runner: Runner, job_id: JobId, step_name_prefix: str) -> List[str]:
    """Send SIGKILL to the job's steps whose name begins with `step_name_prefix`, and return their ids. Raises
    RunError."""
    steps = query_running_step_ids(runner, job_id, step_name_prefix)
    if steps:
        runner.run(["scancel", "--signal=KILL", *steps], timeout=DEADLINE, check=False)
    return steps


def option_help_none_if_not_runnable(runner: Runner, program: str, option: str) -> Optional[str]:
    """Return what `program --help` prints about the option, "" where it lists none; None when the program
    cannot be run."""
    try:
        done = runner.run([program, "--help"], timeout=DEADLINE, check=False)
    except RunError:
        return None
    return find_option_help(done.stdout + done.stderr, option)


def find_option_help(help_text: str, option: str) -> str:
    """Return what the output of `--help` has about the option, on one line; "" where it lists none."""
    # Slurm breaks the words of a plugin's option over several lines; the next option begins one with a dash.
    match = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])(?:.*)(?:\n(?!\s*-)[^\n]*\S[^\n]*)*", help_text)
    if match:
        return " ".join(match.group(0).split())
    return ""


def has_option(runner: Runner, program: str, option: str) -> Optional[bool]:
    """Whether `program --help` lists the option; None when the program cannot be run."""
    help_text = option_help_none_if_not_runnable(runner, program, option)
    if help_text is None:
        return None
    return bool(help_text)
