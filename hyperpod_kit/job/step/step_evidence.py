"""Collect the facts of a step that has ended, for outcome.py to classify.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from typing import Iterable, Mapping, Optional, Sequence, Set, Tuple

from hyperpod_kit.job.base import exits, launch_failure
from hyperpod_kit.job.base.allocation import Allocation
from hyperpod_kit.job.base.exits import Exit
from hyperpod_kit.job.base.launch_failure import LaunchFailure
from hyperpod_kit.job.decide.outcome import Observation
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.run_end import RunEnd
from hyperpod_kit.job.step.hang import furthest
from hyperpod_kit.job.step.lifeline import BYE
from hyperpod_kit.job.step.run_context import RunContext
from hyperpod_kit.job.step.step_machine import StepTrouble
from hyperpod_kit.job.step.supervision_rules import SupervisionRules
from hyperpod_kit.job.step.watch import wait_until_suspects_answer_or_lost

NO_RANK = 1
"""What stands for srun's code where it exits 0 without having started a rank."""

KILLED = -9
"""What stands for the code of an srun that cannot be waited for."""

SETTLE_SECONDS = 4.0
"""Beyond `silent_after`, in which every suspected node has answered or been given up."""


class StepEvidence:
    """Collects the facts of one step."""

    def __init__(
        self,
        rules: SupervisionRules,
        attempt: str,
        context: RunContext,
    ) -> None:
        self._rules = rules
        self._attempt = attempt
        self._context = context

    def collect(self, code: Optional[int], trouble: StepTrouble, silence: str = "") -> Observation:
        """Return what is known of the step. `code`: of srun; `trouble`: for what it was ended, if for any; `silence`:
        why it looked hung before it ended, where somebody may cancel the job for that."""
        lines = self._rules.lines
        lines.receive_and_list_cut_off_nodes()
        stop = self._context.signals.stop
        nodes_without_root = tuple(lines.without_storage)
        has_failed = code != 0
        # What the ranks wrote is read once the checkpoint root answers.
        if has_failed and not stop and self._rules.storage.outlast():
            nodes_without_root = ("", *nodes_without_root)
            stop = self._context.signals.stop
        lost = trouble.lost
        if has_failed and not stop and not lost and not trouble.stalled:
            lost = self._settle_suspects()
        allocated: Optional[Allocation] = None
        if has_failed and not trouble.stalled:
            # srun of a job that Slurm has just ended fails before our own TERM arrives.
            allocated = self._context.scheduler.query_allocation(self._context.job)
            lost = tuple(sorted({*lost, *allocated.down}))
            if allocated.ended and not self._context.signals.warned and not stop:
                stop = allocated.state
        end = self._explain_end(allocated, stop)
        records, launch_failures = self._read_records()
        if end is not None and allocated is not None:
            lost = self._lost_at_the_end_of_the_run(end, allocated, lost, records)
        elif has_failed and self._rules.nodes is not None:
            lost = tuple(sorted({*lost, *vanished(self._rules.nodes.doubted, lines.status_by_node, records)}))
        return Observation(
            code=self._corrected_code(code, records),
            exits=records,
            stop=stop,
            warned=self._context.signals.warned,
            lost=lost,
            stalled=trouble.stalled,
            nodes_without_root=nodes_without_root,
            cut=trouble.cut,
            end=end,
            reached=furthest(lines.reports),
            hang=_hang_reason(trouble) or _silence_at_scancel(end, silence),
            has_wrapper_called=bool(lines.greeted),
            unheard=self._unheard_nodes(records),
            launch_failures=launch_failures,
            launcher=self._context.scheduler.launcher,
        )

    def _settle_suspects(self) -> Tuple[str, ...]:
        seconds = self._context.options.silent_after + SETTLE_SECONDS
        return tuple(
            wait_until_suspects_answer_or_lost(
                self._rules.nodes, seconds, self._context.signals.pause_until_stop_or_warning
            )
        )

    def _explain_end(self, allocated: Optional[Allocation], stop: Optional[str]) -> Optional[RunEnd]:
        if allocated is None or not stop:
            return None
        return self._context.scheduler.explain_run_end(allocated, self._context.job.restart, self._context.signals.stop)

    def _read_records(self) -> Tuple[Tuple[Exit, ...], Tuple[LaunchFailure, ...]]:
        """Return the records that the wrappers of the last launch have left; none where the root cannot be read."""
        state = self._context.options.state
        records: Tuple[Exit, ...] = ()
        launch_failures: Tuple[LaunchFailure, ...] = ()
        with contextlib.suppress(OSError):
            records = tuple(exits.last_launch(exits.read(state, self._attempt)))
            launch: Optional[str] = None
            if records:
                launch = records[0].launch
            launch_failures = tuple(launch_failure.read(state, self._attempt, launch))
        return records, launch_failures

    def _corrected_code(self, code: Optional[int], records: Sequence[Exit]) -> int:
        if code is None:
            return KILLED
        if code == 0 and not records and not self._rules.lines.status_by_node:
            # A plugin of slurmstepd that fails before the tasks has this effect in Slurm 22.05.
            launcher = self._context.scheduler.launcher
            self._context.report("unstarted", f"{launcher} exited 0 before any rank began: this counts as a failure")
            return NO_RANK
        return code

    def _unheard_nodes(self, records: Iterable[Exit]) -> Tuple[str, ...]:
        """Return the nodes of the step from which no wrapper has called, and which left no record."""
        heard_nodes = {*self._rules.lines.greeted, *(record.node for record in records)}
        return tuple(name for name in self._rules.used if name not in heard_nodes)

    def _lost_at_the_end_of_the_run(
        self, end: RunEnd, allocated: Allocation, lost: Sequence[str], records: Iterable[Exit]
    ) -> Tuple[str, ...]:
        if end.kind is OutcomeKind.CANCELLED:
            return ()
        return tuple(sorted({*lost, *self._suspected_causes(allocated, records)}))

    def _suspected_causes(self, allocated: Allocation, records: Iterable[Exit]) -> Set[str]:
        """Return the nodes that may be why Slurm ended the run.

        It counts them as lost, they were started anew since, or they did not answer us and left no last word.
        """
        rules = self._rules
        ended_in_order = {record.node for record in records}
        ended_in_order |= {name for name, word in rules.lines.status_by_node.items() if word == BYE}
        silent: Set[str] = set()
        if rules.nodes is not None:
            silent = {*rules.nodes.doubted, *rules.nodes.suspects} - ended_in_order
        rebooted = {
            name
            for name, start in rules.starts.items()
            if name in allocated.starts and allocated.starts[name].was_rebooted_since(start)
        }
        return (silent | rebooted | set(allocated.before)) & set(rules.used)


def _hang_reason(trouble: StepTrouble) -> str:
    """Return why the step counts as hung; "" where it does not."""
    if not trouble.stalled:
        return ""
    return trouble.reason


def _silence_at_scancel(end: Optional[RunEnd], silence: str) -> str:
    if end is None or not end.by_scancel:
        return ""
    return silence


def vanished(doubted: Iterable[str], last_word_by_node: Mapping[str, str], records: Iterable[Exit]) -> Set[str]:
    """Return the nodes that broke off without a last word, left no record and did not answer for a while: their machine
    died.

    One that is replaced or boots within seconds answers again before it would be given up.
    """
    nodes_with_records = {record.node for record in records}
    return {name for name in doubted if last_word_by_node.get(name) == "" and name not in nodes_with_records}
