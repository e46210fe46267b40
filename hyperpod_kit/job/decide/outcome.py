"""Classify what happened to an attempt: an observation in, an outcome out. Pure.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.job.base.exits import Exit, describe
from hyperpod_kit.job.base.launch_failure import NOT_STARTED, LaunchFailure, causes
from hyperpod_kit.job.decide.budget import QUICK
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.run_end import RunEnd

_LAST_CODE = 128
"""The last exit code that is no signal's."""


class Observation(NamedTuple):
    """The facts of an attempt that has ended.

    Attributes:
        code: The exit code of the step's launcher; negative for the signal that killed it.
        exits: Records of the ranks of the last launch.
        stop: The signal, or Slurm's state of the job, that ended this run of the batch script.
        warned: Whether USR1 came, which announces a time limit or a preemption.
        lost: Nodes that do not answer.
        stalled: Whether nothing moved and the step was ended for it.
        nodes_without_root: Where the checkpoint root did not answer: "" for this host, or names of nodes.
        cut: Nodes whose part of the step was gone without Slurm's notice.
        end: Why Slurm ended the run, where it did.
        reached: The last step that the ranks reported while they ran.
        hang: The sentence on a step that was ended because it did not move, or did not when its job was cancelled.
        has_wrapper_called: Whether the wrapper of any rank has called `job run`.
        unheard: Nodes from which no wrapper has called, and which left no record.
        launch_failures: What could not be executed.
        launcher: What `code` is of, in a sentence.
    """

    code: int
    exits: Tuple[Exit, ...] = ()
    stop: Optional[str] = None
    warned: bool = False
    lost: Tuple[str, ...] = ()
    stalled: bool = False
    nodes_without_root: Tuple[str, ...] = ()
    cut: Tuple[str, ...] = ()
    end: Optional[RunEnd] = None
    reached: Optional[int] = None
    hang: str = ""
    has_wrapper_called: bool = False
    unheard: Tuple[str, ...] = ()
    launch_failures: Tuple[LaunchFailure, ...] = ()
    launcher: str = "srun"

    @property
    def is_explained_outside_of_ranks(self) -> bool:
        """Whether success, Slurm, a node, storage or a stall explains the end, whatever the ranks did."""
        return (
            self.code == 0
            or bool(self.stop)
            or self.warned
            or bool(self.lost)
            or bool(self.nodes_without_root)
            or self.stalled
        )


class Outcome(NamedTuple):
    """What happened to an attempt.

    Attributes:
        kind: The class.
        code: The exit code for `job run` itself, should it end now.
        first: The rank that failed first, by its own record.
        lost: Nodes that do not answer.
        reached: The last step that any rank is known to have completed.
        begins: The first step that the ranks did.
        nodes_without_root, cut, end, hang, launch_failures, launcher: As in `Observation`.
        unlaunched: Nodes that are known to have started nothing.
    """

    kind: OutcomeKind
    code: int
    first: Optional[Exit] = None
    lost: Tuple[str, ...] = ()
    reached: Optional[int] = None
    begins: Optional[int] = None
    nodes_without_root: Tuple[str, ...] = ()
    cut: Tuple[str, ...] = ()
    end: Optional[RunEnd] = None
    hang: str = ""
    launch_failures: Tuple[LaunchFailure, ...] = ()
    unlaunched: Tuple[str, ...] = ()
    launcher: str = "srun"

    def fields(self) -> Dict[str, Any]:
        """Return the fields of the outcome that the ledger and the report hold."""
        fields: Dict[str, Any] = {
            "class": self.kind.value,
            "code": self.code,
            "lost": list(self.lost),
            "reached": self.reached,
            "begins": self.begins,
            "first": None,
        }
        if self.first:
            fields["first"] = describe(self.first)
        if self.hang:
            fields["hang"] = self.hang
        return fields

    def sentence(self) -> str:
        """Return a phrase for the class, with what is known of its cause."""
        if self.kind is OutcomeKind.CANCELLED_IN_HANG:
            return f"{self.kind.sentence}: {self.hang}"
        if self.kind.by_slurm and self.end:
            return self.end.explanation
        if self.kind is OutcomeKind.NODE_LOST:
            return self._node_lost_sentence()
        if self.kind is OutcomeKind.STORAGE:
            return self._storage_sentence()
        if self.kind is OutcomeKind.STALL and self.hang:
            return f"{self.kind.sentence}: {self.hang}"
        if self.kind is OutcomeKind.LAUNCH_FAILED:
            return f"{self.kind.sentence}: {self._launch_failure_cause()}"
        if self.kind is OutcomeKind.CRASH:
            return f"{self.kind.sentence}: {self._crash_cause()}"
        return self.kind.sentence

    def _node_lost_sentence(self) -> str:
        sentence = self.kind.sentence
        if self.lost:
            sentence = f"lost {', '.join(self.lost)}"
        if self.end:
            sentence = f"{sentence} and {self.end.explanation}"
        return sentence

    def _storage_sentence(self) -> str:
        if not self.nodes_without_root and self.first is not None:
            return f"could not read its training data: {_describe_exit(self.first)}"
        names = ", ".join(name for name in self.nodes_without_root if name)
        if not names:
            return self.kind.sentence
        return f"{self.kind.sentence} on {names}"

    def _launch_failure_cause(self) -> str:
        if self.launch_failures:
            return causes(self.launch_failures)
        if self.first is not None:
            return f"rank {self.first.rank} on {self.first.node} exited {self.first.code} before it completed a step"
        own_lines = f"see the lines of {self.launcher} above"
        return f"{self.launcher} exited {self.code} before any rank began; {own_lines}"

    def _crash_cause(self) -> str:
        if self.first is not None:
            return _describe_exit(self.first)
        signal_note = ""
        if 128 < self.code < 160:
            signal_note = f" (128 + signal {self.code - 128})"
        return (
            f"{self.launcher} exited {self.code}{signal_note}, and no rank could write how it ended: the step was "
            f"killed as a whole, wrappers and all; see the lines of {self.launcher} above"
        )


def _describe_exit(record: Exit) -> str:
    if record.signal is None:
        return f"rank {record.rank} on {record.node} exited {record.code}"
    return f"rank {record.rank} on {record.node} was killed by signal {record.signal}"


def classify(observation: Observation) -> Outcome:
    """Return what happened, with the first and the last step of the attempt."""
    known_steps = [step for step in (furthest(observation.exits), observation.reached) if step is not None]
    return _classify(observation)._replace(
        reached=max(known_steps, default=None),
        begins=earliest(observation.exits),
        cut=observation.cut,
        end=observation.end,
        hang=observation.hang,
        launcher=observation.launcher,
    )


def _classify(observation: Observation) -> Outcome:
    """Judge by the strongest fact: what Slurm ended, then success, then nodes, then storage, then the ranks."""
    first = first_failure(observation.exits)
    code = _exit_code(observation, first)
    if observation.stop:
        return Outcome(_kind_of_stopped_run(observation), code, first, observation.lost)
    if observation.code == 0:
        return Outcome(_kind_of_success(observation), 0)
    if observation.warned:
        return Outcome(OutcomeKind.PREEMPTED, code, first, observation.lost)
    if observation.lost:
        return Outcome(OutcomeKind.NODE_LOST, code, first, observation.lost)
    if observation.nodes_without_root or (first is not None and first.without_data):
        return Outcome(OutcomeKind.STORAGE, code, first, nodes_without_root=observation.nodes_without_root)
    if observation.stalled:
        return Outcome(OutcomeKind.STALL, code, first)
    if never_began(observation):
        return Outcome(
            OutcomeKind.LAUNCH_FAILED,
            code,
            first,
            launch_failures=observation.launch_failures,
            unlaunched=_unlaunched_nodes(observation),
        )
    return Outcome(OutcomeKind.CRASH, code, first)


def _kind_of_stopped_run(observation: Observation) -> OutcomeKind:
    if observation.lost:
        return OutcomeKind.NODE_LOST
    if observation.end is None:
        return OutcomeKind.CANCELLED
    if observation.end.by_scancel and observation.hang:
        return OutcomeKind.CANCELLED_IN_HANG
    return observation.end.kind


def _kind_of_success(observation: Observation) -> OutcomeKind:
    if any(record.again for record in observation.exits):
        return OutcomeKind.AGAIN
    return OutcomeKind.DONE


def furthest(records: Sequence[Exit]) -> Optional[int]:
    """Return the last step that any rank is known to have completed."""
    return max((record.step for record in records if record.step is not None), default=None)


def earliest(records: Sequence[Exit]) -> Optional[int]:
    """Return the first step that the ranks did, where their records have it."""
    return min((record.begins for record in records if record.begins is not None), default=None)


def may_not_have_begun(observation: Observation) -> bool:
    """Return whether a failed launch may be one that never began.

    No step was done, and every rank that failed was killed, as all are when one node's part of the step fails.
    """
    if observation.is_explained_outside_of_ranks:
        return False
    steps = (observation.reached, furthest(observation.exits), earliest(observation.exits))
    if any(step is not None for step in steps):
        return False
    failures = _failures(observation.exits)
    return all(record.signal is not None or record.code in NOT_STARTED for record in failures)


def never_began(observation: Observation) -> bool:
    """Return whether the ranks failed without having run their command, so that no checkpoint is to blame."""
    if not may_not_have_begun(observation):
        return False
    if observation.launch_failures:
        return True
    first = first_failure(observation.exits)
    if first is None:
        # Killed as a whole, it may have been at work where no node could call us.
        return not observation.has_wrapper_called and 0 < observation.code <= _LAST_CODE
    return first.code in NOT_STARTED and first.ended - first.started < QUICK


def _unlaunched_nodes(observation: Observation) -> Tuple[str, ...]:
    nodes = {failure.node for failure in observation.launch_failures}
    nodes.update(record.node for record in observation.exits if record.code in NOT_STARTED)
    return tuple(sorted(nodes))


def first_failure(records: Sequence[Exit]) -> Optional[Exit]:
    """Return the record of the rank that failed first: the others failed because of it.

    A rank that has asked to run again has not failed.
    """
    failures = _failures(records)
    if not failures:
        return None
    return min(failures, key=lambda record: (record.ended, record.rank))


def _failures(records: Sequence[Exit]) -> List[Exit]:
    return [record for record in records if not record.good and not record.again]


def _exit_code(observation: Observation, first: Optional[Exit]) -> int:
    if first is None:
        return _exit_code_of_srun(observation.code)
    if first.code is not None:
        return first.code
    return 128 + (first.signal or 0)


def _exit_code_of_srun(code: int) -> int:
    if code >= 0:
        return code
    return 128 - code
