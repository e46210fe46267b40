"""The start of a run of the batch script, before its first attempt.

It establishes which job this is, that its checkpoint root is there and belongs to it, and whether it may try again.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.errors import CheckpointError, GaveUp, HyperpodKitError, JobError, RunError
from hyperpod_kit.job.base import allocation, exits
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.decide.outcome import earliest, furthest
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.retry_policy import RetryPolicy
from hyperpod_kit.job.records import ledger_row
from hyperpod_kit.job.records.ledger import Ledger, Row, read
from hyperpod_kit.job.resume.patience import unanswered
from hyperpod_kit.job.run import identity, ownership, rewinding
from hyperpod_kit.job.run.sole_run import RootLock
from hyperpod_kit.job.step import step_note
from hyperpod_kit.job.step.local_machine import is_local_job
from hyperpod_kit.job.step.options import RunOptions, prepare
from hyperpod_kit.job.step.scheduler import Scheduler
from hyperpod_kit.slurm import control, verdict
from hyperpod_kit.slurm.environment import JobEnvironment, read_auto_resume_option

LAST_RUN_WAIT = 5.0
"""Seconds to wait for the end of a `job run` that the batch script has just ended."""


class Beginning(NamedTuple):
    """The steps of the start; none of them writes below the root before this job has claimed it."""

    options: RunOptions
    scheduler: Scheduler
    report: JobReport
    signals: Signals
    sole: RootLock

    def wait_until_slurm_confirms_job(self, job: JobEnvironment) -> Optional[JobEnvironment]:
        """Return the job as Slurm has it, None when Slurm ends this run meanwhile. Raises JobError.

        Without an answer within `controller_wait` seconds it is the job of the environment.
        """
        end = time.monotonic() + self.options.controller_wait
        failures = 0
        while True:
            recorded_job = identity.job_as_slurm_records_it(self.scheduler.runner, job)
            if recorded_job or time.monotonic() >= end:
                return recorded_job or job
            failures += 1
            self.report("controller", unanswered(failures, end - time.monotonic()))
            self.signals.pause_until_stop_or_warning(5.0)
            if self.signals.stop or self.signals.warned:
                return None

    def prepare_directories_unless_signalled(self, job: JobEnvironment) -> bool:
        """Make the directories; return False when Slurm ends this run meanwhile. Raises JobError, GaveUp.

        A requeued run waits `storage_wait` seconds for a root that is away.
        """
        end = time.monotonic() + self.options.storage_wait
        while True:
            try:
                prepare(self.options)
                return True
            except JobError as err:
                if not job.restart:
                    raise
                # It was there before the requeue: its file system is away.
                if time.monotonic() >= end:
                    raise GaveUp(err.message, hint=err.hint) from None
                self.report("storage", f"{err.message}; waiting")
            self.signals.pause_until_stop_or_warning(5.0)
            if self.signals.stop or self.signals.warned:
                return False

    def claim_root_unless_signalled(self, job: JobEnvironment) -> Optional[str]:
        """Claim the root before anything is written there, and return the path of the claim.

        None when Slurm ends this run meanwhile.

        Raises GaveUp in a requeued run, otherwise the error of the claim.
        """
        limit = min(self.scheduler.claim_wait, self.options.storage_wait)
        lock_limit = limit if job.restart else LAST_RUN_WAIT
        try:
            self.sole.take(job.id.slurm_id, self.signals.pause_until_stop_or_warning, lock_limit)
            return ownership.claim(
                self.scheduler.runner,
                self.options.state,
                job.id,
                self.signals.pause_until_stop_or_warning,
                limit=limit,
                root=self.options.root,
            )
        except HyperpodKitError as err:
            if self.signals.stop:
                return None
            if job.restart:
                raise GaveUp(err.message, hint=err.hint) from None
            raise err from None

    def go_back(self, job: JobEnvironment, ledger: Ledger) -> None:
        """Go back to the checkpoint of `--from`, where it is given. Raises JobError."""
        name = self.options.rewind_to
        if not name:
            return
        try:
            done = rewinding.rewind_once_for_job(self.options.root, name, ledger, job.id.slurm_id)
        except (CheckpointError, OSError) as err:
            raise JobError(
                f"cannot go back to {name}: {err}", hint=f"hyperpod-kit checkpoint ls {self.options.root}"
            ) from err
        explanation = "this job already went back to it, and resumes from the newest checkpoint since then"
        if done:
            explanation = "newer checkpoints are ignored for good"
        self.report("rewound", f"--from {name}: {explanation}", attempt=name, now=done)

    def read_auto_resume_and_retry_policy(
        self, job: JobEnvironment, env: Mapping[str, str]
    ) -> Tuple[bool, RetryPolicy]:
        """Return whether the user has switched auto-resume on, and the budgets of the job.

        An option above 1 is also the number of restarts, unless the command line names one.
        """
        comment = ""
        with contextlib.suppress(RunError):
            comment = self.scheduler.query_comment(job)
        auto_resume_option = read_auto_resume_option(env, comment) or 0
        restarts = self.options.max_restarts
        if restarts is None and auto_resume_option > 1:
            restarts = auto_resume_option
        policy = self.options.policy
        if restarts is not None:
            policy = policy._replace(max_restarts=restarts)
        return auto_resume_option > 0, policy

    def record_if_slurm_requeued_finished_job(self, job: JobEnvironment, ledger: Ledger) -> bool:
        """Return whether the job has finished and Slurm has queued it again by itself, and record that.

        There is nothing to do then.
        """
        if not job.restart:
            return False
        rows = ledger.valid_rows_of_this_job()
        end = end_of_previous_run_finished_after_warning(rows, job.restart)
        if end is None:
            return False
        try:
            queued = control.query_last_queued_at(self.scheduler.runner, job.id)
        except RunError:
            return False  # the ranks find out by themselves that they have finished
        if not is_requeued_within_minute_of_end(end, queued):
            return False
        reason = f"it finished in attempt {end.get('attempt')}, whose end Slurm took for a preemption"
        self.report(
            "finished_before",
            f"nothing to do: {reason}, and queued it once more; to train on: scontrol requeue {job.id}",
            attempt=end.get("attempt"),
        )
        with contextlib.suppress(JobError):
            ledger.append("stopped", why=f"nothing to do: {reason}")
        return True

    def close_unfinished(self, ledger: Ledger) -> None:
        """Append an end for each attempt without one. Raises JobError, OSError.

        Its batch host was lost, or Slurm killed the run before it could write why.
        """
        rows = ledger.valid_rows_of_this_job()
        closed = {row.get("attempt") for row in rows if row.get("event") == "ended"}
        for row in rows:
            if row.get("event") == "attempt" and row.get("attempt") not in closed:
                self._close(row, ledger)

    def close_unfinished_of_local_runs(self, own: Ledger) -> None:
        """Append an end for each attempt of a `job run --local` that was killed: it has had the root before this job.

        Raises JobError, OSError.
        """
        rows = [row for row in read(own.path) if is_local_job(str(row.get("job"))) and not ledger_row.problem(row)]
        for job, restart in dict.fromkeys((str(row["job"]), int(row.get("restart") or 0)) for row in rows):
            self.close_unfinished(Ledger(self.options.state, job, restart))

    def _close(self, row: Row, ledger: Ledger) -> None:
        """Append what the ranks of this attempt restored, and its end, as far as records of them are there."""
        attempt = row.get("attempt")
        nodes, when = row.get("nodes") or (), float(row.get("t") or 0.0)
        lost = allocation.lost_since(self.scheduler.runner, nodes, row.get("starts"), when)
        records: Sequence[exits.Exit] = ()
        note: Optional[step_note.StepNote] = None
        restore_verdicts: Sequence[verdict.RestoreVerdict] = ()
        with contextlib.suppress(OSError):
            note = step_note.read(self.options.state)
            restore_verdicts = verdict.read_last_verdict_per_launch(self.options.state, str(attempt))
            records = exits.last_launch(exits.read(self.options.state, str(attempt)))
        for restore_verdict in restore_verdicts:
            ledger.append("restored", attempt=attempt, **restore_verdict.to_report_fields())
        kind = OutcomeKind.NODE_LOST if lost else OutcomeKind.UNKNOWN
        ledger.append(
            "ended",
            attempt=attempt,
            code=None,
            lost=list(lost),
            first=None,
            reached=_last_step(attempt, records, note),
            begins=earliest(records),
            note="the batch script was gone before it recorded a reason",
            **{"class": kind.value},
        )


def _last_step(
    attempt: Optional[str], records: Sequence[exits.Exit], note: Optional[step_note.StepNote]
) -> Optional[int]:
    """Return the last step of the attempt by the records of its ranks and by its step note."""
    steps = [furthest(records)]
    if note and note.attempt == attempt:
        steps.append(note.reached)
    return max((step for step in steps if step is not None), default=None)


# Find out whether a run is one too many: Slurm can take the end of a job that finished for a preemption.
#
# From 24.05 on slurmctld marks a job that it warns of a preemption, and the next end of its batch script is that
# preemption to it: it queues the job again, whatever the exit code. `scontrol requeue`, by which `job run` goes back
# into the queue at the warning, leaves the mark (GRACE_PREEMPT) where it is, so it falls on the end of a later run;
# or on that of the run that was warned, where that finishes within the grace. Seen with 24.11.5; 22.05.8 has no such
# mark.
#
# A person who queues a finished job again, to train on, does so later than Slurm does. Pure.

WITHIN = 60.0
"""Seconds from the end of the ranks to Slurm's own requeue: it waits for the Epilogs of the nodes."""


def end_of_previous_run_finished_after_warning(
    rows: Sequence[Mapping[str, Any]], restart_count: int
) -> Optional[Mapping[str, Any]]:
    """Return the end of the run before this one, or None unless it finished the job and the job had been warned.

    `rows` are the rows of this job, and `restart_count` is that of this run.
    """
    last: Optional[Mapping[str, Any]] = None
    is_done = was_warned = False
    for row in rows:
        if row.get("event") != "ended":
            continue
        if is_done:
            was_warned = False
        kind = OutcomeKind.of_row(row)
        is_handed_back = kind is not None and kind.is_handed_back
        was_warned = was_warned or bool(row.get("warned")) or is_handed_back
        is_done = kind is OutcomeKind.DONE
        last = row
    if last is None or not is_done or last.get("restart") != restart_count - 1:
        return None
    if not was_warned:
        return None
    return last


def is_requeued_within_minute_of_end(end: Mapping[str, Any], queued_at: float) -> bool:
    """Return whether it was Slurm that put the job back into the queue.

    `queued_at` is when that was, in Unix seconds, and 0 where it is not known.
    """
    return 0.0 < queued_at <= float(end.get("t") or 0.0) + WITHIN
