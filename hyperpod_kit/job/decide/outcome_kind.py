"""The classes of an attempt's end, with the properties that decide how each of them is counted, shown and documented.

A class is one member here and one rule in `outcome.py:classify`; budgets, the status page, metrics, goodput and the
documentation follow from the properties.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import enum
from typing import Any, Mapping, NamedTuple, Optional


class LaunchEnd(enum.Enum):
    """How a launch of the ranks ended, as far as it explains its last seconds.

    LOST: with rank 0's own host, or with the host that watched it; PEER_LOST: with another rank's host.
    """

    RUNS = enum.auto()
    FINISHED = enum.auto()
    REQUESTED = enum.auto()
    CRASHED = enum.auto()
    HUNG = enum.auto()
    LOST = enum.auto()
    PEER_LOST = enum.auto()


class _Traits(NamedTuple):
    word: str
    sentence: str
    meaning: str
    launch_end: LaunchEnd
    colour: str
    costs_budget: bool = False
    is_handed_back: bool = False
    by_slurm: bool = False


class OutcomeKind(enum.Enum):
    """How an attempt ended. The value is the word in ledgers, reports and metrics; it never changes.

    Attributes:
        sentence: What happened, in the words of a report, as far as the class alone says it.
        meaning: What the class stands for, in the words of the documentation.
        launch_end: What the last seconds of the attempt's last launch were.
        colour: Of the attempt in `job status --html`.
        costs_budget: Whether it counts as a failure of the checkpoint that the attempt started from.
        is_handed_back: Whether the job asked to be queued again, after a warning or by itself.
        by_slurm: Whether Slurm has ended this run of the batch script, so that nothing is left to decide.
    """

    DONE = _Traits("done", "finished", "it finished", LaunchEnd.FINISHED, "#1a7f37")
    AGAIN = _Traits(
        "again",
        "saved and requested another run",
        "it saved and requested another run (exit 75)",
        LaunchEnd.REQUESTED,
        "#0969da",
        is_handed_back=True,
    )
    PREEMPTED = _Traits(
        "preempted",
        "ended after the warning by USR1",
        "it received USR1 before its end, for the time limit or a preemption",
        LaunchEnd.REQUESTED,
        "#54aeff",
        is_handed_back=True,
    )
    CANCELLED = _Traits(
        "cancelled",
        "was cancelled",
        "Slurm ended it: scancel, or a limit",
        LaunchEnd.REQUESTED,
        "#6e7781",
        by_slurm=True,
    )
    CANCELLED_IN_HANG = _Traits(
        "cancelled_in_hang",
        "was cancelled while no rank made progress",
        "the user of `--requeue-after-cancel`, who ends hung jobs, cancelled it while no rank made progress",
        LaunchEnd.HUNG,
        "#7d4e00",
        costs_budget=True,
        by_slurm=True,
    )
    REQUEUED = _Traits(
        "requeued",
        "was ended by Slurm, which has put the job back into the queue",
        "Slurm ended it and put the job back into the queue, and no node of it is known to be lost",
        LaunchEnd.REQUESTED,
        "#79c0a0",
        by_slurm=True,
    )
    UNKNOWN = _Traits(
        "unknown",
        "was ended for an unknown reason",
        "it was ended, and neither Slurm nor a node reports a reason",
        LaunchEnd.LOST,
        "#953800",
        by_slurm=True,
    )
    NODE_LOST = _Traits(
        "node_lost",
        "lost a node",
        "a node does not answer, or Slurm ended the run because of one",
        LaunchEnd.LOST,
        "#bc4c00",
    )
    STORAGE = _Traits(
        "storage",
        "lost the checkpoint root",
        "the checkpoint root did not answer",
        LaunchEnd.LOST,
        "#0e8a8a",
    )
    STALL = _Traits(
        "stall",
        "stopped making progress and was ended",
        "it was ended after `--stall` seconds without progress",
        LaunchEnd.HUNG,
        "#9a6700",
        costs_budget=True,
    )
    LAUNCH_FAILED = _Traits(
        "launch_failed",
        "could not be launched",
        "no rank has run its command: the command, its wrapper or srun could not be started",
        LaunchEnd.CRASHED,
        "#8250df",
    )
    CRASH = _Traits("crash", "failed", "a rank failed", LaunchEnd.CRASHED, "#cf222e", costs_budget=True)

    def __new__(cls, word: str, *_: object) -> OutcomeKind:
        """Use the word alone as the value, so that `OutcomeKind("crash")` finds the class of a row."""
        member = object.__new__(cls)
        member._value_ = word
        return member

    def __init__(
        self,
        word: str,
        sentence: str,
        meaning: str,
        launch_end: LaunchEnd,
        colour: str,
        costs_budget: bool,
        is_handed_back: bool,
        by_slurm: bool,
    ) -> None:
        self.sentence = sentence
        self.meaning = meaning
        self.launch_end = launch_end
        self.colour = colour
        self.costs_budget = costs_budget
        self.is_handed_back = is_handed_back
        self.by_slurm = by_slurm

    @property
    def is_failure(self) -> bool:
        """Whether training was cut short by a fault: of a rank, of a node or of storage."""
        return self.costs_budget or self in (OutcomeKind.NODE_LOST, OutcomeKind.STORAGE)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Optional[OutcomeKind]:
        """Return the class in a row of a ledger; None where it names none that this release knows."""
        word = row.get("class")
        if not isinstance(word, str):
            return None
        return cls.parse(word)

    @classmethod
    def parse(cls, word: str) -> Optional[OutcomeKind]:
        """Return the class of a word; None for a word that this release does not know."""
        return _BY_WORD.get(word)


_BY_WORD = {kind.value: kind for kind in OutcomeKind}
