"""`job run`: the one supervisor of a job, from its start to its end or back into the queue.

observe   run an attempt: choose, start, watch              (attempt.py, step_supervision.py)
classify  what happened, from facts                         (outcome.py)
decide    what follows, within budgets of a ledger that survives a requeue (decision.py, budget.py)
act       pause and retry, requeue, give up, or end         (here)

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import ContextManager, Dict, List, Mapping, Optional, Tuple

from hyperpod_kit import audit, descriptors
from hyperpod_kit.errors import GaveUp, JobError, NoValidCheckpoint, RunError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.decide.budget import SpentBudget, count_spent_budget
from hyperpod_kit.job.decide.decision import (
    AttemptFacts,
    DecisionKind,
    RunDecision,
    UnreadableCheckpoint,
    decide,
    refuse_requeue,
)
from hyperpod_kit.job.decide.outcome import Outcome
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.goodput import run_log
from hyperpod_kit.job.records import job_index, life
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.resume import checkpoint_choice
from hyperpod_kit.job.run import begin_anew, identity
from hyperpod_kit.job.run.attempt import AttemptRunner
from hyperpod_kit.job.run.batch_host_watch import BatchHostWatch
from hyperpod_kit.job.run.beginning import Beginning
from hyperpod_kit.job.run.interruptions import Interruptions, RunBeginsAgain, RunHandedBack, RunStopped
from hyperpod_kit.job.run.sole_run import root_lock
from hyperpod_kit.job.step import container, lifeline, script_containers, srun_step
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.job.step.run_context import RunContext
from hyperpod_kit.job.step.scheduler import Scheduler
from hyperpod_kit.slurm.environment import REQUEUE_AFTER_CANCEL_MARK, JobEnvironment

REQUEUE_WAIT = 60.0
"""Seconds that Slurm gets to end this run of a job that it has put back into the queue."""


class JobSupervisor:
    """Runs a job for one run of its batch script. Everything outside of the process is given to the constructor."""

    def __init__(
        self,
        options: RunOptions,
        env: Mapping[str, str],
        *,
        scheduler: Scheduler,
        report: JobReport,
        chooser: Optional[checkpoint_choice.Chooser] = None,
        prover: Optional[checkpoint_choice.Chooser] = None,
    ) -> None:
        self._options = options
        self._env = env
        self._scheduler = scheduler
        self._report = report
        self._chooser = chooser
        self._prover = prover
        self._signals = Signals()
        self._descriptor_limit = descriptors.soft_limit()  # what the ranks get
        job = scheduler.identify_job(env)
        self._groups = identity.components(job, options.srun_args, options.nodes)
        self._job = job
        if self._groups:
            self._job = job.restricted_to_components(self._groups)

    def run(self) -> int:
        """Run the job and return the exit code of the batch script.

        Raises:
            GaveUp: The job must be held.
            JobError: It cannot be run here at all.
        """
        with contextlib.closing(root_lock(self._job.id, self._options)) as lock:
            startup = Beginning(self._options, self._scheduler, self._report, self._signals, lock)
            with self._signals:
                job = startup.wait_until_slurm_confirms_job(self._job)
                if job is None or not startup.prepare_directories_unless_signalled(job):
                    return ExitCode.TERMINATED
                claim_path = startup.claim_root_unless_signalled(job)
                if claim_path is None:
                    return ExitCode.TERMINATED
            while True:
                try:
                    return self._run_claimed(startup, job, claim_path)
                except RunBeginsAgain:
                    job = replace(job, restart=job.restart + 1)
                with self._signals:
                    if not startup.prepare_directories_unless_signalled(job):
                        return ExitCode.TERMINATED

    def _run_claimed(self, startup: Beginning, job: JobEnvironment, claim_path: str) -> int:
        """Bring the records of the claimed root up to date, run the attempts, and return the exit code."""
        options = self._options
        ledger = Ledger(options.state, job.id.slurm_id, job.restart, born=life.id_of_batch_script_run(self._env))
        job_index.append_job_and_root(job, options.root, self._env)
        run_log.append_run_row(options.state, ledger.life(), job, self._scheduler.query_record_and_queued_at, self._env)
        auto_resume, policy = startup.read_auto_resume_and_retry_policy(job, self._env)
        startup.close_unfinished(ledger)
        startup.close_unfinished_of_local_runs(ledger)
        startup.go_back(job, ledger)
        self._report_start(job, auto_resume)
        if startup.record_if_slurm_requeued_finished_job(job, ledger):
            return ExitCode.OK
        context = RunContext(
            options=options,
            env=self._env,
            job=job,
            groups=self._groups,
            policy=policy,
            container=container.container_from_options_or_env(options.srun_args, self._env, options.container_python),
            is_hyperpod=self._scheduler.has_step_retry(),
            descriptor_limit=self._descriptor_limit,
            scheduler=self._scheduler,
            report=self._report,
            signals=self._signals,
            ledger=ledger,
            claim_path=claim_path,
        )
        descriptors.raise_soft_limit_to_hard()
        self._warn_about_containers_and_descriptors(context)
        if options.requeue_after_cancel is not None and auto_resume:
            self._mark_for_requeue_after_cancel(job, options.requeue_after_cancel)
        with self._signals, self._watch_batch_host(job, auto_resume):
            return _AttemptLoop(context, auto_resume, self._chooser, self._prover).run()

    def _report_start(self, job: JobEnvironment, auto_resume: bool) -> None:
        components: Dict[str, List[int]] = {}
        if self._groups:
            components["components"] = list(self._groups)
        switch = "on" if auto_resume else "off"
        self._report(
            "start",
            f"job {job.id}, run {job.restart}, auto-resume {switch}",
            job=job.id.slurm_id,
            number=job.id.raw,
            restart=job.restart,
            auto_resume=auto_resume,
            nodes=list(job.nodes),
            root=self._options.root,
            **components,
        )

    def _warn_about_containers_and_descriptors(self, context: RunContext) -> None:
        for warning in script_containers.doubts_of(
            context.container, context.options, srun_step.path_of_kit_main_on_nodes()
        ):
            self._report("container", warning)
        shortage = lifeline.shortage(len(context.job.nodes))
        if shortage:
            self._report("descriptors", shortage)

    def _mark_for_requeue_after_cancel(self, job: JobEnvironment, uid: int) -> None:
        """Say in the job's comment whose scancel of a hung job is not its end: once it is cancelled, nobody can."""
        try:
            self._scheduler.add_to_comment(job, f"{REQUEUE_AFTER_CANCEL_MARK}{uid}")
        except (RunError, JobError) as err:
            self._report("requeue_after_cancel", f"the job will not be requeued if it is cancelled: {err.message}")

    def _watch_batch_host(self, job: JobEnvironment, auto_resume: bool) -> ContextManager[object]:
        """Return the watch that gives the job back when the root hangs on this host alone."""
        node = self._env.get("SLURMD_NODENAME", "")
        if not auto_resume or not node:
            return contextlib.nullcontext()
        return BatchHostWatch(self._scheduler.runner, job, node, self._options.state)


class _AttemptLoop:
    """Runs one attempt after the other, until one of them is the last of this run."""

    def __init__(
        self,
        context: RunContext,
        auto_resume: bool,
        chooser: Optional[checkpoint_choice.Chooser],
        prover: Optional[checkpoint_choice.Chooser],
    ) -> None:
        self._context = context
        self._auto_resume = auto_resume
        self._interruptions = Interruptions(
            context.signals, context.scheduler, context.job, context.ledger, context.report
        )
        self._attempts = AttemptRunner(context, self._interruptions, chooser=chooser, prover=prover)
        self._away_since: Optional[float] = None
        """When attempts began to end without storage, by the monotonic clock."""

    def run(self) -> int:
        """Return the exit code of this run. Raises GaveUp, JobError."""
        try:
            return self._run_attempts()
        except RunStopped:
            return ExitCode.TERMINATED
        except RunHandedBack as handed_back:
            return self._requeue(handed_back.reason, handed_back.kind)
        except GaveUp as err:
            self._record_gave_up(err)
            raise

    def _run_attempts(self) -> int:
        """Run attempts until one ends the run, and return its exit code.

        Raises RunStopped, RunHandedBack, GaveUp, JobError.
        """
        number = 0
        lost: Tuple[str, ...] = ()
        outcome: Optional[Outcome] = None
        while True:
            outcome = self._attempts.run(number, lost, outcome)
            decision = decide(self._collect_facts(outcome))
            if decision.kind is DecisionKind.EXIT:
                return self._exit(decision)
            self._act(decision)
            lost = (*lost, *outcome.lost)
            number += 1

    def _collect_facts(self, outcome: Outcome) -> AttemptFacts:
        """Return the facts that decide what follows; the ledger is read only for an outcome that needs it."""
        context, attempts = self._context, self._attempts
        away_seconds = self._measure_storage_outage(outcome)
        nothing_to_restore = attempts.resumption.nothing_left(outcome)
        return AttemptFacts(
            outcome=outcome,
            policy=context.policy,
            spent=self._count_spent_budget(outcome),
            auto_resume=self._auto_resume,
            is_stop_requested=bool(context.signals.stop),
            nothing_to_restore=nothing_to_restore,
            may_begin_anew=nothing_to_restore is not None and self._may_begin_anew(),
            container_failure=attempts.container_starts.find_failure(outcome, attempts.ranks_were_heard),
            launch_is_hopeless=attempts.failed_launches.hopeless,
            launch_advice=attempts.failed_launches.advice,
            storage_away_seconds=away_seconds,
            storage_wait=context.options.storage_wait,
            unreadable=self._find_unreadable(away_seconds),
        )

    def _measure_storage_outage(self, outcome: Outcome) -> float:
        """Return the seconds since attempts began to end without storage; 0 for another outcome."""
        if outcome.kind is not OutcomeKind.STORAGE:
            self._away_since = None
            return 0.0
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since

    def _count_spent_budget(self, outcome: Outcome) -> SpentBudget:
        if not outcome.kind.costs_budget and outcome.kind is not OutcomeKind.LAUNCH_FAILED:
            return SpentBudget()
        return count_spent_budget(self._context.ledger.valid_rows_of_this_job(), None, self._context.job.restart)

    def _may_begin_anew(self) -> bool:
        if not self._attempts.resumption.none_was_valid:
            return False
        return begin_anew.is_fresh_start_requested_and_not_yet_used(
            self._context.options, self._context.ledger.valid_rows_of_this_job()
        )

    def _find_unreadable(self, away_seconds: float) -> Optional[UnreadableCheckpoint]:
        """Return the one checkpoint that cannot be read, if there is one; None while storage is still waited for."""
        if away_seconds < self._context.options.storage_wait:
            return None
        rows, restart = self._context.ledger.valid_rows_of_this_job(), self._context.job.restart
        return self._attempts.resumption.find_unreadable(rows, restart)

    def _exit(self, decision: RunDecision) -> int:
        if decision.stop_reason:
            self._interruptions.record("stopped", why=decision.stop_reason)
        if decision.reason:
            self._context.report("stopped", decision.reason, why=decision.reason)
        return decision.exit_code

    def _act(self, decision: RunDecision) -> None:
        """Do what leads to the next attempt. Raises RunHandedBack, GaveUp, RunStopped, JobError."""
        if decision.kind is DecisionKind.REQUEUE:
            raise RunHandedBack(decision.requeued_as, decision.reason)
        if decision.error is not None:
            raise decision.error
        context = self._context
        if decision.begins_anew_after is not None:
            self._attempts.begin_anew(decision.begins_anew_after)
        if decision.passes_over is not None:
            self._attempts.resumption.pass_over(decision.passes_over)
            self._away_since = None
        if decision.reason:
            seconds = round(decision.pause, 1)
            context.report("retry", decision.reason, seconds=seconds, failures=decision.failures)
        context.signals.pause_until_stop_or_warning(decision.pause)
        self._interruptions.raise_if_signalled("between two attempts")

    def _requeue(self, reason: str, kind: OutcomeKind) -> int:
        """Put the job back into the queue and wait for Slurm to end this run. Raises GaveUp, RunBeginsAgain."""
        context = self._context
        if context.signals.stop:
            return ExitCode.TERMINATED
        spent = count_spent_budget(context.ledger.valid_rows_of_this_job(), None, context.job.restart)
        refusal = refuse_requeue(context.policy, spent)
        if refusal:
            raise self._give_up(GaveUp(f"{reason}; {refusal}"))
        self._interruptions.record("requeue", why=reason)
        if not context.scheduler.has_queue:
            return self._begin_again_unless_warned(reason)
        context.report("requeue", f"back into the queue: {reason}", why=reason)
        try:
            self._attempts.patience.requeue(context.job)
        except RunError as err:
            nodes = context.scheduler.query_allocation(context.job)
            if not nodes.ended and kind.is_handed_back:
                context.report("requeue_failed", f"cannot requeue: {err}")
                return ExitCode.AGAIN
            if not nodes.ended:
                message = f"{reason}, and the job cannot be requeued: {err}"
                raise self._give_up(GaveUp(message, hint="sbatch --requeue")) from err
        else:
            self._record_root_action(reason)
        self._wait_for_the_end_of_this_run()
        return ExitCode.AGAIN

    def _begin_again_unless_warned(self, reason: str) -> int:
        """Return the exit code of a run that was warned; otherwise raise RunBeginsAgain."""
        context = self._context
        if context.signals.warned:
            message = f"ends: {reason}; repeat the command to resume from the newest checkpoint"
            context.report("requeue", message, why=reason)
            return ExitCode.AGAIN
        context.report("requeue", f"begins again: {reason}", why=reason)
        raise RunBeginsAgain

    def _record_root_action(self, reason: str) -> None:
        if os.geteuid() == 0:
            audit.record_root_action_in_journal("requeued", f"job {self._context.job.id}", reason, asked_by="job run")

    def _wait_for_the_end_of_this_run(self) -> None:
        signals = self._context.signals
        end = time.monotonic() + REQUEUE_WAIT
        while not signals.stop and time.monotonic() < end:
            signals.wait(end - time.monotonic())

    def _give_up(self, error: GaveUp) -> GaveUp:
        """Record the error and return it, to be raised."""
        self._record_gave_up(error)
        return error

    def _record_gave_up(self, error: GaveUp) -> None:
        cause, report = error.__cause__, self._context.report
        rejected: List[Dict[str, str]] = []
        if isinstance(cause, NoValidCheckpoint):
            rejected = checkpoint_choice.reasons(cause.reasons)
        error_name: Optional[str] = None
        if cause:
            error_name = type(cause).__name__
        self._interruptions.record("gave_up", why=error.message, rejected=rejected)
        for row in rejected:
            report("rejected", f"{row['attempt']}: {row['why']}", attempt=row["attempt"], why=row["why"])
        report(
            "gave_up",
            f"gave up: {error.message}",
            why=error.message,
            rejected=rejected,
            error=error_name,
        )
