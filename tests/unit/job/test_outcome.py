from __future__ import annotations

import pytest

from hyperpod_kit.job.base.exits import Exit
from hyperpod_kit.job.base.launch_failure import LaunchFailure
from hyperpod_kit.job.decide.outcome import Observation, classify
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.run_end import RunEnd

SCANCEL = RunEnd(OutcomeKind.CANCELLED, "was cancelled", by_scancel=True)
LIMIT = RunEnd(OutcomeKind.CANCELLED, "was ended by Slurm at its time limit")
ABSENT = LaunchFailure("n2", "/opt/x", "No such file or directory")


def end(rank: int, code: int | None = None, signal: int | None = None, ended: float = 1.0) -> Exit:
    return Exit(rank=rank, node=f"n{rank}", boot_id="", code=code, signal=signal, started=0.0, ended=ended)


@pytest.mark.parametrize(
    ("seen", "kind", "code"),
    [
        (Observation(0), "done", 0),
        (Observation(0, warned=True), "done", 0),
        (Observation(0, exits=(end(0, 75), end(1, 75))), "again", 0),
        (Observation(137, exits=(end(0, signal=15, ended=2.0), end(1, 3))), "crash", 3),
        (Observation(137, exits=(end(1, signal=9),)), "crash", 137),
        (Observation(1), "launch_failed", 1),
        (Observation(1, has_wrapper_called=True), "crash", 1),
        (Observation(2), "launch_failed", 2),
        (Observation(2, lost=("n2",)), "node_lost", 2),
        (Observation(2, nodes_without_root=("",)), "storage", 2),
        (Observation(2, stalled=True), "stall", 2),
        (Observation(2, stop="SIGTERM"), "cancelled", 2),
        (Observation(137), "crash", 137),
        (Observation(127, exits=(end(0, 127),), has_wrapper_called=True), "launch_failed", 127),
        (
            Observation(137, exits=(end(0, signal=15, ended=2.0), end(1, 126)), has_wrapper_called=True),
            "launch_failed",
            126,
        ),
        (Observation(127, exits=(end(0, 127, ended=601.0),)), "crash", 127),
        (Observation(127, exits=(end(0, 127)._replace(step=3),)), "crash", 127),
        (Observation(127, exits=(end(0, 127), end(1, signal=15)._replace(begins=4))), "crash", 127),
        (Observation(137, exits=(end(0, signal=15),), has_wrapper_called=True), "crash", 143),
        (
            Observation(137, exits=(end(0, signal=15),), has_wrapper_called=True, launch_failures=(ABSENT,)),
            "launch_failed",
            143,
        ),
        (Observation(137, has_wrapper_called=True, launch_failures=(ABSENT,)), "launch_failed", 137),
        (Observation(137, exits=(end(0, 3),), has_wrapper_called=True, launch_failures=(ABSENT,)), "crash", 3),
        (Observation(-9), "crash", 137),
        (Observation(143, lost=("n2",)), "node_lost", 143),
        (Observation(143, exits=(end(0, 1),), lost=("n2",)), "node_lost", 1),
        (Observation(143, stalled=True), "stall", 143),
        (Observation(138, exits=(end(0, signal=10),), warned=True), "preempted", 138),
        (Observation(143, stop="SIGTERM"), "cancelled", 143),
        (Observation(143, stop="SIGTERM", warned=True), "cancelled", 143),
        (Observation(143, stop="SIGTERM", lost=("n2",)), "node_lost", 143),
        (Observation(0, stop="SIGTERM"), "cancelled", 0),
        (Observation(143, stop="SIGTERM", end=SCANCEL), "cancelled", 143),
        (Observation(143, stop="SIGTERM", end=SCANCEL, hang="no step for 17 s"), "cancelled_in_hang", 143),
        (Observation(143, stop="SIGTERM", end=LIMIT, hang="no step for 17 s"), "cancelled", 143),
        (Observation(143, stop="SIGTERM", end=SCANCEL, hang="no step for 17 s", lost=("n2",)), "node_lost", 143),
    ],
)
def test_classes(seen: Observation, kind: str, code: int) -> None:
    outcome = classify(seen)
    assert (outcome.kind.value, outcome.code) == (kind, code)
    assert outcome.sentence()


def test_training_data_that_storage_does_not_give_is_storage_and_no_crash() -> None:
    outcome = classify(Observation(137, exits=(end(1, 74), end(0, signal=15, ended=2.0))))
    assert (outcome.kind, outcome.code) == (OutcomeKind.STORAGE, 74)
    assert outcome.sentence() == "could not read its training data: rank 1 on n1 exited 74"


def test_the_first_failure_is_the_cause() -> None:
    seen = Observation(137, exits=(end(0, signal=15, ended=5.0), end(3, 7, ended=4.0), end(2, 75, ended=1.0)))
    first = classify(seen).first
    assert first is not None and first.rank == 3
