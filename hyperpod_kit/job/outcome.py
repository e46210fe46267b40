"""What happened to an attempt. Pure: observations in, one class out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit.job.ended import End
from hyperpod_kit.job.exits import Exit, describe
from hyperpod_kit.job.launch_failure import NOT_STARTED, LaunchFailure, causes
from hyperpod_kit.job.retry_policy import LAUNCH_FAILED, QUICK

CLASSES = (
    "done",
    "again",
    "preempted",
    "cancelled",
    "requeued",
    "unknown",
    "node_lost",
    "storage",
    "stall",
    LAUNCH_FAILED,
    "crash",
)

ENDED = ("cancelled", "requeued", "unknown")
"""Slurm, or who gives it orders, has ended this run, and no node of it is known to be lost."""

_LAST_CODE = 128
"""The last exit code that is no signal's."""


@dataclass(frozen=True)
class Observation:
    """What was observed. `code`: srun's exit code; `stop`: the signal that ended us, if any; `warned`: USR1 came;
    `lost`: nodes that do not answer; `stalled`: nothing moved and the step was ended for it.
    `away`: the checkpoint root did not answer, here ("") or on these nodes; `cut`: nodes whose part of the step was
    gone, which Slurm did not notice; `end`: why Slurm ended the run, where it did; `reached`: the last step that the
    ranks reported while they ran; `hang`: what was seen of a step that was ended for it.
    `heard`: a rank's wrapper has called us; `unheard`: nodes of which none has, and which left no record;
    `launch_failures`: what could not be executed."""

    code: int
    exits: Tuple[Exit, ...] = ()
    stop: Optional[str] = None
    warned: bool = False
    lost: Tuple[str, ...] = ()
    stalled: bool = False
    away: Tuple[str, ...] = ()
    cut: Tuple[str, ...] = ()
    end: Optional[End] = None
    reached: Optional[int] = None
    hang: str = ""
    heard: bool = False
    unheard: Tuple[str, ...] = ()
    launch_failures: Tuple[LaunchFailure, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """`kind` is one of CLASSES; `first`: the rank that failed first, by its own record; `code`: for our own exit.

    `reached`: the last step that any rank is known to have completed, `begins`: the first that they did.
    `away`, `cut`, `end`, `hang`, `launch_failures`: as in Observation; `unlaunched`: nodes known to have begun nothing.
    """

    kind: str
    code: int
    first: Optional[Exit] = None
    lost: Tuple[str, ...] = ()
    reached: Optional[int] = None
    begins: Optional[int] = None
    away: Tuple[str, ...] = ()
    cut: Tuple[str, ...] = ()
    end: Optional[End] = None
    hang: str = ""
    launch_failures: Tuple[LaunchFailure, ...] = ()
    unlaunched: Tuple[str, ...] = ()

    def fields(self) -> Dict[str, Any]:
        """For the ledger and the report."""
        return {
            "class": self.kind,
            "code": self.code,
            "lost": list(self.lost),
            "reached": self.reached,
            "begins": self.begins,
            "first": describe(self.first) if self.first else None,
            **({"hang": self.hang} if self.hang else {}),
        }

    def sentence(self) -> str:
        """The class in words."""
        first = self.first
        who = (
            ""
            if first is None
            else f": rank {first.rank} on {first.node} "
            + (f"exited {first.code}" if first.signal is None else f"was killed by signal {first.signal}")
        )
        said = self.end.words if self.end else ""
        words = {
            "done": "finished",
            "again": "saved and wants to run again",
            "preempted": "was warned by USR1 and has ended",
            "cancelled": said or "was cancelled",
            "requeued": said,
            "unknown": said,
            "node_lost": f"lost {', '.join(self.lost) or 'a node'}" + (f" and {said}" if said else ""),
            "storage": f"lost the checkpoint root{self._where()}"
            if self.away or first is None
            else f"could not read its training data{who}",
            "stall": "stopped making progress and was ended" + (f": {self.hang}" if self.hang else ""),
            LAUNCH_FAILED: f"could not be launched{self._cause()}",
            "crash": f"failed{who or self._unrecorded()}",
        }
        return words[self.kind]

    def _unrecorded(self) -> str:
        """srun failed and no rank wrote how it ended."""
        how = f"exited {self.code}" + (f" (128 + signal {self.code - 128})" if 128 < self.code < 160 else "")
        return (
            f": srun {how}, and no rank could write how it ended: the step was killed as a whole, wrappers and all; "
            "srun's own lines above this one say more"
        )

    def _cause(self) -> str:
        """What kept the ranks from starting, as far as that is known."""
        if self.launch_failures:
            return f": {causes(self.launch_failures)}"
        if self.first is not None:
            return f": rank {self.first.rank} on {self.first.node} exited {self.first.code} before it did a step"
        return f": srun exited {self.code}, and no rank has begun; srun's own lines above this one say more"

    def _where(self) -> str:
        names = ", ".join(name for name in self.away if name)
        return f" on {names}" if names else ""


def classify(seen: Observation) -> Outcome:
    """What happened, with the last step that it came to."""
    reached = max((step for step in (furthest(seen.exits), seen.reached) if step is not None), default=None)
    return replace(
        _classify(seen), reached=reached, begins=earliest(seen.exits), cut=seen.cut, end=seen.end, hang=seen.hang
    )


def furthest(records: Sequence[Exit]) -> Optional[int]:
    """The last step that any rank is known to have completed."""
    return max((record.step for record in records if record.step is not None), default=None)


def earliest(records: Sequence[Exit]) -> Optional[int]:
    """The first step that the ranks did, where they say."""
    return min((record.begins for record in records if record.begins is not None), default=None)


def _classify(seen: Observation) -> Outcome:
    """Strongest fact first: what Slurm told us, then success, then nodes, then ranks."""
    first = first_failure(seen.exits)
    code = _code(seen, first)
    if seen.stop:
        kind = seen.end.kind if seen.end else "cancelled"
        return Outcome("node_lost" if seen.lost else kind, code, first, seen.lost)
    if seen.code == 0:
        return Outcome("again" if any(record.again for record in seen.exits) else "done", 0, None)
    if seen.warned:
        return Outcome("preempted", code, first, seen.lost)
    if seen.lost:
        return Outcome("node_lost", code, first, seen.lost)
    if seen.away or (first is not None and first.without_data):
        return Outcome("storage", code, first, away=seen.away)
    if seen.stalled:
        return Outcome("stall", code, first)
    if never_began(seen):
        return Outcome(LAUNCH_FAILED, code, first, launch_failures=seen.launch_failures, unlaunched=_unlaunched(seen))
    return Outcome("crash", code, first)


def may_not_have_begun(seen: Observation) -> bool:
    """Whether nothing that was observed keeps a failed launch from being one that never began: no step was done, and
    every rank that failed was killed, as all are when one node's part of the step fails."""
    if seen.code == 0 or seen.stop or seen.warned or seen.lost or seen.away or seen.stalled:
        return False
    steps = (seen.reached, furthest(seen.exits), earliest(seen.exits))
    if any(step is not None for step in steps):
        return False
    return all(record.signal is not None or record.code in NOT_STARTED for record in _failures(seen.exits))


def never_began(seen: Observation) -> bool:
    """Whether the ranks failed without having run their command, so that this says nothing of their checkpoint."""
    if not may_not_have_begun(seen):
        return False
    if seen.launch_failures:
        return True
    first = first_failure(seen.exits)
    if first is None:
        # Killed as a whole, it may have been at work where no node could call us.
        return not seen.heard and 0 < seen.code <= _LAST_CODE
    return first.code in NOT_STARTED and first.ended - first.started < QUICK


def _unlaunched(seen: Observation) -> Tuple[str, ...]:
    nodes = {failure.node for failure in seen.launch_failures}
    nodes.update(record.node for record in seen.exits if record.code in NOT_STARTED)
    return tuple(sorted(nodes))


def first_failure(exits: Sequence[Exit]) -> Optional[Exit]:
    """The earliest rank that ended neither well nor asking to run again: the others fell because of it."""
    bad = _failures(exits)
    return min(bad, key=lambda record: (record.ended, record.rank)) if bad else None


def _failures(exits: Sequence[Exit]) -> List[Exit]:
    return [record for record in exits if not record.good and not record.again]


def _code(seen: Observation, first: Optional[Exit]) -> int:
    if first is None:
        return seen.code if seen.code >= 0 else 128 - seen.code
    return first.code if first.code is not None else 128 + (first.signal or 0)
