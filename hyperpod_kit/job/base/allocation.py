"""Which nodes the next step can use, as Slurm and the nodes themselves say."""

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
"""States of a job whose script goes on. In all others Slurm has ended this run of it; "" is: nobody could say."""


FORGOTTEN = "FORGOTTEN"
"""Our own word for a job that slurmctld does not know: it has lost its state, and will end what runs."""


_UNKNOWN_START = control.NodeStart(0.0, 0.0)


@dataclass(frozen=True)
class Allocation:
    """The job's nodes now. `state`: Slurm's word for the job (or FORGOTTEN), "" when slurmctld does not answer.

    `addresses`: where each node's slurmd listens; `unusable`: nodes that Slurm itself counts out, `down`: has lost.
    `restarts`, `reason`: Slurm's, of the job. `before`: the run's own nodes, also those that Slurm has taken from it,
    which it counts as lost; `starts`: when those machines were started, as each says itself. `unheard`: nodes that may
    well be there, but have not registered yet with a slurmctld that was started just now.
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

    @property
    def ended(self) -> bool:
        """Slurm has ended this run: requeued after a node failure, cancelled, timed out."""
        return self.state not in LIVE_STATES

    def healthy(self, lost: Sequence[str]) -> Tuple[str, ...]:
        """Nodes for a step, without those found `lost`."""
        return tuple(name for name in self.nodes if name not in lost and name not in self.unusable)


def query_allocation_else_from_environment(runner: Runner, job: JobEnvironment) -> Allocation:
    """Ask slurmctld. What it does not answer is taken from the job's environment, which may be stale.

    Raises JobError when it answers with other jobs than this one.
    """
    names, state, reason = job.nodes, "", ""
    restarts: Optional[int] = None
    try:
        records = control.query_matching_job_records(runner, job.id)
        state, reason = records[0].get("JobState", ""), records[0].get("Reason", "")
        counted = records[0].get("Restarts", "")
        restarts = int(counted) if counted.isdigit() else None
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
    )


def _nodes(records: Sequence[Mapping[str, str]], job: JobEnvironment) -> Tuple[str, ...]:
    """The job's nodes by its records, those of a heterogeneous job in the order of its components; () when not said.

    A component that the step does not use is not of interest. Raises ValueError.
    """
    node_names = []
    for record in records:
        hosts = record.get("NodeList", "")
        node_names += expand(hosts) if hosts != "(null)" else []
    if job.groups:
        unused = {name for group in job.groups for name in group} - set(job.nodes)
        node_names = [name for name in node_names if name not in unused]
    return tuple(dict.fromkeys(node_names))


def node_starts_for_ledger(allocation: Allocation, nodes: Sequence[str]) -> List[List[int]]:
    """When these nodes were started, as the ledger keeps it for `lost_since`: a pair a node, zeros for not known."""
    pairs = [allocation.starts.get(name, _UNKNOWN_START) for name in nodes]
    return [[int(start.booted), int(start.served_since)] for start in pairs]


def lost_since(
    runner: Runner, nodes: Sequence[str], starts: Optional[Sequence[Sequence[int]]], when: float
) -> Tuple[str, ...]:
    """Those of these nodes that Slurm counts as lost now, or whose machine was started anew since `starts` was noted.

    `when`: of a row without `starts`, which a build before 0.1.0 wrote; Unix seconds by the batch host's clock.
    """
    try:
        record_by_node = control.query_known_nodes(runner, nodes)
    except (RunError, ValueError):
        return ()
    if starts is None or len(starts) != len(nodes):
        return tuple(name for name, node in record_by_node.items() if node.is_down or node.booted > when)
    before = {name: control.NodeStart(*pair) if len(pair) == 2 else _UNKNOWN_START for name, pair in zip(nodes, starts)}
    return tuple(
        name
        for name, node in record_by_node.items()
        if node.is_down or node.start_times.was_rebooted_since(before[name])
    )
