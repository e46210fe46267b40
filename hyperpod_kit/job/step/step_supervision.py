"""Stay with a running step until it has ended, or end it: observe, let step_machine.py decide, and act.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.job.decide.outcome import Observation
from hyperpod_kit.job.step.hang import (
    NEVER,
    HangVerdict,
    HangWatch,
    KnownSilences,
    StallRule,
    Watched,
    rank_positions_for_report,
)
from hyperpod_kit.job.step.run_context import RunContext
from hyperpod_kit.job.step.srun_step import RunningStep
from hyperpod_kit.job.step.step_evidence import StepEvidence
from hyperpod_kit.job.step.step_machine import (
    StepAction,
    StepActionKind,
    StepMachine,
    StepTrouble,
    strongest_trouble,
)
from hyperpod_kit.job.step.step_note import StepNoteWriter
from hyperpod_kit.job.step.step_report import StepReport
from hyperpod_kit.job.step.step_retry import RetryAnswer, StepRetry
from hyperpod_kit.job.step.supervision_rules import SupervisionRules
from hyperpod_kit.job.step.watch import AwayWatch, OutputWatch
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.untrusted.text import counted

MIN_WAIT = 0.05
"""Seconds that pass between two looks at a step, at least."""


class StepSupervision:
    """Watches one step until it has ended, and ends it where its trouble or a signal calls for that."""

    def __init__(
        self,
        step: RunningStep,
        attempt: str,
        rules: SupervisionRules,
        context: RunContext,
    ) -> None:
        options = context.options
        self._step = step
        self._attempt = attempt
        self._rules = rules
        self._context = context
        self._machine = StepMachine(save_grace=options.grace, has_step_retry=rules.retry is not None)
        self._stall = StallWatch(
            options.stall, options.root, rules.storage.answers, known_silences=rules.known_silences
        )
        self._silence = SilenceWatch(options.root, is_needed=options.requeue_after_cancel is not None)
        self._note = StepNoteWriter(options.state, attempt)
        self._root_watch = AwayWatch(rules.storage.answers)
        node_count = 0
        if rules.nodes:
            node_count = rules.nodes.count
        self._doubt = Doubt(node_count, make_query_of_down_nodes(context.scheduler.runner))
        self._launch = rules.lines.launch
        self._has_reported_unasked = False

    def run(self) -> Observation:
        """Wait for the end of the step, or bring it about, and return what was observed."""
        while self._step.poll() is None:
            action = self._machine.heed_signals(
                time.monotonic(),
                is_stopped=bool(self._context.signals.stop),
                is_warned=self._context.signals.warned,
                looks_hung=bool(self._silence.reason),
            )
            self._act(action)
            if action.kind is StepActionKind.END:
                break
            if self._look_and_act().kind is StepActionKind.END:
                break
            self._wait()
        evidence = StepEvidence(self._rules, self._attempt, self._context)
        return evidence.collect(self._step.poll(), self._machine.trouble, self._silence.reason)

    def _look_and_act(self) -> StepAction:
        """Look at the step once, act on what was found, and return the action."""
        # Before the nodes' lines are read: HyperPod announces a launch before its ranks are there.
        is_launched_again = self._hear_of_launches()
        trouble = self._find_trouble()
        is_launched_again = is_launched_again or self._rules.lines.launch != self._launch
        action = self._machine.judge(trouble, is_launched_again=is_launched_again)
        if self._rules.retry is not None:
            action = self._consult_step_retry(self._rules.retry, action, trouble)
        self._act(action)
        return action

    def _hear_of_launches(self) -> bool:
        """Return whether HyperPod reports that it has started the ranks again since the last look."""
        if self._rules.retry is None:
            return False
        launches = self._rules.retry.record_messages_and_count_relaunches()
        for _ in range(launches):
            self._rules.lines.note_announced_relaunch()
        return launches > 0

    def _find_trouble(self) -> StepTrouble:
        lines = self._rules.lines
        lost = self._find_lost_nodes()
        # Also where nothing follows from it: the lines of nodes that have connected must be read.
        cut = tuple(name for name in lines.receive_and_list_cut_off_nodes() if name not in self._doubt.doubted)
        for sentence in lines.news():
            self._context.report("lifeline", sentence)
        hang = self._stall.reason_to_end_step_or_empty(lines.reports)
        self._silence.look(lines.reports)
        self._note.write_note_if_due(lines.reports, self._stall.seconds_without_progress)
        nodes_without_root = self._root_watch.lost(lines.without_storage)
        return strongest_trouble(lost, hang, cut, nodes_without_root)

    def _find_lost_nodes(self) -> Tuple[str, ...]:
        watch = self._rules.nodes
        lost: Tuple[str, ...] = ()
        if watch is not None and not watch.seconds_until_next_probe:
            lost = self._doubt.lost(watch.probe(), watch.suspects)
        for sentence in self._doubt.news():
            self._context.report("doubt", sentence)
        if watch is not None and watch.unasked and not self._has_reported_unasked:
            self._has_reported_unasked = True
            self._context.report(
                "unasked",
                f"{counted(len(watch.unasked), 'node')} could not be queried from the batch host, first "
                f"{watch.unasked[0]}: the state is unknown, and until then only Slurm itself detects a loss",
                nodes=list(watch.unasked),
            )
        return lost

    def _consult_step_retry(self, retry: StepRetry, action: StepAction, trouble: StepTrouble) -> StepAction:
        """Ask HyperPod about a trouble where the action is to ask it, and return the action that follows."""
        retry_answer = RetryAnswer.WAIT
        if action.kind is StepActionKind.ASK_STEP_RETRY:
            retry_answer = retry.end_step_or_wait_for_retry(trouble.reason, trouble.nodes)
            action = self._machine.step_retry_answered(retry_answer, trouble)
        if retry_answer is RetryAnswer.LAUNCHED and not retry.can_hear_relaunches:
            self._rules.lines.note_announced_relaunch()
        if retry_answer is not RetryAnswer.END:
            self._machine.step_retry_looked(trouble, has_ended_the_step=retry.ended)
        return action

    def _act(self, action: StepAction) -> None:
        if action.kind is StepActionKind.SEND_SAVE_SIGNAL:
            self._send_save_signal()
        elif action.kind is StepActionKind.RESTART_WATCHES:
            self._restart_watches()
        elif action.kind is StepActionKind.END:
            self._end(action)

    def _send_save_signal(self) -> None:
        self._context.report("warned", "USR1: requesting a save from the step")
        try:
            self._context.scheduler.send_save_signal(self._context.job)
        except RunError as err:
            self._context.report("warned", f"the save signal could not be sent to the step: {err}")

    def _restart_watches(self) -> None:
        """Start the watches afresh, as the ranks have been started again, maybe on other nodes."""
        self._launch = self._rules.lines.launch
        self._stall.restart()
        self._silence.restart()
        watch = self._rules.nodes
        if watch is None:
            return
        addresses = self._context.scheduler.query_allocation(self._context.job).addresses
        if addresses:
            watch.replace_addresses_after_relaunch(addresses)

    def _end(self, action: StepAction) -> None:
        trouble = action.trouble
        if trouble.reason:
            rank_fields: Dict[str, object] = {}
            if trouble.stalled:
                rank_fields = self._stall.fields(self._rules.lines.reports)
            target = "the step"
            if self._rules.retry is not None:
                target = "srun"
            self._context.report("intervene", f"{trouble.reason}: ending {target}", **trouble.fields(), **rank_fields)
        self._step.end(
            lambda: self._context.scheduler.kill_ranks(self._context.job),
            self._context.signals.wait,
            grace=action.grace,
            patience=action.patience,
        )

    def _wait(self) -> None:
        """Wait for a signal, a line of a node, or the moment at which one of the watches is due."""
        watch, lines = self._rules.nodes, self._rules.lines
        # Each is asked once: what is due at this moment may not be due any more a moment later.
        seconds_until_probe: Optional[float] = None
        if watch is not None:
            seconds_until_probe = watch.seconds_until_next_probe
        dues = (
            seconds_until_probe,
            lines.seconds_until_due,
            self._root_watch.seconds_until_next_look,
            self._stall.seconds_until_next_look,
            self._silence.seconds_until_next_look,
            self._machine.seconds_to_save(time.monotonic()),
        )
        seconds = min([self._context.options.probe_interval, *(due for due in dues if due is not None)])
        self._context.signals.wait(max(MIN_WAIT, seconds), lines.files)


# Find out whether a step hangs: by the steps that its ranks report, and where they report none by its output.

_CHECK_INTERVAL = 1.0
"""Seconds between two looks at most."""


class StallWatch:
    """Watches one step for a hang. `serves`: whether the checkpoint root answers here, which takes seconds where it
    does not; called only before a verdict. Storage that is away keeps ranks waiting, and that is no hang.
    `known_silences`: see HangWatch."""

    def __init__(
        self,
        rule: StallRule,
        root: str,
        serves: Callable[[], bool],
        fd: int = 1,
        *,
        known_silences: Optional[KnownSilences] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rule, self._serves, self._clock = rule, serves, clock
        self._steps = HangWatch(rule, known_silences)
        self._output = OutputWatch(rule.unreported, root, fd, clock=clock)
        self._last_check = clock()
        self._verdict = HangVerdict(Watched.UNREPORTED)

    def reason_to_end_step_or_empty(self, reports: Mapping[int, StepReport]) -> str:
        """Look at the step, and return why it is to be ended; "" while it is not."""
        now = self._clock()
        elapsed, self._last_check = now - self._last_check, now
        before, self._verdict = self._verdict, self._steps.observe(elapsed, reports)
        verdict = self._verdict
        if verdict.watched is Watched.UNREPORTED:
            if before.watched is not Watched.UNREPORTED:
                self._output.restart()
            if not self._output.stalled():
                return ""
            return f"no progress for {self._output.limit:g} s"
        if verdict.watched is not Watched.HANGS:
            return ""
        if not self._serves():
            self._steps.reset_silence()
            return ""
        return f"no step for {verdict.silent:.0f} s ({verdict.reason})"

    @property
    def seconds_without_progress(self) -> float:
        """Seconds since the ranks' last progress, as far as they report it."""
        return self._verdict.silent

    def fields(self, reports: Mapping[int, StepReport]) -> Dict[str, object]:
        """Return the fields for the report of a hang; none where the ranks report no steps."""
        if self._verdict.watched is Watched.UNREPORTED:
            return {}
        return {
            "silent": round(self._verdict.silent, 1),
            "limit": round(self._verdict.limit, 1),
            "ranks": rank_positions_for_report(reports),
        }

    def restart(self) -> None:
        """Begin anew, as the ranks have been started again."""
        self._steps.restart()
        self._output.restart()
        self._last_check = self._clock()

    @property
    def seconds_until_next_look(self) -> Optional[float]:
        """Seconds until the next look; None where nothing is watched."""
        limits = [limit for limit in (self._rule.floor, self._rule.unreported) if limit]
        if not limits:
            return None
        return min([_CHECK_INTERVAL, *(limit / 4 for limit in limits)])


# Tell somebody who cancels a hung job from somebody who cancels a job that works.

SILENCE_OF_A_HANG = StallRule(factor=3.0, floor=10.0, unreported=60.0)
"""What a step must look like when its job is cancelled, to count as hung. Far shorter than --stall, as it ends nothing.
"""

SILENCE_KEPT = 5.0
"""Seconds between the ends of ranks of a cancelled job and the TERM of its batch script."""


class SilenceWatch:
    """Notes why a step looks hung, for the case that its job is cancelled. `reason`: "" while it does not."""

    def __init__(self, root: str, *, is_needed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        rule = NEVER
        if is_needed:
            rule = SILENCE_OF_A_HANG
        self._watch = StallWatch(rule, root, lambda: True, clock=clock)
        self._clock = clock
        self._last_silent = 0.0
        self.reason = ""

    def look(self, reports: Mapping[int, StepReport]) -> None:
        """Look at the step. What it looked like is kept for a moment: a cancel may reach the ranks before `job run`."""
        reason, now = self._watch.reason_to_end_step_or_empty(reports), self._clock()
        if reason:
            self.reason, self._last_silent = reason, now
        elif now - self._last_silent > SILENCE_KEPT:
            self.reason = ""

    def restart(self) -> None:
        """Begin anew, as the ranks have been started again."""
        self._watch.restart()
        self.reason = ""

    @property
    def seconds_until_next_look(self) -> Optional[float]:
        """Seconds until the next look; None where nothing is watched."""
        return self._watch.seconds_until_next_look


# Judge many nodes that fall silent at once: likelier than their deaths is one cause on this side, so slurmctld is
# asked.
#
# A batch host whose network is gone finds every node silent, and would end a step that trains. What slurmctld counts
# as lost is lost. As long as it does not answer, the fault is here, and to end the step could not be ordered anyway.
# Where it answers and has heard all of them, they get more time: it notices by itself only after minutes
# (SlurmdTimeout).

FEW = 3
"""So many nodes may be lost at once without a query: a rack's share of a small job."""

PATIENCE = 60.0
"""Seconds for which nodes that slurmctld has heard may stay silent here."""

_AGAIN = 5.0
"""Seconds between two queries."""

DownNodesQuery = Callable[[Sequence[str]], Optional[Set[str]]]
"""Which of these nodes slurmctld counts as lost; None when it does not answer."""


def make_query_of_down_nodes(runner: Runner) -> DownNodesQuery:
    """Return the query that asks the running Slurm."""

    def query_down_nodes(names: Sequence[str]) -> Optional[Set[str]]:
        try:
            record_by_node = control.query_known_nodes(runner, names)
        except (RunError, ValueError):
            return None
        return {name for name in names if name not in record_by_node or record_by_node[name].is_down}

    return query_down_nodes


class Doubt:
    """Judges what a watch over `nodes` nodes takes for lost. `doubted`: nodes that are silent and not given up."""

    def __init__(
        self, nodes: int, query_down_nodes: DownNodesQuery, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = max(FEW, nodes // 4)
        self._query_down_nodes = query_down_nodes
        self._clock = clock
        self._heard_since: Optional[float] = None
        self._last_query_time: Optional[float] = None
        self._has_queued_message = False
        self._news: List[str] = []
        self.doubted: FrozenSet[str] = frozenset()

    def lost(self, suspected: Sequence[str], silent: Sequence[str]) -> Tuple[str, ...]:
        """Return the nodes that are lost for sure. `suspected`: those that the watch takes for lost after a look;
        `silent`: all that did not answer that look."""
        if len(silent) <= self._most:
            self._heard_since = None
            self._last_query_time = None
            self._has_queued_message = False
            self.doubted = frozenset()
            return tuple(suspected)
        self.doubted = frozenset(silent)
        now = self._clock()
        if not suspected or (self._last_query_time is not None and now - self._last_query_time < _AGAIN):
            return ()
        self._last_query_time = now
        confirmed = self._query_down_nodes(suspected)
        if confirmed is None:
            self._heard_since = None
            self._queue_message_once(
                silent, "slurmctld does not answer either: this node's network has failed, and no step is ended"
            )
            return ()
        if self._heard_since is None:
            self._heard_since = now
        if confirmed:
            return tuple(sorted(confirmed))
        if now - self._heard_since >= PATIENCE:
            return tuple(suspected)
        self._queue_message_once(silent, f"slurmctld reports none of them as lost: they get {PATIENCE:g} s")
        return ()

    def _queue_message_once(self, silent: Sequence[str], explanation: str) -> None:
        if not self._has_queued_message:
            self._has_queued_message = True
            self._news.append(
                f"{counted(len(silent), 'node is', 'nodes are')} silent at once, first {min(silent)}; {explanation}"
            )

    def news(self) -> Iterable[str]:
        """Return the messages that no earlier call has returned."""
        messages, self._news = self._news, []
        return messages
