"""Nodes that a command is about to take: which jobs have them, and how they become empty before.

    --when-idle   no new job starts there; the command waits until those that run have ended by themselves
    --drain       the same, and jobs that Slurm may queue again are queued again at once; the others are waited for

Both are bounded, and undone when nothing comes of it: the nodes take jobs again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Callable, Mapping, Sequence

from hyperpod_kit.errors import ClusterError, RunError, Unreachable, WaitTimeout
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import node_jobs
from hyperpod_kit.slurm.control import LEAVING_REASON
from hyperpod_kit.slurm.node_jobs import NodeJob as NodeJob
from hyperpod_kit.system.wait import every, look_until

PATIENCE = 10
"""Looks in a row at which Slurm may not answer before waiting ends."""


class Vacating(Enum):
    """What becomes of the jobs before the nodes are taken."""

    NOT = "not"
    WHEN_IDLE = "when-idle"
    DRAIN = "drain"


@dataclass(frozen=True)
class WaitLimit:
    """How long nodes may take to become empty, how often they are looked at, and by which clock."""

    seconds: float
    interval: float = 5.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Vacated:
    """`reason`: what the nodes are drained for; `drained`: those that this command keeps jobs from; `served_since`:
    when the slurmd of each was started."""

    reason: str
    drained: tuple[str, ...]
    served_since: Mapping[str, float]


def jobs_on(runner: Runner, nodes: Sequence[str]) -> list[NodeJob]:
    """The jobs that have any of these nodes. Raises RunError where Slurm does not say."""
    return node_jobs.jobs_on(runner, nodes)


def vacate(
    runner: Runner,
    nodes: Sequence[str],
    how: Vacating,
    verb: str,
    patience: WaitLimit,
    tell: Callable[[str], None],
) -> Vacated:
    """Drain these nodes for the command `verb`, and return when no job has them. `tell`: takes a line a change.

    Raises WaitTimeout, ClusterError where Slurm refuses, Unreachable; whatever ends it, the nodes are let go first.
    """
    reason = f"{LEAVING_REASON}{verb}"
    try:
        drained = tuple(node_jobs.drained_for(runner, nodes, reason))
    except RunError as err:
        let_go(runner, nodes, reason, tell)
        raise ClusterError(
            f"Slurm does not drain {', '.join(nodes)}: {err.message}",
            hint="the user that logs in must be root, or become root by sudo without a password",
        ) from err
    try:
        if how == Vacating.DRAIN:
            _requeue(runner, nodes, tell)
        _wait(runner, nodes, patience, tell)
        return Vacated(reason, drained, node_jobs.served_since(runner, drained))
    except BaseException:
        let_go(runner, drained, reason, tell)
        raise


def let_back(runner: Runner, vacated: Vacated, patience: WaitLimit, tell: Callable[[str], None]) -> None:
    """Let jobs in again on nodes that were restarted, when Slurm has heard of each after that. Raises WaitTimeout."""
    absent: list[str] = []

    def look() -> bool:
        try:
            now = node_jobs.served_since(runner, vacated.drained)
        except (RunError, Unreachable):
            return False
        absent[:] = [name for name in vacated.drained if now.get(name, 0.0) <= vacated.served_since.get(name, 0.0)]
        return not absent

    back = look_until(
        look, bool, every(patience.interval), seconds=patience.seconds, clock=patience.clock, sleep=patience.sleep
    )
    let_go(runner, [name for name in vacated.drained if name not in absent], vacated.reason, tell)
    if not back:
        raise WaitTimeout(f"after {patience.seconds:g} s Slurm has not heard again of {', '.join(absent)}")


def let_go(runner: Runner, nodes: Sequence[str], reason: str, tell: Callable[[str], None]) -> None:
    """Let jobs in again where that reason still stands; says so, or how a person does it."""
    try:
        undrained = node_jobs.undrain(runner, nodes, reason)
    except (RunError, Unreachable) as err:
        tell(
            f"the nodes are still drained: {err.message}; on the controller: "
            f"scontrol update nodename={','.join(nodes)} state=undrain"
        )
        return
    if undrained:
        tell(f"jobs may start again on {', '.join(undrained)}")


def _requeue(runner: Runner, nodes: Sequence[str], tell: Callable[[str], None]) -> None:
    for job in node_jobs.jobs_on(runner, nodes):
        if not job.requeues:
            tell(f"job {job.id} of {job.user} cannot be queued again: waiting for its end")
            continue
        refusal = node_jobs.requeue(runner, job)
        tell(f"job {job.id} of {job.user}: {f'waiting for its end: {refusal}' if refusal else 'queued again'}")


def _wait(runner: Runner, nodes: Sequence[str], patience: WaitLimit, tell: Callable[[str], None]) -> None:
    silent = 0
    shown = ""
    jobs: list[NodeJob] = []

    def look() -> bool:
        nonlocal silent, shown
        try:
            jobs[:] = node_jobs.jobs_on(runner, nodes)
        except (RunError, Unreachable) as err:
            silent += 1
            if silent >= PATIENCE:
                raise Unreachable(f"Slurm does not say which jobs run: {err.message}") from err
            return False
        silent = 0
        line = ", ".join(f"{job.id} ({job.user}, {job.state})" for job in jobs)
        if line != shown and line:
            tell(f"waiting for {line}")
        shown = line
        return not jobs

    empty = look_until(
        look, bool, every(patience.interval), seconds=patience.seconds, clock=patience.clock, sleep=patience.sleep
    )
    if empty:
        return
    ids = ", ".join(job.id for job in jobs) or "jobs that Slurm does not name"
    raise WaitTimeout(
        f"after {patience.seconds:g} s {ids} still run there; nothing was sent to AWS",
        hint="--drain-timeout SECONDS waits longer; --drain queues jobs again that Slurm may queue again",
    )
