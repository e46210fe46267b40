"""`job run`: the one decider of a job. Per attempt: choose, start, watch, classify; then retry, requeue or give up.

choose    the newest checkpoint, once for all ranks; they prove it  (checkpoint_choice.py)
start     srun, every rank under a wrapper that records its end (step.py, exits.py)
watch     the nodes' slurmds, progress, signals                 (supervise.py, watch.py, signals.py)
classify  what happened, from facts                             (outcome.py)
decide    budgets in a ledger that survives a requeue           (retry_policy.py, ledger.py)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections import Counter
from typing import ContextManager, Dict, Mapping, Optional, Sequence, Tuple

from hyperpod_kit import audit, descriptors
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_CHECKPOINT_ROOT, HPK_STATE
from hyperpod_kit.errors import GaveUp, JobError, NoValidCheckpoint, RunError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job import (
    allocation,
    begin_anew,
    checkpoint_choice,
    container,
    ended,
    identity,
    job_index,
    launch_probe,
    launches,
    life,
    lifeline,
    proving_watch,
    script_containers,
    step,
)
from hyperpod_kit.job.batch_host_watch import BatchHostWatch
from hyperpod_kit.job.beginning import Beginning
from hyperpod_kit.job.container_starts import ContainerStarts
from hyperpod_kit.job.failed_launches import FailedLaunches
from hyperpod_kit.job.foreign.quarantine import set_aside
from hyperpod_kit.job.goodput import run_log
from hyperpod_kit.job.hang import KnownSilences
from hyperpod_kit.job.ledger import Ledger, Row
from hyperpod_kit.job.lifeline import Lifelines
from hyperpod_kit.job.options import RunOptions
from hyperpod_kit.job.outcome import ENDED, Outcome, classify
from hyperpod_kit.job.patience import Patience
from hyperpod_kit.job.proving_step import ProvingStep
from hyperpod_kit.job.report import JobReport
from hyperpod_kit.job.resumption import Resumption
from hyperpod_kit.job.retry_policy import (
    CRASHES,
    HANDED_BACK,
    LAUNCH_FAILED,
    Poison,
    RetryPolicy,
    delay,
    exhausted,
    poison,
    spent,
)
from hyperpod_kit.job.run_ends import RunHandedBack, RunStopped
from hyperpod_kit.job.signals import Signals
from hyperpod_kit.job.sole_run import JobRunLock
from hyperpod_kit.job.step_retry import StepRetry
from hyperpod_kit.job.step_retry_log import RetryLog
from hyperpod_kit.job.storage import CheckpointRoot
from hyperpod_kit.job.supervise import SupervisionRules, supervise
from hyperpod_kit.job.watch import NodeWatch
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.slurm.phase import Phase

CACHED, WRITES = 2.0, 3
"""Seconds in which a mount that has gone may still answer from its cache; tries to write where it answers."""

REQUEUE_WAIT = 60.0
"""Seconds that Slurm gets to end this run of a job that it has put back into the queue."""


class Decider:
    """One run of the batch script. Everything outside of the process comes in through the constructor."""

    def __init__(
        self,
        options: RunOptions,
        env: Mapping[str, str],
        *,
        runner: Runner,
        report: JobReport,
        chooser: Optional[checkpoint_choice.Chooser] = None,
        prover: Optional[checkpoint_choice.Chooser] = None,
        start_step: step.StartStep = step.SrunStep,
    ) -> None:
        self._options = options
        self._env = env
        self._runner = runner
        self._report = report
        self._job = JobEnvironment.read(env)
        self._groups = identity.components(self._job, options.srun_args, options.nodes)
        if self._groups:
            self._job = self._job.restricted_to_components(self._groups)
        self._ledger = self._own_ledger(self._job)
        self._policy: RetryPolicy = options.policy
        self._signals = Signals()
        self._patience = Patience(options, runner, self._signals, report, self._heed)
        self._proving = ProvingStep(options, env, report)
        self._resumption = Resumption(options, self._patience, self._proving, chooser, prover)
        self._storage = CheckpointRoot(options.state, options.storage_wait, self._signals, report, options.root)
        self._away_since: Optional[float] = None
        self._unwritten = 0
        self._limit = descriptors.soft_limit()  # what the ranks get
        self._container = container.of(options.srun_args, env, options.container_python)
        self._starts, self._heard = ContainerStarts(self._container, options, env), False
        self._launches = FailedLaunches(report)
        self._start_step = start_step
        self._outlived: Dict[Phase, float] = {}

    def run(self) -> int:
        """Returns the exit code of the batch script. Raises JobError, and GaveUp when the job must be held."""
        with contextlib.closing(JobRunLock(self._options.root)) as sole:
            return self._run(Beginning(self._options, self._runner, self._report, self._signals, sole))

    def _run(self, first: Beginning) -> int:
        with self._signals:
            known = first.identify(self._job)
            if known is None or not first.prepare(known) or not first.claim(known):
                return ExitCode.TERMINATED
        self._job, self._ledger = known, self._own_ledger(known)
        job_index.note(self._job, self._options.root, self._env)
        run_log.note(self._options.state, self._ledger.life(), self._job, self._runner, self._env)
        enabled, self._policy = first.enabled(self._job, self._env)
        first.close_unfinished(self._ledger)
        first.go_back(self._job, self._ledger)
        self._report(
            "start",
            f"job {self._job.id}, run {self._job.restart}, auto-resume " + ("on" if enabled else "off"),
            job=self._job.id.slurm_id,
            number=self._job.id.raw,
            restart=self._job.restart,
            auto_resume=enabled,
            nodes=list(self._job.nodes),
            root=self._options.root,
            **({"components": list(self._groups)} if self._groups else {}),
        )
        if first.one_too_many(self._job, self._ledger):
            return 0
        hyperpod = step.on_hyperpod(self._runner)
        descriptors.raise_soft_limit()
        for doubt in script_containers.doubts_of(self._container, self._options, step.program()):
            self._report("container", doubt)
        if short := lifeline.shortage(len(self._job.nodes)):
            self._report("descriptors", short)
        with self._signals, self._batch_host_watch(enabled):
            try:
                number = 0
                lost: Tuple[str, ...] = ()
                outcome: Optional[Outcome] = None
                while True:
                    outcome = self._attempt(number, hyperpod, lost, outcome)
                    code = self._final(outcome, enabled)
                    if code is not None:
                        return code
                    lost = (*lost, *outcome.lost)
                    number += 1
            except RunStopped:
                return ExitCode.TERMINATED
            except RunHandedBack as handed:
                return self._requeue(handed.why, handed.kind)
            except GaveUp as err:
                self._gave_up(err)
                raise

    def _own_ledger(self, job: JobEnvironment) -> Ledger:
        return Ledger(self._options.state, job.id.slurm_id, job.restart, born=life.birth(self._env))

    def _batch_host_watch(self, enabled: bool) -> ContextManager[object]:
        """What gives the job back when the root hangs on this host alone."""
        node = self._env.get("SLURMD_NODENAME", "")
        if not enabled or not node:
            return contextlib.nullcontext()
        return BatchHostWatch(self._runner, self._job, node, self._options.state)

    def _attempt(self, number: int, hyperpod: bool, lost: Tuple[str, ...], before: Optional[Outcome]) -> Outcome:
        """One step, from the choice to the row of its end. `lost`: nodes not to use; `before`: the attempt before."""
        options, job = self._options, self._job
        if self._storage.outlast():
            self._heed("waiting for storage")
        if before and self._report.dead:
            raise RunHandedBack("node_lost", "the job's log was on a mount that was lost: a new run gets a new one")
        self._proving.nodes = job.nodes
        if before:
            # A slurmctld that does not answer cannot say which steps are left.
            self._proving.nodes = self._patience.nodes(self._job).healthy(lost)
            # A step on a node that is gone, or without its slurmstepd, stays in Slurm's list for minutes.
            limit = 3.0 if lost or before.cut else 15.0
            step.sweep(self._runner, job.id, self._signals.pause, self._report, limit=limit)
        rows = self._ledger.rows()
        bad = poison(rows)
        choice = self._choice(rows, bad)
        why = exhausted(self._policy, spent(rows, choice.order, job.restart))
        if why is None and bad and bad.again and choice.stepped_back:
            why = f"{bad.name}: {bad.why}; {choice.source}, the one before it, ends in the same way"
        if why:
            raise GaveUp(why)
        if choice.kind != checkpoint_choice.OURS:
            damaged = [name for name, _ in choice.rejected if bad is None or name != bad.name]
            for name, new in set_aside(options.root, damaged, now=time.time()):
                self._report("set_aside", f"{name} is damaged and is called {new} now", attempt=name, now=new)
        nodes = self._patience.nodes(self._job)
        if nodes.ended:
            self._stopped(ended.why(nodes, job.restart))
        use = self._nodes(nodes, lost, (*before.away, *before.unlaunched) if before else ())
        attempt = self._ledger.name(number)
        plan = step.StepPlan(
            options.command,
            attempt,
            options.srun_args,
            use,
            retry=number > 0,
            hyperpod=hyperpod,
            srun=options.srun,
            container=self._container,
            groups=self._groups,
        )
        watch = NodeWatch.of(nodes.addresses, use, options)
        used = list(use or nodes.nodes)
        starts = allocation.noted_starts(nodes, used)
        if not self._written("attempt", attempt=attempt, nodes=used, starts=starts, **choice.fields()):
            # A root that is away looks like one in which nothing was ever saved.
            return self._attempt(number, hyperpod, lost, before)
        self._report(
            "attempt",
            f"attempt {attempt} {choice.sentence()}",
            attempt=attempt,
            nodes=used,
            **choice.fields(),
        )
        began = time.monotonic()
        here, hosts = self._env.get("SLURMD_NODENAME", ""), {name: host for name, (host, _) in nodes.addresses.items()}
        noted = functools.partial(self._remember, "hyperpod", attempt=attempt)
        with contextlib.ExitStack() as stack:
            lines = stack.enter_context(contextlib.closing(Lifelines(hosts.get(here, ""), list(hosts.values()))))
            stack.enter_context(proving_watch.beside(choice, options.root))
            retry = StepRetry(self._runner, job.id, self._report, RetryLog(), noted) if hyperpod else None
            stack.callback(retry.close if retry else lambda: None)
            process = self._start_step(
                plan,
                step.step_environment(
                    self._env,
                    {
                        **choice.environment(),
                        **step.tasks(self._env, use),
                        **lines.environment,
                        HPK_ATTEMPT: attempt,
                        HPK_CHECKPOINT_ROOT: options.root,
                        HPK_STATE: options.state,
                        **(launches.environment(bad, self._resumption.unreadable) if hyperpod else {}),
                    },
                ),
                self._limit,
            )
            rules = SupervisionRules(
                options, watch, self._storage, lines, retry, tuple(used), nodes.starts, self._silences(rows)
            )
            seen = supervise(
                process, attempt, rules, job, runner=self._runner, signals=self._signals, report=self._report
            )
        for verdict in self._resumption.verdicts(attempt):
            while not self._written("restored", attempt=attempt, **verdict.fields()):
                pass
            self._report("restored", verdict.sentence(), attempt=attempt, **verdict.fields())
        seen = self._starts.seen(seen, list(lines.words), use or nodes.nodes)
        seen = launch_probe.look(seen, self._container is not None, options, self._env)
        outcome, self._heard = self._resumption.seen_by_ranks(classify(seen)), bool(lines.words)
        seconds = round(time.monotonic() - began, 1)
        warned = {"warned": True} if self._signals.warned else {}
        while not self._written("ended", attempt=attempt, seconds=seconds, **outcome.fields(), **warned):
            pass
        self._report(
            "ended",
            f"attempt {attempt} {outcome.sentence()} ({seconds:g} s)",
            attempt=attempt,
            seconds=seconds,
            **outcome.fields(),
        )
        self._launches.note(outcome, use or nodes.nodes)
        return outcome

    def _choice(self, rows: Sequence[Row], bad: Optional[Poison]) -> checkpoint_choice.Choice:
        """Raises as Resumption.choice."""
        try:
            return self._resumption.choice(rows, bad, self._policy, self._job.restart)
        except GaveUp as err:
            if not isinstance(err.__cause__, NoValidCheckpoint) or not begin_anew.is_due(self._options, rows):
                raise
            self._begin_anew(err)
        return self._resumption.choice(rows, bad, self._policy, self._job.restart)

    def _begin_anew(self, err: GaveUp) -> None:
        """Raises JobError."""
        begin_anew.begin_anew(self._options.root, self._ledger, self._job.id.slurm_id, err.message)
        self._report("fresh", f"--fresh: begins anew at step 0, and leaves what was committed: {err.message}")

    def _written(self, event: str, **fields: object) -> bool:
        """Put down a row of the budget. False when that failed and is worth another try: what was read of the root
        shortly before may be wrong then. Raises JobError, RunStopped, RunHandedBack."""
        try:
            self._ledger.append(event, **fields)
        except JobError:
            self._unwritten += 1
            self._signals.pause(CACHED)
            if self._storage.outlast():
                self._unwritten = 0
            self._heed("waiting for storage")
            if self._unwritten >= WRITES or not self._storage.answers():
                raise
            return False
        self._unwritten = 0
        return True

    def _heed(self, doing: str) -> None:
        """Signals that came while no step was running. Raises RunStopped, RunHandedBack."""
        if self._signals.stop:
            self._stopped(ended.why(allocation.look(self._runner, self._job), self._job.restart, self._signals.stop))
        if self._signals.warned:
            raise RunHandedBack("preempted", f"warned by USR1 while {doing}")

    def _silences(self, rows: Sequence[Row]) -> KnownSilences:
        """What is known of this job's silences: the ends from its ledger, what was outlived from this run of it."""
        ended = [row.get("reached") for row in rows if row.get("event") == "ended" and row.get("class") == "stall"]
        return KnownSilences(Counter(ended), self._outlived)

    def _nodes(self, nodes: allocation.Allocation, lost: Sequence[str], away: Sequence[str]) -> Tuple[str, ...]:
        """Nodes to name to srun; none when the whole allocation is well. Raises RunHandedBack when too few are.

        `away`: avoided while there are others.
        """
        want = self._options.nodes or len(self._job.nodes)
        healthy = nodes.healthy((*lost, *away))
        if len(healthy) < want:
            healthy = nodes.healthy(lost)
        if len(healthy) < want:
            gone = sorted((set(self._job.nodes) | set(nodes.nodes)) - set(healthy))
            raise RunHandedBack("node_lost", f"{len(healthy)} of {want} nodes are left, without {', '.join(gone)}")
        whole = self._groups or (healthy == self._job.nodes and not self._options.nodes)
        return () if whole else healthy[:want]

    def _final(self, outcome: Outcome, enabled: bool) -> Optional[int]:
        """Exit code when there is nothing left to do; None: try again. Raises RunHandedBack, GaveUp, RunStopped."""
        if outcome.kind == "done":
            return 0
        if self._signals.stop or outcome.kind in ENDED:
            if outcome.end:
                self._remember("stopped", why=outcome.end.words)
            return ExitCode.TERMINATED
        if not enabled:
            return ExitCode.AGAIN if outcome.kind == "again" else outcome.code
        if outcome.kind in HANDED_BACK:
            raise RunHandedBack(outcome.kind, outcome.sentence())
        if nothing := self._resumption.nothing_left(outcome):
            if not self._resumption.none_was_valid or not begin_anew.is_due(self._options, self._ledger.rows()):
                raise nothing
            self._begin_anew(nothing)
        if outcome.first is not None and outcome.first.code == ExitCode.GAVE_UP:
            raise GaveUp(
                f"rank {outcome.first.rank} on {outcome.first.node} exited {ExitCode.GAVE_UP}: it gave up itself"
            )
        self._starts.look(outcome, self._heard)
        if outcome.kind == LAUNCH_FAILED:
            self._launch_again(outcome)
        if outcome.kind == "storage":
            self._without_storage(outcome)
        else:
            self._away_since = None
        if outcome.kind in CRASHES:
            used = spent(self._ledger.rows(), None, self._job.restart)
            pause = delay(self._policy, used.crashes)
            when = f"in {pause:.1f} s" if pause else "at once"
            self._report("retry", f"trying again {when}", seconds=round(pause, 1), failures=used.crashes)
            self._signals.pause(pause)
        self._heed("between two attempts")
        return None

    def _launch_again(self, outcome: Outcome) -> None:
        """After a pause, where another launch may do. Raises GaveUp."""
        used = spent(self._ledger.rows(), None, self._job.restart)
        why = exhausted(self._policy, used) or self._launches.hopeless
        if why:
            raise GaveUp(f"{outcome.sentence()}; {why}", hint=self._launches.advice)
        pause = delay(self._policy, used.launches + 1)
        self._report("retry", f"launching again in {pause:.1f} s", seconds=round(pause, 1), failures=used.launches)
        self._signals.pause(pause)

    def _without_storage(self, outcome: Outcome) -> None:
        """Nothing is wrong with the job, so it costs no budget; nodes that stay without storage are given back."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= self._options.storage_wait:
            if self._resumption.pass_over_unreadable(self._ledger.rows(), self._job.restart):
                self._away_since = None
                return
            raise RunHandedBack("node_lost", f"{outcome.sentence()} for {now - self._away_since:.0f} s")
        self._signals.pause(max(1.0, min(20.0, (now - self._away_since) / 2)))

    def _requeue(self, why: str, kind: str) -> int:
        """Put the job back into the queue and wait for Slurm to end this run."""
        if self._signals.stop:
            return ExitCode.TERMINATED
        used = spent(self._ledger.rows(), None, self._job.restart)
        gone = exhausted(self._policy, dataclasses.replace(used, crashes=0, handed_back=0, requeues=used.requeues + 1))
        if gone:
            err = GaveUp(f"{why}; {gone}")
            self._gave_up(err)
            raise err
        self._remember("requeue", why=why)
        self._report("requeue", f"back into the queue: {why}", why=why)
        try:
            self._patience.requeue(self._job)
            if os.geteuid() == 0:
                audit.record_root_action_in_journal("requeued", f"job {self._job.id}", why, asked_by="job run")
        except RunError as err:
            if not allocation.look(self._runner, self._job).ended:
                if kind in HANDED_BACK:
                    self._report("requeue_failed", f"cannot requeue: {err}")
                    return ExitCode.AGAIN
                refused = GaveUp(f"{why}, and the job cannot be requeued: {err}", hint="sbatch --requeue")
                self._gave_up(refused)
                raise refused from err
        end = time.monotonic() + REQUEUE_WAIT
        while not self._signals.stop and time.monotonic() < end:
            self._signals.wait(end - time.monotonic())
        return ExitCode.AGAIN

    def _gave_up(self, err: GaveUp) -> None:
        cause = err.__cause__
        rejected = checkpoint_choice.reasons(cause.reasons) if isinstance(cause, NoValidCheckpoint) else []
        self._remember("gave_up", why=err.message, rejected=rejected)
        for one in rejected:
            self._report("rejected", f"{one['attempt']}: {one['why']}", attempt=one["attempt"], why=one["why"])
        self._report(
            "gave_up",
            f"gave up: {err.message}",
            why=err.message,
            rejected=rejected,
            error=type(cause).__name__ if cause else None,
        )

    def _remember(self, event: str, **fields: object) -> None:
        """A row for people: how this run ends does not hang on it (Slurm counts requeues itself)."""
        try:
            self._ledger.append(event, **fields)
        except JobError as err:
            self._report("storage", f"{err.message}: `job status` will not know why this run ends")

    def _stopped(self, end: ended.End) -> None:
        self._remember("stopped", why=end.words)
        never = "; a cancelled job is never requeued" if end.kind == ended.CANCELLED else ""
        self._report("stopped", f"this run {end.words}{never}", why=end.words, kind=end.kind)
        raise RunStopped
