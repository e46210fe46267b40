"""Nodes that a command is about to take: which jobs have them, and how they become empty before.

    --when-idle   no new job starts there; the command waits until those that run have ended by themselves
    --drain       the same, and jobs that Slurm may queue again are queued again at once; the others are waited for
    --requeue     as --drain, but jobs of `job run` are asked to save first, and queue themselves again (rollout)

All wait as well until storage has what ended jobs left in the nodes' memory. Both are bounded, and undone when nothing
comes of it: the nodes take jobs again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Callable, Mapping, Optional, Sequence

from hyperpod_kit.errors import ClusterError, RunError, Unreachable, WaitTimeout
from hyperpod_kit.remote.draining.unsaved import CountUnsaved
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import node_jobs
from hyperpod_kit.slurm.node_jobs import NodeJob as NodeJob
from hyperpod_kit.slurm.node_reasons import LEAVING_REASON
from hyperpod_kit.system.wait import fixed_pause, poll_until

SAVED_WITHIN = 180.0
"""Seconds that a job has to save and to queue itself again, before Slurm is told to: the kit's own warning is 120."""

PATIENCE = 10
"""Looks in a row at which Slurm may not answer before waiting ends."""


class Vacating(Enum):
    """What becomes of the jobs before the nodes are taken."""

    NOT = "not"
    WHEN_IDLE = "when-idle"
    DRAIN = "drain"
    REQUEUE = "requeue"


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
    """Return the jobs that have any of these nodes. Raises RunError where Slurm does not answer."""
    return node_jobs.query_jobs_holding_nodes(runner, nodes)


def vacate(
    runner: Runner,
    nodes: Sequence[str],
    how: Vacating,
    verb: str,
    patience: WaitLimit,
    report: Callable[[str], None],
    count_unsaved: CountUnsaved,
) -> Vacated:
    """Drain these nodes for the command `verb`, and return when no job has them and their memory holds no capture.
    `report`: takes a line a change.

    Raises WaitTimeout, ClusterError where Slurm refuses, Unreachable; whatever ends it, the nodes are let go first.
    """
    reason = f"{LEAVING_REASON}{verb}"
    try:
        drained = tuple(node_jobs.drain_open_nodes_and_list_with_reason(runner, nodes, reason))
    except RunError as err:
        undrain_or_report_failure(runner, nodes, reason, report)
        raise ClusterError(
            f"Slurm does not drain {', '.join(nodes)}: {err.message}",
            hint="the user that logs in must be root, or become root by sudo without a password",
        ) from err
    try:
        if how == Vacating.REQUEUE:
            _ask_jobs_to_save(runner, nodes, patience, report)
        if how in (Vacating.DRAIN, Vacating.REQUEUE):
            _requeue_jobs_that_may_be(runner, nodes, patience, report)
        _wait_until_idle(runner, nodes, patience, report)
        _wait_until_captures_saved(nodes, patience, report, count_unsaved)
        return Vacated(reason, drained, node_jobs.query_slurmd_start_times_of_up_nodes(runner, drained))
    except BaseException:
        undrain_or_report_failure(runner, drained, reason, report)
        raise


def undrain_after_restart(runner: Runner, vacated: Vacated, patience: WaitLimit, report: Callable[[str], None]) -> None:
    """Wait until Slurm has heard from each node after its restart, then undrain those; raise WaitTimeout if one
    is not back."""
    absent: list[str] = []

    def all_returned() -> bool:
        try:
            now = node_jobs.query_slurmd_start_times_of_up_nodes(runner, vacated.drained)
        except (RunError, Unreachable):
            return False
        # Another moment than before, not a later one: the node's clock may have been set back.
        absent[:] = [name for name in vacated.drained if now.get(name, 0.0) in (0.0, vacated.served_since.get(name))]
        return not absent

    back = poll_until(
        all_returned,
        bool,
        fixed_pause(patience.interval),
        seconds=patience.seconds,
        clock=patience.clock,
        sleep=patience.sleep,
    )
    undrain_or_report_failure(runner, [name for name in vacated.drained if name not in absent], vacated.reason, report)
    if not back:
        raise WaitTimeout(
            f"after {patience.seconds:g} s these nodes have not registered with Slurm again: {', '.join(absent)}"
        )


def undrain_or_report_failure(runner: Runner, nodes: Sequence[str], reason: str, report: Callable[[str], None]) -> None:
    """Undrain the nodes that are drained for this reason, and report it; on failure, report the command that a
    person can use."""
    try:
        undrained = node_jobs.undrain_nodes_with_reason(runner, nodes, reason)
    except (RunError, Unreachable) as err:
        report(
            f"the nodes are still drained: {err.message}; on the controller: "
            f"scontrol update nodename={','.join(nodes)} state=undrain"
        )
        return
    if undrained:
        report(f"jobs may start again on {', '.join(undrained)}")


class _Queue:
    """The jobs on these nodes, asked again and again of a Slurm that may fall silent for a while."""

    def __init__(self, runner: Runner, nodes: Sequence[str]) -> None:
        self._runner, self._nodes = runner, nodes
        self._silent = 0

    def query_jobs(self) -> Optional[list[NodeJob]]:
        """Return the jobs, None where Slurm does not answer. Raises Unreachable after PATIENCE failures in a row."""
        try:
            jobs = node_jobs.query_jobs_holding_nodes(self._runner, self._nodes)
        except (RunError, Unreachable) as err:
            self._silent += 1
            if self._silent >= PATIENCE:
                raise Unreachable(
                    f"cannot query Slurm for the running jobs: {err.message}",
                    hint="nothing was sent to AWS; without --when-idle and --drain the command does not check for jobs",
                ) from err
            return None
        self._silent = 0
        return jobs


def _ask_jobs_to_save(runner: Runner, nodes: Sequence[str], patience: WaitLimit, report: Callable[[str], None]) -> None:
    """Ask the jobs of `job run` to save and to queue themselves again, and give them SAVED_WITHIN for that. Another job
    would only be ended by the signal, and is not asked."""
    queue = _Queue(runner, nodes)
    asked = set()
    try:
        saving = node_jobs.query_ids_of_jobs_that_save(runner)
    except (RunError, Unreachable) as err:
        report(f"no job was asked to save: {err.message}")
        return
    for job in queue.query_jobs() or []:
        if job.id not in saving or not job.requeues:
            continue
        refusal = node_jobs.ask_to_save_or_error_message(runner, job)
        if refusal:
            report(f"job {job.id} of {job.user} cannot be asked to save: {refusal}")
            continue
        asked.add(job.id)
        report(f"job {job.id} of {job.user}: asked to save and to requeue itself")

    def have_left() -> bool:
        jobs = queue.query_jobs()
        return jobs is not None and not asked.intersection(job.id for job in jobs)

    poll_until(
        have_left,
        bool,
        fixed_pause(patience.interval),
        seconds=min(patience.seconds, SAVED_WITHIN),
        clock=patience.clock,
        sleep=patience.sleep,
    )


def _requeue_jobs_that_may_be(
    runner: Runner, nodes: Sequence[str], patience: WaitLimit, report: Callable[[str], None]
) -> None:
    queue = _Queue(runner, nodes)
    jobs = poll_until(
        queue.query_jobs,
        lambda queued: queued is not None,
        fixed_pause(patience.interval),
        seconds=patience.seconds,
        clock=patience.clock,
        sleep=patience.sleep,
    )
    for job in jobs or []:
        if not job.requeues:
            report(f"job {job.id} of {job.user} cannot be requeued: waiting for its end")
            continue
        refusal = node_jobs.requeue_or_error_message(runner, job)
        outcome = "queued again"
        if refusal:
            outcome = f"waiting for its end: {refusal}"
        report(f"job {job.id} of {job.user}: {outcome}")


def _wait_until_idle(runner: Runner, nodes: Sequence[str], patience: WaitLimit, report: Callable[[str], None]) -> None:
    queue = _Queue(runner, nodes)
    shown = ""
    running: list[NodeJob] = []

    def is_empty() -> bool:
        nonlocal shown
        jobs = queue.query_jobs()
        if jobs is None:
            return False
        running[:] = jobs
        line = ", ".join(f"{job.id} ({job.user}, {job.state})" for job in jobs)
        if line != shown and line:
            report(f"waiting for {line}")
        shown = line
        return not jobs

    empty = poll_until(
        is_empty,
        bool,
        fixed_pause(patience.interval),
        seconds=patience.seconds,
        clock=patience.clock,
        sleep=patience.sleep,
    )
    if empty:
        return
    ids = ", ".join(job.id for job in running) or "jobs that Slurm did not list"
    raise WaitTimeout(
        f"after {patience.seconds:g} s {ids} are still running; nothing was sent to AWS",
        hint="--drain-timeout SECONDS waits longer; --drain requeues the jobs that Slurm may requeue",
    )


def _wait_until_captures_saved(
    nodes: Sequence[str], patience: WaitLimit, report: Callable[[str], None], count_unsaved: CountUnsaved
) -> None:
    """Wait until storage has what ended jobs left on these nodes. A node that does not answer is not waited for:
    nobody can save what its memory held. Raises WaitTimeout."""
    shown = ""
    holding: dict[str, int] = {}
    silent: set[str] = set()

    def is_saved() -> bool:
        nonlocal shown
        holding.clear()
        for name, captures in count_unsaved(nodes).items():
            if captures is None and name not in silent:
                report(f"cannot check whether the memory of {name} holds snapshots that are not on storage")
                silent.add(name)
            if captures:
                holding[name] = captures
        line = ", ".join(f"{name} ({captures})" for name, captures in holding.items())
        if line and line != shown:
            report(f"waiting until the snapshots that ended jobs left in memory are on storage: {line}")
        shown = line
        return not holding

    saved = poll_until(
        is_saved,
        bool,
        fixed_pause(patience.interval),
        seconds=patience.seconds,
        clock=patience.clock,
        sleep=patience.sleep,
    )
    if saved:
        return
    raise WaitTimeout(
        f"after {patience.seconds:g} s the memory of {', '.join(holding)} still holds snapshots that are not on "
        "storage; nothing was sent to AWS",
        hint="on these nodes: journalctl -t hyperpod-kit shows what delays their saving; hyperpod-kit checkpoint "
        "flush --all saves them",
    )
