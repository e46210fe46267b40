"""Run one attempt of a job: choose a checkpoint and nodes, start the step, observe it, and record how it ended.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.environment import HPK_ATTEMPT, HPK_CHECKPOINT_ROOT, HPK_STATE
from hyperpod_kit.errors import GaveUp, JobError, NoValidCheckpoint, RunError
from hyperpod_kit.job.base import allocation
from hyperpod_kit.job.base.allocation import Allocation
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.decide.budget import PoisonCheckpoint, count_spent_budget, find_poison_checkpoint
from hyperpod_kit.job.decide.decision import StartFacts, refuse_start
from hyperpod_kit.job.decide.outcome import Observation, Outcome, classify
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.foreign.quarantine import set_aside
from hyperpod_kit.job.records.ledger import Ledger, Row
from hyperpod_kit.job.resume import checkpoint_choice, launches, proving_watch
from hyperpod_kit.job.resume.checkpoint_choice import Choice
from hyperpod_kit.job.resume.patience import Patience
from hyperpod_kit.job.resume.proving_step import ProvingStep
from hyperpod_kit.job.resume.resumption import Resumption
from hyperpod_kit.job.run import begin_anew
from hyperpod_kit.job.run.interruptions import Interruptions, RunHandedBack
from hyperpod_kit.job.step import launch_probe, srun_step
from hyperpod_kit.job.step.container_starts import ContainerStarts
from hyperpod_kit.job.step.failed_launches import FailedLaunches
from hyperpod_kit.job.step.hang import KnownSilences
from hyperpod_kit.job.step.lifeline import Lifelines
from hyperpod_kit.job.step.run_context import RunContext
from hyperpod_kit.job.step.step_retry import StepRetry
from hyperpod_kit.job.step.step_retry_log import RetryLog
from hyperpod_kit.job.step.step_supervision import StepSupervision
from hyperpod_kit.job.step.storage import CheckpointRoot
from hyperpod_kit.job.step.supervision_rules import SupervisionRules
from hyperpod_kit.job.step.watch import NodeWatch
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.untrusted.text import counted

SWEEP_SECONDS, SWEEP_SECONDS_AFTER_LOSS = 15.0, 3.0
"""For steps of ours that Slurm still has: one on a node that is gone stays in its list for minutes."""


class _Start(NamedTuple):
    """What one attempt is started from and on.

    Attributes:
        nodes: Named to srun; empty when the whole allocation is used.
        reached: The last step of the attempt before it, where that is known.
        used: All nodes of the step.
    """

    attempt: str
    number: int
    rows: Sequence[Row]
    poison: Optional[PoisonCheckpoint]
    choice: Choice
    allocation: Allocation
    nodes: Tuple[str, ...]
    reached: Optional[int] = None

    @property
    def used(self) -> Tuple[str, ...]:
        return self.nodes or self.allocation.nodes

    @property
    def loss(self) -> str:
        """What follows the sentence on the checkpoint: how many steps are done again; "" where that is not known."""
        if self.reached is None:
            return ""
        lost_count = max(0, self.reached - self.choice.step)
        if not lost_count:
            return "; no step is lost"
        steps = counted(lost_count, "step is", "steps are")
        sentence = f"; step {self.reached} was reached: {steps} done again"
        if self.choice.stepped_back:
            return sentence
        return f"{sentence}, unless memory has newer ones"


class AttemptRunner:
    """Runs the attempts of one run of the batch script, one after the other.

    Attributes:
        patience: Waits for storage and for slurmctld.
        storage: The checkpoint root, as this run sees it.
        resumption: Chooses checkpoints, and reads what the ranks restored of them.
        failed_launches: What follows from the launches that have failed.
        container_starts: Whether the ranks' container comes up.
        ranks_were_heard: Whether a rank's wrapper has called `job run` in the last attempt.
    """

    def __init__(
        self,
        context: RunContext,
        interruptions: Interruptions,
        *,
        chooser: Optional[checkpoint_choice.Chooser] = None,
        prover: Optional[checkpoint_choice.Chooser] = None,
    ) -> None:
        options, signals, report = context.options, context.signals, context.report
        self._context = context
        self._interruptions = interruptions
        self.patience = Patience(options, context.scheduler, signals, report, interruptions.raise_if_signalled)
        self._proving = ProvingStep(options, context.env, report)
        self._outlived: Dict[Phase, float] = {}
        self.storage = CheckpointRoot(
            options.state, options.storage_wait, signals, report, options.root, context.claim_path
        )
        self.resumption = Resumption(options, self.patience, self._proving, chooser, prover)
        self.failed_launches = FailedLaunches(report, by_srun=context.scheduler.has_queue)
        self.container_starts = ContainerStarts(context.container, options, context.env)
        self.ranks_were_heard = False
        self._rows = BudgetRows(context.ledger, self.storage, signals, interruptions)

    def run(self, number: int, lost: Sequence[str], previous: Optional[Outcome]) -> Outcome:
        """Run attempt `number` from the choice of its checkpoint to the row of its end.

        Args:
            number: Of the attempt within this run, from 0.
            lost: Nodes that must not be used.
            previous: The outcome of the attempt before it.

        Raises:
            GaveUp: No attempt may be made.
            RunStopped: Slurm or a user has ended this run.
            RunHandedBack: The job has to go back into the queue.
            JobError: The ledger cannot be written, or srun cannot be started.
        """
        start = self._prepare(number, lost, previous)
        while not self._record_start(start):
            # A root that is away looks like one in which nothing was ever saved: choose anew.
            start = self._prepare(number, lost, previous)
        start_time = time.monotonic()
        observation = self._run_step(start)
        outcome = self.resumption.recast_crash_as_storage_if_unreadable(classify(observation))
        self._record_end(start.attempt, outcome, round(time.monotonic() - start_time, 1))
        self.failed_launches.update_advice_and_hopelessness(outcome, start.used)
        return outcome

    def _refuse_replaced_root(self) -> None:
        """Raise GaveUp where another directory has come in the place of the root, and the root has not come back."""
        root = self._context.options.root
        if self.storage.is_replaced():
            raise GaveUp(
                f"{root} is not the directory with which this job began: its records and checkpoints are gone, and "
                "training would start from scratch",
                hint=f"restore {root}, then: scontrol release {self._context.job.id.slurm_id}; without the old "
                "directory, the job starts at step 0",
            )

    def _prepare(self, number: int, lost: Sequence[str], previous: Optional[Outcome]) -> _Start:
        """Wait for storage and slurmctld, end what is left of the attempt before, and choose."""
        context = self._context
        if self.storage.outlast():
            self._interruptions.raise_if_signalled("waiting for storage")
            self._refuse_replaced_root()
        if previous is not None and context.report.dead:
            reason = "the job's log was on a mount that was lost: a new run gets a new log"
            raise RunHandedBack(OutcomeKind.NODE_LOST, reason)
        self._proving.nodes = context.job.nodes
        if previous is not None:
            self._end_remaining_steps(lost, previous)
        rows = context.ledger.valid_rows_of_this_job()
        poison = find_poison_checkpoint(rows)
        choice = self._choose_checkpoint(rows, poison)
        self._refuse_start(rows, poison, choice)
        if choice.kind != checkpoint_choice.KIT_KIND:
            self._set_damaged_aside(choice, poison)
        allocated = self.patience.wait_for_answered_allocation(context.job)
        if allocated.ended:
            self._interruptions.stop(context.scheduler.explain_run_end(allocated, context.job.restart))
        avoided: Tuple[str, ...] = ()
        reached: Optional[int] = None
        if previous is not None:
            reached = previous.reached
            avoided = (*previous.nodes_without_root, *previous.unlaunched)
        nodes = select_nodes(context, allocated, lost, avoided)
        return _Start(context.ledger.name(number), number, rows, poison, choice, allocated, nodes, reached)

    def _end_remaining_steps(self, lost: Sequence[str], previous: Outcome) -> None:
        """End the steps that Slurm still has of the previous attempt."""
        context = self._context
        # A slurmctld that does not answer cannot say which steps are left.
        self._proving.nodes = self.patience.wait_for_answered_allocation(context.job).healthy(lost)
        limit = SWEEP_SECONDS
        if lost or previous.cut:
            limit = SWEEP_SECONDS_AFTER_LOSS
        end_leftover_steps(context, limit)

    def _choose_checkpoint(self, rows: Sequence[Row], poison: Optional[PoisonCheckpoint]) -> Choice:
        """Choose a checkpoint, or begin anew where none is valid and a person allows that.

        Raises GaveUp, RunStopped, RunHandedBack, JobError.
        """
        context = self._context
        try:
            return self.resumption.choose_verifying_bytes_if_needed(rows, poison, context.policy, context.job.restart)
        except GaveUp as err:
            is_allowed = begin_anew.is_fresh_start_requested_and_not_yet_used(context.options, rows)
            if not isinstance(err.__cause__, NoValidCheckpoint) or not is_allowed:
                raise
            self.begin_anew(err)
        return self.resumption.choose_verifying_bytes_if_needed(rows, poison, context.policy, context.job.restart)

    def begin_anew(self, error: GaveUp) -> None:
        """Leave what was committed and start at step 0 from now on. Raises JobError."""
        context = self._context
        begin_anew.record_fresh_start(context.options.root, context.ledger, context.job.id.slurm_id, error.message)
        context.report(
            "fresh", f"--fresh: starts again at step 0, and ignores the committed checkpoints: {error.message}"
        )

    def _refuse_start(self, rows: Sequence[Row], poison: Optional[PoisonCheckpoint], choice: Choice) -> None:
        """Raise GaveUp when the budget is spent or the checkpoint before a poisoned one ends in the same way."""
        context = self._context
        spent = count_spent_budget(rows, choice.order, context.job.restart)
        refusal = refuse_start(StartFacts(context.policy, spent, choice.source, poison, choice.stepped_back))
        if refusal:
            raise GaveUp(refusal)

    def _set_damaged_aside(self, choice: Choice, poison: Optional[PoisonCheckpoint]) -> None:
        """Rename damaged checkpoints of another framework, whose trainer would load them all the same."""
        context = self._context
        damaged = [name for name, _ in choice.rejected if poison is None or name != poison.name]
        for name, new_name in set_aside(context.options.root, damaged, now=time.time()):
            message = f"{name} is damaged and was renamed to {new_name}"
            context.report("set_aside", message, attempt=name, now=new_name)

    def _record_start(self, start: _Start) -> bool:
        """Record and report that the attempt begins; return False where the row could not be written."""
        fields = start.choice.fields()
        starts = allocation.node_starts_for_ledger(start.allocation, list(start.used))
        is_written = self._rows.try_append(
            "attempt", attempt=start.attempt, nodes=list(start.used), starts=starts, **fields
        )
        if not is_written:
            return False
        message = f"attempt {start.attempt} {start.choice.sentence()}{start.loss}"
        self._context.report("attempt", message, attempt=start.attempt, nodes=list(start.used), **fields)
        return True

    def _run_step(self, start: _Start) -> Observation:
        """Start the step and supervise it to its end. Raises JobError."""
        context = self._context
        addresses = start.allocation.addresses
        host_of_node = {name: host for name, (host, _) in addresses.items()}
        node = context.env.get("SLURMD_NODENAME", "")
        own_host = start.allocation.own_host or host_of_node.get(node, "")
        with contextlib.ExitStack() as stack:
            lifelines = stack.enter_context(contextlib.closing(Lifelines(own_host, list(host_of_node.values()))))
            stack.enter_context(proving_watch.proving_process_unless_kit_checkpoint(start.choice, context.options.root))
            step_retry = self._listen_to_step_retry(start.attempt, stack)
            process = context.scheduler.start_step(
                self._plan_step(start), self._step_environment(start, lifelines), context.descriptor_limit
            )
            rules = SupervisionRules(
                NodeWatch.of(addresses, start.nodes, context.options),
                self.storage,
                lifelines,
                step_retry,
                tuple(start.used),
                start.allocation.starts,
                self._known_silences(start.rows),
            )
            observation = StepSupervision(process, start.attempt, rules, context).run()
        self._record_restores(start.attempt)
        observation = self.container_starts.add_silent_nodes_without_root(
            observation, list(lifelines.status_by_node), start.used
        )
        self.ranks_were_heard = bool(lifelines.status_by_node)
        if not context.scheduler.has_queue:
            return observation
        return launch_probe.probe_unheard_nodes_if_launch_failed(observation, context)

    def _listen_to_step_retry(self, attempt: str, stack: contextlib.ExitStack) -> Optional[StepRetry]:
        context = self._context
        if not context.is_hyperpod:
            return None
        record = functools.partial(self._interruptions.record, "hyperpod", attempt=attempt)
        step_retry = StepRetry(context.scheduler.runner, context.job.id, context.report, RetryLog(), record)
        stack.callback(step_retry.close)
        return step_retry

    def _plan_step(self, start: _Start) -> srun_step.StepPlan:
        context = self._context
        return srun_step.StepPlan(
            context.options.command,
            start.attempt,
            context.options.srun_args,
            start.nodes,
            retry=start.number > 0,
            hyperpod=context.is_hyperpod,
            srun=context.options.srun,
            container=context.container,
            groups=context.groups,
        )

    def _step_environment(self, start: _Start, lifelines: Lifelines) -> Dict[str, str]:
        context = self._context
        variables = {
            **start.choice.environment(),
            **srun_step.task_count_variables(context.env, start.nodes),
            **lifelines.environment,
            HPK_ATTEMPT: start.attempt,
            HPK_CHECKPOINT_ROOT: context.options.root,
            HPK_STATE: context.options.state,
        }
        if context.is_hyperpod:
            variables.update(launches.step_retry_variables(start.poison, self.resumption.unreadable))
        return srun_step.step_environment(context.env, variables)

    def _known_silences(self, rows: Sequence[Row]) -> KnownSilences:
        """Return what is known of this job's silences: the ends in its ledger, and what this run of it outlived."""
        stalls = [
            row.get("reached")
            for row in rows
            if row.get("event") == "ended" and OutcomeKind.of_row(row) is OutcomeKind.STALL
        ]
        return KnownSilences(Counter(stalls), self._outlived)

    def _record_restores(self, attempt: str) -> None:
        """Record and report what the ranks restored, launch by launch."""
        for verdict in self.resumption.read_and_remember_verdicts(attempt):
            fields = verdict.to_report_fields()
            self._rows.append("restored", attempt=attempt, **fields)
            self._context.report("restored", verdict.sentence(), attempt=attempt, **fields)

    def _record_end(self, attempt: str, outcome: Outcome, seconds: float) -> None:
        row_fields = outcome.fields()
        if self._context.signals.warned:
            row_fields["warned"] = True
        self._rows.append("ended", attempt=attempt, seconds=seconds, **row_fields)
        message = f"attempt {attempt} {outcome.sentence()} ({seconds:g} s)"
        self._context.report("ended", message, attempt=attempt, seconds=seconds, **outcome.fields())


def end_leftover_steps(context: RunContext, limit: float) -> List[str]:
    """Kill steps of ours that outlived their launcher, wait until there are none, and return those that are left.

    A slurmctld that was away when a step ended may hold it for a minute: its slurmstepds report the end again then.
    """
    end = time.monotonic() + limit
    scheduler, job = context.scheduler, context.job
    remaining = scheduler.kill_ranks(job)
    if remaining:
        message = f"Slurm still runs {', '.join(remaining)}: cancelled, waiting {limit:g} s at most"
        context.report("sweep", message, steps=remaining)
    while remaining and time.monotonic() < end:
        context.signals.pause_until_stop_or_warning(0.5)
        try:
            remaining = scheduler.query_remaining_steps(job)
        except RunError:
            break
    return remaining


def select_nodes(
    context: RunContext, allocated: Allocation, lost: Sequence[str], avoided: Sequence[str]
) -> Tuple[str, ...]:
    """Return the nodes to name to srun; none when the step uses the whole allocation.

    Nodes in `avoided`, and nodes that are cordoned, are used only where the others are too few. Raises RunHandedBack
    when too few are left.
    """
    options, job = context.options, context.job
    needed = options.nodes or len(job.nodes)
    for left_out in ((*lost, *avoided, *allocated.cordoned), (*lost, *avoided), lost):
        healthy = allocated.healthy(left_out)
        if len(healthy) >= needed:
            break
    else:
        unusable = sorted((set(job.nodes) | set(allocated.nodes)) - set(healthy))
        reason = f"{len(healthy)} of {needed} nodes are left, without {', '.join(unusable)}"
        raise RunHandedBack(OutcomeKind.NODE_LOST, reason)
    uses_whole_allocation = healthy == job.nodes and not options.nodes
    if context.groups or uses_whole_allocation:
        return ()
    return healthy[:needed]


# Append the rows from which the budget is counted, whatever storage does meanwhile.

CACHE_SECONDS = 2.0
"""Seconds in which a mount that has gone may still answer from its cache."""

MAX_FAILURES = 3
"""Tries to append where the checkpoint root answers."""


class BudgetRows:
    """Writes the rows of one run of the batch script."""

    def __init__(self, ledger: Ledger, storage: CheckpointRoot, signals: Signals, interruptions: Interruptions) -> None:
        self._ledger = ledger
        self._storage = storage
        self._signals = signals
        self._interruptions = interruptions
        self._failures = 0

    def append(self, event: str, **fields: object) -> None:
        """Append a row, with as many tries as that takes. Raises JobError, RunStopped, RunHandedBack."""
        while not self.try_append(event, **fields):
            pass

    def try_append(self, event: str, **fields: object) -> bool:
        """Append a row; return False where that failed and may succeed now.

        What was read of the root shortly before may be wrong then. Raises JobError, RunStopped, RunHandedBack.
        """
        try:
            self._ledger.append(event, **fields)
        except JobError:
            self._failures += 1
            self._signals.pause_until_stop_or_warning(CACHE_SECONDS)
            if self._storage.outlast():
                self._failures = 0
            self._interruptions.raise_if_signalled("waiting for storage")
            if self._failures >= MAX_FAILURES or not self._storage.answers():
                raise
            return False
        self._failures = 0
        return True
