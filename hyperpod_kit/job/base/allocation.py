"""Find the nodes that the next step can use, from the records of slurmctld and from what the nodes report."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control, job_states
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.slurm.hostlist import expand

LIVE_STATES = ("", *job_states.RUNS)
"""States of a job whose script goes on, "" for a state that is not known; in all others Slurm has ended this run."""


FORGOTTEN = "FORGOTTEN"
"""Our own state of a job that slurmctld does not know: slurmctld has lost its state, and will end what runs."""


_UNKNOWN_START = control.NodeStart(0.0, 0.0)


@dataclass(frozen=True)
class Allocation:
    """The nodes of the job at one moment, and the state of the job.

    Attributes:
        nodes: In the order of Slurm's record of the job.
        state: Slurm's word for the state of the job, or FORGOTTEN; "" when slurmctld does not answer.
        addresses: Host and port of each node's slurmd.
        unusable: Nodes on which Slurm starts no steps, or that are drained for a fault.
        down: Nodes that Slurm counts as lost.
        restarts: How often Slurm has requeued the job, by its record.
        reason: Slurm's reason in the record of the job.
        before: Nodes of this run that Slurm counts as lost, also those that it has taken from the run.
        starts: When the machines of all these nodes were started, as each of them reports.
        unheard: Nodes that may be up, but have not registered yet with a slurmctld that was started just now.
        own_host: This host's address as its ranks know it, where that is not the one of a slurmd in `addresses`.
        cordoned: Nodes that can be used and are drained, for a patch for example.
    """

    nodes: Tuple[str, ...]
    state: str = ""
    addresses: Mapping[str, Tuple[str, int]] = field(default_factory=dict)
    unusable: Tuple[str, ...] = ()
    down: Tuple[str, ...] = ()
    restarts: Optional[int] = None
    reason: str = ""
    before: Tuple[str, ...] = ()
    starts: Mapping[str, control.NodeStart] = field(default_factory=dict)
    unheard: Tuple[str, ...] = ()
    own_host: str = ""
    cordoned: Tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether Slurm has ended this run: requeued after a node failure, cancelled, timed out."""
        return self.state not in LIVE_STATES

    def healthy(self, lost: Sequence[str]) -> Tuple[str, ...]:
        """Return the nodes that a step can use, without those in `lost`."""
        return tuple(name for name in self.nodes if name not in lost and name not in self.unusable)


def query_allocation_else_from_environment(runner: Runner, job: JobEnvironment) -> Allocation:
    """Return the allocation that slurmctld has; without its answer, the nodes of the job's environment.

    The environment may be stale. Raises JobError when slurmctld answers with other jobs than this one.
    """
    names, state, reason = job.nodes, "", ""
    restarts: Optional[int] = None
    try:
        records = control.query_matching_job_records(runner, job.id)
        state, reason = records[0].get("JobState", ""), records[0].get("Reason", "")
        counted = records[0].get("Restarts", "")
        if counted.isdigit():
            restarts = int(counted)
        names = _nodes(records, job) or names
    except RunError as err:
        if control.is_unknown_job(err):
            state = FORGOTTEN
    except ValueError:
        pass
    record_by_node: Dict[str, control.NodeRecord] = {}
    with contextlib.suppress(RunError, ValueError):
        record_by_node = control.query_known_nodes(runner, tuple(dict.fromkeys((*names, *job.nodes))))
    here = {name: node for name, node in record_by_node.items() if name in names}
    return Allocation(
        names,
        state,
        {name: (node.address, node.port) for name, node in here.items()},
        tuple(name for name, node in here.items() if not node.can_start_steps),
        tuple(name for name, node in here.items() if node.is_down),
        restarts,
        reason,
        tuple(name for name in job.nodes if name in record_by_node and record_by_node[name].is_down),
        {name: node.start_times for name, node in record_by_node.items()},
        tuple(name for name, node in here.items() if node.is_unregistered_since_slurmctld_start),
        cordoned=tuple(name for name, node in here.items() if node.can_start_steps and node.is_draining),
    )


def _nodes(records: Sequence[Mapping[str, str]], job: JobEnvironment) -> Tuple[str, ...]:
    """Return the nodes in the records of the job, () where they name none. Raises ValueError.

    Those of a heterogeneous job come in the order of its components, without the components that the step does not use.
    """
    node_names = []
    for record in records:
        hosts = record.get("NodeList", "")
        if hosts != "(null)":
            node_names += expand(hosts)
    if job.groups:
        unused = {name for group in job.groups for name in group} - set(job.nodes)
        node_names = [name for name in node_names if name not in unused]
    return tuple(dict.fromkeys(node_names))


def node_starts_for_ledger(allocation: Allocation, nodes: Sequence[str]) -> List[List[int]]:
    """Return when these nodes were started, as the ledger keeps it for `lost_since`.

    Each node has a pair of the times of NodeStart, in whole seconds; zeros where they are not known.
    """
    pairs = [allocation.starts.get(name, _UNKNOWN_START) for name in nodes]
    return [[int(start.booted), int(start.served_since)] for start in pairs]


def lost_since(
    runner: Runner, nodes: Sequence[str], starts: Optional[Sequence[Sequence[int]]], when: float
) -> Tuple[str, ...]:
    """Return the nodes that Slurm counts as lost now, or whose machine was started anew since `starts` was noted.

    Without an answer of slurmctld there are none.

    Args:
        runner: Runs scontrol.
        nodes: The nodes to check.
        starts: From the row of an attempt; None in one that a build before 0.1.0 wrote.
        when: The time of that row, for a row without `starts`; Unix seconds by the batch host's clock.
    """
    try:
        record_by_node = control.query_known_nodes(runner, nodes)
    except (RunError, ValueError):
        return ()
    if starts is None or len(starts) != len(nodes):
        return tuple(name for name, node in record_by_node.items() if node.is_down or node.booted > when)
    before = {name: _start_from_ledger(pair) for name, pair in zip(nodes, starts)}
    return tuple(
        name
        for name, node in record_by_node.items()
        if node.is_down or node.start_times.was_rebooted_since(before[name])
    )


def _start_from_ledger(pair: Sequence[int]) -> control.NodeStart:
    if len(pair) != 2:
        return _UNKNOWN_START
    return control.NodeStart(*pair)
