"""Decide what follows an attempt. Pure: facts in, a decision out; `RULES` is the table, in order.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import enum
import random
from typing import Callable, NamedTuple, Optional, Tuple

from hyperpod_kit.errors import GaveUp
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.decide.budget import PoisonCheckpoint, SpentBudget, exhausted, retry_delay
from hyperpod_kit.job.decide.outcome import Outcome
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.retry_policy import RetryPolicy

STORAGE_PAUSE_MIN, STORAGE_PAUSE_MAX = 1.0, 20.0
"""Seconds between two attempts while the checkpoint root does not answer."""


class UnreadableCheckpoint(NamedTuple):
    """A checkpoint that storage lists, and that ranks of several runs could not read."""

    name: str
    reason: str


class DecisionKind(enum.Enum):
    """What this run of the batch script does next."""

    RETRY = "retry"
    REQUEUE = "requeue"
    EXIT = "exit"
    GIVE_UP = "give up"


class RunDecision(NamedTuple):
    """What follows an attempt.

    Attributes:
        kind: The kind of it.
        reason: Why the job goes back into the queue, or what a retry or an exit reports; "" for nothing to report.
        exit_code: Of this run, for EXIT.
        stop_reason: For EXIT: what Slurm did, to be kept in the ledger; "" for nothing.
        requeued_as: For REQUEUE: the class that the ledger keeps for this run.
        error: For GIVE_UP, and only for it: what the run ends with.
        pause: Seconds before the next attempt, for RETRY.
        failures: How many of this kind came in a row, for the report of a RETRY.
        begins_anew_after: The error after which the job leaves what was committed and starts at step 0.
        passes_over: The checkpoint that the next choice passes over.
    """

    kind: DecisionKind
    reason: str = ""
    exit_code: int = 0
    stop_reason: str = ""
    requeued_as: OutcomeKind = OutcomeKind.NODE_LOST
    error: Optional[GaveUp] = None
    pause: float = 0.0
    failures: int = 0
    begins_anew_after: Optional[GaveUp] = None
    passes_over: Optional[UnreadableCheckpoint] = None


class AttemptFacts(NamedTuple):
    """The facts that decide what follows: the outcome, the budget, and what else is known of the attempt.

    Attributes:
        outcome: Of the attempt that has ended.
        policy: The budgets.
        spent: What of them is spent, with the row of this attempt.
        auto_resume: Whether the user has asked for the job to be continued.
        is_stop_requested: Whether a signal has ended this run.
        nothing_to_restore: The error of ranks that found nothing which can be trusted or checked.
        may_begin_anew: Whether the user allows a start from step 0 in that case, and it is the first one.
        container_failure: The error of a container in which no rank ever begins.
        launch_is_hopeless: Why another launch fails as well; "" where it may not.
        launch_advice: What the user can type about launches that fail.
        storage_away_seconds: For how long attempts have ended without storage.
        storage_wait: Seconds for which that is waited for.
        unreadable: The one checkpoint that cannot be read, where it is not the whole root.
        draw: Returns a number from 0 to 1, for the random part of a pause.
    """

    outcome: Outcome
    policy: RetryPolicy
    spent: SpentBudget
    auto_resume: bool = True
    is_stop_requested: bool = False
    nothing_to_restore: Optional[GaveUp] = None
    may_begin_anew: bool = False
    container_failure: Optional[GaveUp] = None
    launch_is_hopeless: str = ""
    launch_advice: str = ""
    storage_away_seconds: float = 0.0
    storage_wait: float = 600.0
    unreadable: Optional[UnreadableCheckpoint] = None
    draw: Callable[[], float] = random.random


def decide(facts: AttemptFacts) -> RunDecision:
    """Return the decision of the first rule that makes one, otherwise another attempt at once."""
    decision = _first_decision(facts)
    has_to_begin_anew = facts.nothing_to_restore is not None and facts.may_begin_anew
    if has_to_begin_anew and decision.kind is DecisionKind.RETRY:
        return decision._replace(begins_anew_after=facts.nothing_to_restore)
    return decision


def _first_decision(facts: AttemptFacts) -> RunDecision:
    for rule in RULES:
        decision = rule(facts)
        if decision is not None:
            return decision
    return RunDecision(DecisionKind.RETRY)


def _give_up(reason: str, hint: Optional[str] = None) -> RunDecision:
    return RunDecision(DecisionKind.GIVE_UP, error=GaveUp(reason, hint=hint))


def exit_when_done(facts: AttemptFacts) -> Optional[RunDecision]:
    """End the run of a job that has finished."""
    if facts.outcome.kind is OutcomeKind.DONE:
        return RunDecision(DecisionKind.EXIT)
    return None


def ask_to_be_requeued_after_a_cancel_in_a_hang(facts: AttemptFacts) -> Optional[RunDecision]:
    """End the run with the code by which `job sweep` queues the job again, where the right user has cancelled it.

    A hang that somebody else has found counts as one that `--stall` finds: it spends the budget of the checkpoint.
    """
    if facts.outcome.kind is not OutcomeKind.CANCELLED_IN_HANG or not facts.auto_resume:
        return None
    refusal = exhausted(facts.policy, facts.spent) or refuse_requeue(facts.policy, facts.spent)
    if refusal:
        stop_reason = f"{_explain_stop(facts)}; {refusal}"
        return RunDecision(DecisionKind.EXIT, exit_code=ExitCode.TERMINATED, stop_reason=stop_reason)
    reason = "requests to be requeued: `job sweep` does so if the user of --requeue-after-cancel cancelled it"
    return RunDecision(DecisionKind.EXIT, reason, ExitCode.CANCELLED_IN_HANG, stop_reason=_explain_stop(facts))


def exit_when_ended_by_slurm(facts: AttemptFacts) -> Optional[RunDecision]:
    """End a run that Slurm or a person has ended; no rule but the one above has a cancelled job requeued."""
    if not facts.is_stop_requested and not facts.outcome.kind.by_slurm:
        return None
    return RunDecision(DecisionKind.EXIT, exit_code=ExitCode.TERMINATED, stop_reason=_explain_stop(facts))


def _explain_stop(facts: AttemptFacts) -> str:
    """Return why Slurm has ended the run, "" where it does not say."""
    if facts.outcome.end is None:
        return ""
    return facts.outcome.end.explanation


def exit_without_auto_resume(facts: AttemptFacts) -> Optional[RunDecision]:
    """End the run after one attempt where the user did not ask for more."""
    if facts.auto_resume:
        return None
    if facts.outcome.kind is OutcomeKind.AGAIN:
        return RunDecision(DecisionKind.EXIT, exit_code=ExitCode.AGAIN)
    return RunDecision(DecisionKind.EXIT, exit_code=facts.outcome.code)


def requeue_when_handed_back(facts: AttemptFacts) -> Optional[RunDecision]:
    """Put the job back into the queue after a warning, or when its ranks have asked for that."""
    if facts.outcome.kind.is_handed_back:
        return RunDecision(DecisionKind.REQUEUE, facts.outcome.sentence(), requeued_as=facts.outcome.kind)
    return None


def give_up_with_nothing_to_restore(facts: AttemptFacts) -> Optional[RunDecision]:
    """Give up when ranks found nothing to restore, since another start would find the same.

    A person may allow a start from step 0 instead.
    """
    if facts.nothing_to_restore is None or facts.may_begin_anew:
        return None
    return RunDecision(DecisionKind.GIVE_UP, error=facts.nothing_to_restore)


def give_up_when_a_rank_did(facts: AttemptFacts) -> Optional[RunDecision]:
    """Give up when a rank has ended with our own exit code for that."""
    first = facts.outcome.first
    if first is None or first.code != ExitCode.GAVE_UP:
        return None
    return _give_up(f"rank {first.rank} on {first.node} exited {ExitCode.GAVE_UP}: the program gave up itself")


def give_up_when_the_container_never_starts(facts: AttemptFacts) -> Optional[RunDecision]:
    """Give up when the container does not start: what is wrong with an image or its options stays wrong."""
    if facts.container_failure is None:
        return None
    return RunDecision(DecisionKind.GIVE_UP, error=facts.container_failure)


def launch_again_or_give_up(facts: AttemptFacts) -> Optional[RunDecision]:
    """Launch again after a failed launch, within its budget: another may succeed, on other nodes or later.

    No checkpoint is to blame.
    """
    if facts.outcome.kind is not OutcomeKind.LAUNCH_FAILED:
        return None
    refusal = exhausted(facts.policy, facts.spent) or facts.launch_is_hopeless
    if refusal:
        return _give_up(f"{facts.outcome.sentence()}; {refusal}", facts.launch_advice)
    pause = retry_delay(facts.policy, facts.spent.launches + 1, facts.draw)
    reason = f"launching again in {pause:.1f} s"
    return RunDecision(DecisionKind.RETRY, reason, pause=pause, failures=facts.spent.launches)


def wait_for_storage_or_requeue(facts: AttemptFacts) -> Optional[RunDecision]:
    """Wait while storage is away, then pass over an unreadable checkpoint or give the nodes back.

    Nothing is wrong with the job, so this costs no budget.
    """
    if facts.outcome.kind is not OutcomeKind.STORAGE:
        return None
    seconds = facts.storage_away_seconds
    if seconds < facts.storage_wait:
        pause = max(STORAGE_PAUSE_MIN, min(STORAGE_PAUSE_MAX, seconds / 2))
        return RunDecision(DecisionKind.RETRY, pause=pause)
    if facts.unreadable is not None:
        return RunDecision(DecisionKind.RETRY, passes_over=facts.unreadable)
    return RunDecision(DecisionKind.REQUEUE, f"{facts.outcome.sentence()} for {seconds:.0f} s")


def back_off_after_a_failure(facts: AttemptFacts) -> Optional[RunDecision]:
    """Try again at once after the first failure, then after pauses that grow.

    Whether the budget allows the attempt is decided when its checkpoint is chosen.
    """
    if not facts.outcome.kind.costs_budget:
        return None
    pause = retry_delay(facts.policy, facts.spent.crashes, facts.draw)
    when = f"in {pause:.1f} s" if pause else "at once"
    return RunDecision(DecisionKind.RETRY, f"trying again {when}", pause=pause, failures=facts.spent.crashes)


RULES: Tuple[Callable[[AttemptFacts], Optional[RunDecision]], ...] = (
    exit_when_done,
    ask_to_be_requeued_after_a_cancel_in_a_hang,
    exit_when_ended_by_slurm,
    exit_without_auto_resume,
    requeue_when_handed_back,
    give_up_with_nothing_to_restore,
    give_up_when_a_rank_did,
    give_up_when_the_container_never_starts,
    launch_again_or_give_up,
    wait_for_storage_or_requeue,
    back_off_after_a_failure,
)


class StartFacts(NamedTuple):
    """The facts that decide whether an attempt may be started from the checkpoint that was chosen.

    Attributes:
        policy: The budgets.
        spent: What of them is spent, seen from that checkpoint.
        source: Its checkpoint id, or `none`.
        poison: The checkpoint that is stepped back from.
        has_stepped_back: Whether a newer valid one was passed over.
    """

    policy: RetryPolicy
    spent: SpentBudget
    source: str
    poison: Optional[PoisonCheckpoint] = None
    has_stepped_back: bool = False


def refuse_start(facts: StartFacts) -> Optional[str]:
    """Return why the next attempt must not be made, or None."""
    refusal = exhausted(facts.policy, facts.spent)
    if refusal is not None:
        return refusal
    poison = facts.poison
    if poison is not None and poison.is_repeated and facts.has_stepped_back:
        return f"{poison.name}: {poison.reason}; {facts.source}, the checkpoint before it, fails in the same way"
    return None


def refuse_requeue(policy: RetryPolicy, spent: SpentBudget) -> Optional[str]:
    """Return why the job must not be requeued once more, or None: only the number of runs counts."""
    return exhausted(policy, spent._replace(crashes=0, handed_back=0, requeues=spent.requeues + 1))
