"""Stay with a running step until it has ended, or end it, and say what was seen."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, Mapping, Optional, Set, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.job import allocation, ended, exits, launch_failure, step_name
from hyperpod_kit.job.doubt import Doubt, ask_slurmctld
from hyperpod_kit.job.hang import KnownSilences, furthest
from hyperpod_kit.job.launch_failure import LaunchFailure
from hyperpod_kit.job.lifeline import BYE, Lifelines
from hyperpod_kit.job.options import RunOptions
from hyperpod_kit.job.outcome import Observation
from hyperpod_kit.job.report import JobReport
from hyperpod_kit.job.signals import Signals
from hyperpod_kit.job.stall_watch import StallWatch
from hyperpod_kit.job.step import SrunStep
from hyperpod_kit.job.step_note import StepNoteWriter
from hyperpod_kit.job.step_retry import RetryAnswer, StepRetry
from hyperpod_kit.job.storage import CheckpointRoot
from hyperpod_kit.job.watch import AwayWatch, NodeWatch, settle
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.slurm.job_id import JobId

STOP_GRACE, LOST_GRACE, STALL_GRACE = 20.0, 3.0, 10.0
"""Seconds between TERM and KILL: for a cancelled step, one whose node is gone, one that does not move."""

NO_RANK = 1
"""What stands for srun's code where it exits 0 without having started a rank."""


@dataclass(frozen=True)
class SupervisionRules:
    """When to step in. `nodes` is None when slurmctld did not say where the slurmds are.

    `retry`: HyperPod's, where it replaces nodes under a running srun (20-30 min): nothing but a step is ended then.
    `used`: the step's nodes; `starts`: when their machines were started, as it was known before the step; `known`: of
    this job's silences.
    """

    options: RunOptions
    nodes: Optional[NodeWatch]
    storage: CheckpointRoot
    lines: Lifelines
    retry: Optional[StepRetry] = None
    used: Tuple[str, ...] = ()
    starts: Mapping[str, control.NodeStart] = field(default_factory=dict)
    known: KnownSilences = field(default_factory=KnownSilences)


def supervise(
    step: SrunStep,
    attempt: str,
    rules: SupervisionRules,
    job: JobEnvironment,
    *,
    runner: Runner,
    signals: Signals,
    report: JobReport,
) -> Observation:
    """Wait for the end of the step, or bring it about: TERM, USR1 and no end within `grace`, a lost node, a part of the
    step that is gone, a node without the checkpoint root, a stall."""
    options, lines, watch, retry = rules.options, rules.lines, rules.nodes, rules.retry
    stall = StallWatch(options.stall, options.root, rules.storage.answers, known=rules.known)
    note = StepNoteWriter(options.state, attempt)
    warned_until: Optional[float] = None
    trouble = _Trouble("")
    root = AwayWatch(rules.storage.answers)
    doubt = Doubt(watch.count if watch else 0, ask_slurmctld(runner))
    unasked = False
    launch = lines.launch
    while step.poll() is None:
        if signals.stop:
            step.end(runner, job.id, signals.wait, grace=STOP_GRACE)
            break
        if signals.warned and warned_until is None:
            warned_until = time.monotonic() + options.grace
            _tell_to_save(runner, job.id, report)
        if warned_until is not None and time.monotonic() >= warned_until:
            step.end(runner, job.id, signals.wait)
            break
        # Before the nodes are heard: HyperPod speaks of a launch before its ranks are there.
        told = retry.listen() if retry is not None else 0
        for _ in range(told):
            lines.started_again()
        lost = doubt.lost(watch.probe(), watch.suspects) if watch and not watch.due else ()
        for sentence in doubt.news():
            report("doubt", sentence)
        if watch and watch.unasked and not unasked:
            unasked = True
            report(
                "unasked",
                f"{len(watch.unasked)} nodes, such as {watch.unasked[0]}, could not be asked from here: "
                "that says nothing about them, and meanwhile only Slurm itself notices their loss",
                nodes=list(watch.unasked),
            )
        # Also where nothing follows from it: who has connected must be heard.
        cut = tuple(name for name in lines.cut() if name not in doubt.doubted)
        for sentence in lines.news():
            report("lifeline", sentence)
        hang = stall.hang(lines.reports)
        note.put(lines.reports, stall.silent)
        found = _trouble(lost, hang, cut, tuple(root.lost(lines.without_storage)))
        again = told > 0 or lines.launch != launch
        if retry is not None:
            answer = retry.heed(found.why, found.nodes) if found.why and not again else RetryAnswer.WAIT
            trouble = found if found.why and retry.ended else trouble if retry.ended else _Trouble("")
            again = again or answer is RetryAnswer.LAUNCHED
            if answer is RetryAnswer.LAUNCHED and not retry.hears:
                lines.started_again()
            if answer is not RetryAnswer.END:
                found = _Trouble("")
        if again:
            launch = lines.launch
            stall.restart()
            if watch and (nodes := allocation.look(runner, job)).addresses:
                watch.follow(nodes.addresses)
        if found.why:
            trouble = found
            seen_of_ranks = stall.fields(lines.reports) if found.stalled else {}
            words = f"{found.why}: ending {'srun' if retry else 'the step'}"
            report("intervene", words, **found.fields(), **seen_of_ranks)
            # srun waits for a dead node much longer than we do.
            step.end(runner, job.id, signals.wait, grace=found.grace, patience=5.0 if found.stalled else 1.0)
            break
        grace_left = warned_until - time.monotonic() if warned_until is not None else None
        # Each is asked once: what is due at this moment may not be due any more a moment later.
        dues = (watch.due if watch else None, lines.due, root.due, stall.due, grace_left)
        wait = min([options.probe_interval, *(due for due in dues if due is not None)])
        signals.wait(max(0.05, wait), lines.files)
    seen = _seen(step.poll(), attempt, rules, job, runner, signals, trouble.lost, trouble.stalled)
    seen = replace(seen, reached=furthest(lines.reports), hang=trouble.why if trouble.stalled else "")
    if seen.code == 0 and not seen.exits and not lines.words:
        # So it is with a plugin of slurmstepd that fails before the tasks, in Slurm 22.05.
        report("unstarted", "srun exited 0, and no rank has begun: that is taken for a failure")
        seen = replace(seen, code=NO_RANK)
    return replace(seen, cut=trouble.cut)


@dataclass(frozen=True)
class _Trouble:
    """What is wrong with a step that runs: `why` in words, "" for nothing. Of the nodes lost, cut and away one is
    set, or `stalled`."""

    why: str
    lost: Tuple[str, ...] = ()
    stalled: bool = False
    cut: Tuple[str, ...] = ()
    away: Tuple[str, ...] = ()

    @property
    def nodes(self) -> Tuple[str, ...]:
        return self.lost or self.cut or self.away

    @property
    def grace(self) -> float:
        return STALL_GRACE if self.stalled else LOST_GRACE

    def fields(self) -> Dict[str, object]:
        """For the report."""
        if self.cut or self.away:
            return {"cut": list(self.cut)} if self.cut else {"away": list(self.away)}
        return {"lost": list(self.lost), "stalled": self.stalled}


def _trouble(lost: Tuple[str, ...], hang: str, cut: Tuple[str, ...], away: Tuple[str, ...]) -> _Trouble:
    """The strongest of what was seen."""
    if lost:
        return _Trouble(f"{', '.join(lost)} does not answer", lost=lost)
    if hang:
        return _Trouble(hang, stalled=True)
    if cut:
        return _Trouble(f"the step's part on {', '.join(cut)} is gone and Slurm does not notice", cut=cut)
    if away:
        return _Trouble(f"the checkpoint root answers here and not on {', '.join(away)}", away=away)
    return _Trouble("")


def _seen(
    code: Optional[int],
    attempt: str,
    rules: SupervisionRules,
    job: JobEnvironment,
    runner: Runner,
    signals: Signals,
    lost: Tuple[str, ...],
    stalled: bool,
) -> Observation:
    """Collect the facts of an ended step. What the ranks wrote is read once the checkpoint root answers."""
    stop = signals.stop
    rules.lines.cut()
    away = tuple(rules.lines.without_storage)
    if code != 0 and not stop and rules.storage.outlast():
        away, stop = ("", *away), signals.stop
    if code != 0 and not stop and not lost and not stalled:
        lost = tuple(settle(rules.nodes, rules.options.silent_after + 4.0, signals.pause))
    end: Optional[ended.End] = None
    nodes: Optional[allocation.Allocation] = None
    if code != 0 and not stalled:
        # srun of a job that Slurm has just ended fails before our own TERM arrives.
        nodes = allocation.look(runner, job)
        if nodes.ended and not signals.warned:
            stop = stop or nodes.state
        end = ended.why(nodes, job.restart, signals.stop) if stop else None
        lost = tuple(sorted({*lost, *nodes.down}))
    records: Tuple[exits.Exit, ...] = ()
    failures: Tuple[LaunchFailure, ...] = ()
    with contextlib.suppress(OSError):
        records = tuple(exits.last_launch(exits.read(rules.options.state, attempt)))
        launch = records[0].launch if records else None
        failures = tuple(launch_failure.read(rules.options.state, attempt, launch))
    if end and nodes:
        lost = () if end.kind == ended.CANCELLED else tuple(sorted({*lost, *_missing(nodes, rules, records)}))
    elif code != 0 and rules.nodes:
        lost = tuple(sorted({*lost, *vanished(rules.nodes.doubted, rules.lines.words, records)}))
    return Observation(
        code=-9 if code is None else code,
        exits=records,
        stop=stop,
        warned=signals.warned,
        lost=lost,
        stalled=stalled,
        away=away,
        end=end,
        heard=bool(rules.lines.greeted),
        unheard=_unheard(rules, records),
        launch_failures=failures,
    )


def _unheard(rules: SupervisionRules, records: Iterable[exits.Exit]) -> Tuple[str, ...]:
    """Nodes of the step of which no rank has called or left a record."""
    told = {*rules.lines.greeted, *(record.node for record in records)}
    return tuple(name for name in rules.used if name not in told)


def _missing(seen: allocation.Allocation, rules: SupervisionRules, records: Iterable[exits.Exit]) -> Set[str]:
    """Nodes for whose sake Slurm may have ended the run: it counts them as lost, they were started anew since, or they
    did not answer us and left no last word."""
    told = {record.node for record in records} | {name for name, word in rules.lines.words.items() if word == BYE}
    silent = {*rules.nodes.doubted, *rules.nodes.suspects} - told if rules.nodes else set()
    anew = {
        name
        for name, start in rules.starts.items()
        if name in seen.starts and seen.starts[name].was_rebooted_since(start)
    }
    return (silent | anew | set(seen.before)) & set(rules.used)


def vanished(doubted: Iterable[str], words: Mapping[str, str], records: Iterable[exits.Exit]) -> Set[str]:
    """Nodes that broke off without a last word, left no record and did not answer for a while: their machine died.

    One that is replaced or boots within seconds answers again before it would be given up.
    """
    told = {record.node for record in records}
    return {name for name in doubted if words.get(name) == "" and name not in told}


def _tell_to_save(runner: Runner, job_id: JobId, report: JobReport) -> None:
    report("warned", "USR1: telling the step to save")
    try:
        control.signal_steps(runner, job_id, step_name.OWN, "USR1")
    except RunError as err:
        report("warned", f"the step could not be told: {err}")
