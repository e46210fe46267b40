"""What is done about a step that runs: the state machine alone, with a clock that the test turns."""

from __future__ import annotations

from typing import Tuple

import pytest

from hyperpod_kit.job.step.step_machine import (
    LOST_GRACE,
    SAVE_GRACE,
    STALL_GRACE,
    STOP_GRACE,
    StepActionKind,
    StepMachine,
    StepState,
    StepTrouble,
    strongest_trouble,
)
from hyperpod_kit.job.step.step_retry import RetryAnswer

LOST = strongest_trouble(lost=["n2"])
HANG = strongest_trouble(hang="no step for 600 s")
CUT = strongest_trouble(cut=["n2"])
AWAY = strongest_trouble(nodes_without_root=["n2"])
NONE = StepTrouble()


def machine(has_step_retry: bool = False) -> StepMachine:
    return StepMachine(save_grace=90.0, has_step_retry=has_step_retry)


def test_a_quiet_step_is_waited_for() -> None:
    step = machine()
    assert step.heed_signals(0.0, is_stopped=False, is_warned=False).kind is StepActionKind.WAIT
    assert step.judge(NONE, is_launched_again=False).kind is StepActionKind.WAIT
    assert step.state is StepState.RUNNING and step.seconds_to_save(0.0) is None


def test_a_stop_ends_the_step_with_time_to_save() -> None:
    step = machine()
    action = step.heed_signals(0.0, is_stopped=True, is_warned=True)
    assert (action.kind, action.grace, step.state) == (StepActionKind.END, STOP_GRACE, StepState.ENDED)
    assert step.trouble == NONE


def test_a_step_that_hangs_when_it_is_stopped_has_nothing_to_save() -> None:
    action = machine().heed_signals(0.0, is_stopped=True, is_warned=False, looks_hung=True)
    assert (action.kind, action.grace) == (StepActionKind.END, STALL_GRACE)
    going_on = machine().heed_signals(0.0, is_stopped=False, is_warned=False, looks_hung=True)
    assert going_on.kind is StepActionKind.WAIT, "a silence alone ends nothing"


def test_a_warning_is_passed_on_once_and_ends_the_step_after_its_grace() -> None:
    step = machine()
    assert step.heed_signals(10.0, is_stopped=False, is_warned=True).kind is StepActionKind.SEND_SAVE_SIGNAL
    assert step.seconds_to_save(40.0) == 60.0
    assert step.heed_signals(99.0, is_stopped=False, is_warned=True).kind is StepActionKind.WAIT
    action = step.heed_signals(100.0, is_stopped=False, is_warned=True)
    assert (action.kind, action.grace, step.state) == (StepActionKind.END, SAVE_GRACE, StepState.ENDED)


TROUBLES: Tuple[Tuple[StepTrouble, float, dict[str, object]], ...] = (
    (LOST, LOST_GRACE, {"lost": ["n2"], "stalled": False}),
    (HANG, STALL_GRACE, {"lost": [], "stalled": True}),
    (CUT, LOST_GRACE, {"cut": ["n2"]}),
    (AWAY, LOST_GRACE, {"away": ["n2"]}),
)


@pytest.mark.parametrize(("trouble", "grace", "fields"), TROUBLES)
def test_a_trouble_ends_the_step(trouble: StepTrouble, grace: float, fields: dict[str, object]) -> None:
    step = machine()
    action = step.judge(trouble, is_launched_again=False)
    assert (action.kind, action.grace, action.trouble) == (StepActionKind.END, grace, trouble)
    assert (step.state, step.trouble) == (StepState.ENDED, trouble)
    assert trouble.fields() == fields


def test_the_strongest_trouble_explains_the_others() -> None:
    every = {"lost": ["n1"], "hang": "no step", "cut": ["n2"], "nodes_without_root": ["n3"]}
    for name, trouble in (("lost", ("n1",)), ("hang", ()), ("cut", ("n2",)), ("nodes_without_root", ("n3",))):
        assert strongest_trouble(**every).nodes == trouble, name  # type: ignore[arg-type]
        del every[name]
    assert strongest_trouble() == NONE


@pytest.mark.parametrize("trouble", [LOST, HANG, CUT, AWAY])
def test_hyperpod_is_asked_before_a_step_is_ended(trouble: StepTrouble) -> None:
    step = machine(has_step_retry=True)
    action = step.judge(trouble, is_launched_again=False)
    assert (action.kind, action.trouble) == (StepActionKind.ASK_STEP_RETRY, trouble)
    assert step.step_retry_answered(RetryAnswer.WAIT, trouble).kind is StepActionKind.WAIT
    assert step.state is StepState.RUNNING
    assert step.step_retry_answered(RetryAnswer.END, trouble).kind is StepActionKind.END
    assert (step.state, step.trouble) == (StepState.ENDED, trouble)


def test_a_launch_by_hyperpod_makes_its_trouble_void() -> None:
    step = machine(has_step_retry=True)
    assert step.judge(LOST, is_launched_again=True).kind is StepActionKind.RESTART_WATCHES
    assert step.step_retry_answered(RetryAnswer.LAUNCHED, LOST).kind is StepActionKind.RESTART_WATCHES
    assert step.state is StepState.RUNNING


def test_the_trouble_that_hyperpod_looks_at_is_kept_until_it_launches_again() -> None:
    """srun may end meanwhile, and then this is why."""
    step = machine(has_step_retry=True)
    step.step_retry_looked(LOST, has_ended_the_step=True)
    step.step_retry_looked(NONE, has_ended_the_step=True)
    assert step.trouble == LOST
    step.step_retry_looked(NONE, has_ended_the_step=False)
    assert step.trouble == NONE
