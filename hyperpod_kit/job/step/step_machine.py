"""Decide what to do about a step that runs, as a state machine without clock, network or process.

    state     event                               next       action
    RUNNING   USR1 has come                       SAVING     SEND_SAVE_SIGNAL, and the step gets `save_grace`
    SAVING    `save_grace` is over                ENDED      END
    any       TERM or INT has come                ENDED      END, sooner where nothing moves
    any       a trouble, without HyperPod         ENDED      END
    any       a trouble, with HyperPod's retry    same       ASK_STEP_RETRY, unless the ranks were launched again
    any       HyperPod answers END                ENDED      END
    any       HyperPod answers LAUNCHED           same       RESTART_WATCHES
    any       the ranks were launched again       same       RESTART_WATCHES
    any       nothing                             same       WAIT

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import enum
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.job.step.step_retry import RetryAnswer

STOP_GRACE, SAVE_GRACE, LOST_GRACE, STALL_GRACE = 20.0, 10.0, 3.0, 10.0
"""Seconds between TERM and KILL: for a cancelled step, one that has had its time to save, one whose node is gone, and
one that does not move."""

KILL_PATIENCE, LOST_KILL_PATIENCE = 5.0, 1.0
"""Seconds after KILL in which srun may end by itself: it waits for a dead node much longer."""


class StepTrouble(NamedTuple):
    """What is wrong with a step that runs; `reason` is "" for nothing.

    Attributes:
        reason: A sentence for people.
        lost: Nodes that do not answer.
        stalled: Whether nothing moves.
        cut: Nodes whose part of the step is gone without Slurm's notice.
        nodes_without_root: Nodes on which the checkpoint root does not answer although it does here.
    """

    reason: str = ""
    lost: Tuple[str, ...] = ()
    stalled: bool = False
    cut: Tuple[str, ...] = ()
    nodes_without_root: Tuple[str, ...] = ()

    @property
    def nodes(self) -> Tuple[str, ...]:
        """The nodes that have the trouble; none where the whole step has it."""
        return self.lost or self.cut or self.nodes_without_root

    def fields(self) -> Dict[str, object]:
        """Return the trouble's fields in the report of the run."""
        if self.cut:
            return {"cut": list(self.cut)}
        if self.nodes_without_root:
            return {"away": list(self.nodes_without_root)}
        return {"lost": list(self.lost), "stalled": self.stalled}


def strongest_trouble(
    lost: Sequence[str] = (), hang: str = "", cut: Sequence[str] = (), nodes_without_root: Sequence[str] = ()
) -> StepTrouble:
    """Return the trouble that explains the others. `hang`: why the step counts as hung; "" while it does not."""
    if lost:
        return StepTrouble(f"{', '.join(lost)} does not answer", lost=tuple(lost))
    if hang:
        return StepTrouble(hang, stalled=True)
    if cut:
        return StepTrouble(f"the step has ended on {', '.join(cut)}, and Slurm has not noticed", cut=tuple(cut))
    if nodes_without_root:
        return StepTrouble(
            f"the checkpoint root responds on the batch host but not on {', '.join(nodes_without_root)}",
            nodes_without_root=tuple(nodes_without_root),
        )
    return StepTrouble()


class StepState(enum.Enum):
    """Where a step is, as far as its supervision goes."""

    RUNNING = "running"
    SAVING = "saving"
    ENDED = "ended"


class StepActionKind(enum.Enum):
    """What is to be done about a step now."""

    WAIT = "wait"
    SEND_SAVE_SIGNAL = "send the save signal"
    ASK_STEP_RETRY = "ask HyperPod's step retry"
    RESTART_WATCHES = "restart the watches"
    END = "end"


class StepAction(NamedTuple):
    """What to do about a step. For END: `grace` seconds from TERM to KILL, then `patience`, and the trouble that led to
    it."""

    kind: StepActionKind
    grace: float = 0.0
    patience: float = KILL_PATIENCE
    trouble: StepTrouble = StepTrouble()


_WAIT = StepAction(StepActionKind.WAIT)


class StepMachine:
    """Turns the signals and troubles of a step into actions.

    Attributes:
        state: Where the step is.
        trouble: The one for which the step was ended, by us or by HyperPod at our request.
    """

    def __init__(self, *, save_grace: float, has_step_retry: bool) -> None:
        self.state = StepState.RUNNING
        self.trouble = StepTrouble()
        self._save_grace = save_grace
        self._has_step_retry = has_step_retry
        self._save_until: Optional[float] = None

    def seconds_to_save(self, now: float) -> Optional[float]:
        """Return the seconds that are left to save; None while there is no limit."""
        if self._save_until is None:
            return None
        return self._save_until - now

    def heed_signals(self, now: float, *, is_stopped: bool, is_warned: bool, looks_hung: bool = False) -> StepAction:
        """Return the action that the signals of the batch script call for. `now`: monotonic seconds; `looks_hung`:
        nothing moves, and what follows the end has to be said before Slurm kills this run (KillWait)."""
        if is_stopped and looks_hung:
            return self._end(STALL_GRACE)
        if is_stopped:
            return self._end(STOP_GRACE)
        if is_warned and self.state is StepState.RUNNING:
            self.state, self._save_until = StepState.SAVING, now + self._save_grace
            return StepAction(StepActionKind.SEND_SAVE_SIGNAL)
        if self._save_until is not None and now >= self._save_until:
            return self._end(SAVE_GRACE)
        return _WAIT

    def judge(self, trouble: StepTrouble, *, is_launched_again: bool) -> StepAction:
        """Return the action that a look at the step calls for. `is_launched_again`: HyperPod has started its ranks once
        more."""
        if trouble.reason and not self._has_step_retry:
            return self._end_for(trouble)
        if is_launched_again:
            return StepAction(StepActionKind.RESTART_WATCHES)
        if trouble.reason:
            return StepAction(StepActionKind.ASK_STEP_RETRY, trouble=trouble)
        return _WAIT

    def step_retry_answered(self, retry_answer: RetryAnswer, trouble: StepTrouble) -> StepAction:
        """Return the action that follows HyperPod's answer about a trouble."""
        if retry_answer is RetryAnswer.END:
            return self._end_for(trouble)
        if retry_answer is RetryAnswer.LAUNCHED:
            return StepAction(StepActionKind.RESTART_WATCHES)
        return _WAIT

    def step_retry_looked(self, trouble: StepTrouble, *, has_ended_the_step: bool) -> None:
        """Keep the trouble for which HyperPod was made to look, until the ranks are launched again."""
        if not has_ended_the_step:
            self.trouble = StepTrouble()
        elif trouble.reason:
            self.trouble = trouble

    def _end(self, grace: float) -> StepAction:
        self.state = StepState.ENDED
        return StepAction(StepActionKind.END, grace)

    def _end_for(self, trouble: StepTrouble) -> StepAction:
        self.state, self.trouble = StepState.ENDED, trouble
        if trouble.stalled:
            return StepAction(StepActionKind.END, STALL_GRACE, KILL_PATIENCE, trouble)
        return StepAction(StepActionKind.END, LOST_GRACE, LOST_KILL_PATIENCE, trouble)
