"""Which nodes the next step can use, as Slurm and the nodes themselves say."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Dict, Mapping, Sequence, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.slurm.hostlist import expand

LIVE_STATES = ("", "RUNNING", "SUSPENDED", "CONFIGURING")
"""States of a job whose script goes on. In all others Slurm has ended this run of it; "" is: nobody could say."""


FORGOTTEN = "FORGOTTEN"
"""Our own word for a job that slurmctld does not know: it has lost its state, and will end what runs."""


@dataclass(frozen=True)
class Allocation:
    """The job's nodes now. `state`: Slurm's word for the job (or FORGOTTEN), "" when slurmctld does not answer.

    `addresses`: where each node's slurmd listens; `unusable`: nodes that Slurm itself counts out, `down`: has lost.
    """

    nodes: Tuple[str, ...]
    state: str = ""
    addresses: Mapping[str, Tuple[str, int]] = field(default_factory=dict)
    unusable: Tuple[str, ...] = ()
    down: Tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Slurm has ended this run: requeued after a node failure, cancelled, timed out."""
        return self.state not in LIVE_STATES

    def healthy(self, lost: Sequence[str]) -> Tuple[str, ...]:
        """Nodes for a step, without those found `lost`."""
        return tuple(name for name in self.nodes if name not in lost and name not in self.unusable)


def look(runner: Runner, job: JobEnvironment) -> Allocation:
    """Ask slurmctld. What it does not answer is taken from the job's environment, which may be stale."""
    names, state = job.nodes, ""
    try:
        record = control.job(runner, job.job_id)
        state = record.get("JobState", "")
        names = tuple(expand(record.get("NodeList", ""))) or names
        if record.get("NodeList") == "(null)":
            names = job.nodes
    except RunError as err:
        if control.forgotten(err):
            state = FORGOTTEN
    except ValueError:
        pass
    found: Dict[str, control.NodeRecord] = {}
    with contextlib.suppress(RunError, ValueError):
        found = control.nodes(runner, names)
    return Allocation(names, state, {name: (node.address, node.port) for name, node in found.items()},
                      tuple(name for name, node in found.items() if not node.usable),
                      tuple(name for name, node in found.items() if node.down))
