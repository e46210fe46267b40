"""What follows an attempt: the table alone decides, without a process, a ledger or a clock."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import pytest

from hyperpod_kit.errors import GaveUp
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.base.exits import Exit
from hyperpod_kit.job.decide.budget import PoisonCheckpoint, SpentBudget
from hyperpod_kit.job.decide.decision import (
    RULES,
    AttemptFacts,
    DecisionKind,
    RunDecision,
    StartFacts,
    UnreadableCheckpoint,
    decide,
    refuse_requeue,
    refuse_start,
)
from hyperpod_kit.job.decide.outcome import Outcome
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.retry_policy import RetryPolicy
from hyperpod_kit.job.decide.run_end import RunEnd

POLICY = RetryPolicy(backoff=2.0, backoff_cap=60.0)
RANK_GAVE_UP = Exit(1, "n2", "", ExitCode.GAVE_UP, None, 0.0, 1.0)
NOTHING_VALID = GaveUp("NoValidCheckpoint: none of 3")
UNREADABLE = UnreadableCheckpoint("seq-000002", "Input/output error")


def facts(kind: OutcomeKind, code: int = 1, outcome: Any = None, **others: Any) -> AttemptFacts:
    others = {"policy": POLICY, "spent": SpentBudget(), "draw": lambda: 1.0, **others}
    return AttemptFacts(outcome=outcome or Outcome(kind, code), **others)


def ended(kind: OutcomeKind, words: str = "was cancelled") -> Outcome:
    return Outcome(kind, 143, end=RunEnd(kind, words))


TABLE: Tuple[Tuple[str, AttemptFacts, DecisionKind, str], ...] = (
    ("it finished", facts(OutcomeKind.DONE, 0), DecisionKind.EXIT, "0"),
    ("it finished as it was stopped", facts(OutcomeKind.DONE, 0, is_stop_requested=True), DecisionKind.EXIT, "0"),
    ("it was cancelled", facts(OutcomeKind.CANCELLED, 143), DecisionKind.EXIT, "143"),
    (
        "it was cancelled in a hang",
        facts(OutcomeKind.CANCELLED_IN_HANG, is_stop_requested=True),
        DecisionKind.EXIT,
        "85",
    ),
    (
        "it was cancelled in a hang, without auto-resume",
        facts(OutcomeKind.CANCELLED_IN_HANG, auto_resume=False),
        DecisionKind.EXIT,
        "143",
    ),
    (
        "it was cancelled in a hang once too often",
        facts(OutcomeKind.CANCELLED_IN_HANG, spent=SpentBudget(crashes=4)),
        DecisionKind.EXIT,
        "143",
    ),
    (
        "it was cancelled in a hang in the last run that it may have",
        facts(OutcomeKind.CANCELLED_IN_HANG, spent=SpentBudget(requeues=20)),
        DecisionKind.EXIT,
        "143",
    ),
    ("Slurm requeued it", facts(OutcomeKind.REQUEUED, 143), DecisionKind.EXIT, "143"),
    ("nobody knows why it ended", facts(OutcomeKind.UNKNOWN, 143), DecisionKind.EXIT, "143"),
    ("TERM came with a lost node", facts(OutcomeKind.NODE_LOST, 1, is_stop_requested=True), DecisionKind.EXIT, "143"),
    ("a crash without auto-resume", facts(OutcomeKind.CRASH, 9, auto_resume=False), DecisionKind.EXIT, "9"),
    ("again without auto-resume", facts(OutcomeKind.AGAIN, 0, auto_resume=False), DecisionKind.EXIT, "75"),
    ("it asks to run again", facts(OutcomeKind.AGAIN, 0), DecisionKind.REQUEUE, "saved and requested another run"),
    ("it was warned", facts(OutcomeKind.PREEMPTED, 138), DecisionKind.REQUEUE, "the warning by USR1"),
    ("nothing to restore", facts(OutcomeKind.CRASH, nothing_to_restore=NOTHING_VALID), DecisionKind.GIVE_UP, "of 3"),
    (
        "a rank gave up",
        facts(OutcomeKind.CRASH, outcome=Outcome(OutcomeKind.CRASH, 86, RANK_GAVE_UP)),
        DecisionKind.GIVE_UP,
        "gave up itself",
    ),
    (
        "a container never starts",
        facts(OutcomeKind.CRASH, container_failure=GaveUp("no rank has begun in the container")),
        DecisionKind.GIVE_UP,
        "in the container",
    ),
    ("the first launch failed", facts(OutcomeKind.LAUNCH_FAILED), DecisionKind.RETRY, "launching again in 0.0 s"),
    (
        "the second launch failed",
        facts(OutcomeKind.LAUNCH_FAILED, spent=SpentBudget(launches=2)),
        DecisionKind.RETRY,
        "launching again in 4.0 s",
    ),
    (
        "too many launches failed",
        facts(OutcomeKind.LAUNCH_FAILED, spent=SpentBudget(launches=3)),
        DecisionKind.GIVE_UP,
        "3 launches in a row",
    ),
    (
        "the command is on no node",
        facts(OutcomeKind.LAUNCH_FAILED, launch_is_hopeless="every node has the same problem"),
        DecisionKind.GIVE_UP,
        "every node has the same problem",
    ),
    ("storage is away", facts(OutcomeKind.STORAGE, storage_away_seconds=30.0), DecisionKind.RETRY, ""),
    (
        "storage stays away",
        facts(OutcomeKind.STORAGE, storage_away_seconds=600.0),
        DecisionKind.REQUEUE,
        "lost the checkpoint root for 600 s",
    ),
    (
        "one checkpoint cannot be read",
        facts(OutcomeKind.STORAGE, storage_away_seconds=600.0, unreadable=UNREADABLE),
        DecisionKind.RETRY,
        "",
    ),
    ("a node was lost", facts(OutcomeKind.NODE_LOST), DecisionKind.RETRY, ""),
    ("the first crash", facts(OutcomeKind.CRASH, spent=SpentBudget(crashes=1)), DecisionKind.RETRY, "at once"),
    ("the third crash", facts(OutcomeKind.CRASH, spent=SpentBudget(crashes=3)), DecisionKind.RETRY, "in 4.0 s"),
    ("a hang", facts(OutcomeKind.STALL, spent=SpentBudget(crashes=2)), DecisionKind.RETRY, "in 2.0 s"),
)


@pytest.mark.parametrize(("what", "known", "kind", "words"), TABLE, ids=[row[0] for row in TABLE])
def test_what_follows_an_attempt(what: str, known: AttemptFacts, kind: DecisionKind, words: str) -> None:
    decision = decide(known)
    assert decision.kind is kind, what
    if kind is DecisionKind.EXIT:
        assert decision.exit_code == int(words)
    elif kind is DecisionKind.GIVE_UP:
        assert decision.error is not None and words in decision.error.message
    else:
        assert words in decision.reason if words else decision.reason == ""


def test_every_class_and_every_rule_is_in_the_table() -> None:
    """A class or a rule that is added without a row here fails by its name."""
    assert {known.outcome.kind for _, known, _, _ in TABLE} == set(OutcomeKind)

    def first_rule(known: AttemptFacts) -> Callable[..., Any] | None:
        return next((rule for rule in RULES if rule(known) is not None), None)

    assert {first_rule(known) for _, known, _, _ in TABLE} - {None} == set(RULES)


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind.by_slurm])
def test_what_slurm_did_is_kept(kind: OutcomeKind) -> None:
    decision = decide(facts(kind, outcome=ended(kind, "was ended by Slurm at its time limit")))
    code = 85 if kind is OutcomeKind.CANCELLED_IN_HANG else 143
    assert (decision.exit_code, decision.stop_reason) == (code, "was ended by Slurm at its time limit")


def test_who_is_refused_another_run_after_a_cancel_is_told_why() -> None:
    outcome = ended(OutcomeKind.CANCELLED_IN_HANG)
    refused = decide(facts(OutcomeKind.CANCELLED_IN_HANG, outcome=outcome, spent=SpentBudget(crashes=4)))
    assert refused.stop_reason.startswith("was cancelled; 4 failures") and not refused.reason
    assert "--requeue-after-cancel" in decide(facts(OutcomeKind.CANCELLED_IN_HANG)).reason


def test_a_person_may_allow_a_start_from_step_0_where_nothing_is_valid() -> None:
    known = facts(
        OutcomeKind.CRASH, spent=SpentBudget(crashes=1), nothing_to_restore=NOTHING_VALID, may_begin_anew=True
    )
    decision = decide(known)
    assert (decision.kind, decision.begins_anew_after) == (DecisionKind.RETRY, NOTHING_VALID)
    gave_up = decide(known._replace(outcome=Outcome(OutcomeKind.CRASH, 86, RANK_GAVE_UP)))
    assert (gave_up.kind, gave_up.begins_anew_after) == (DecisionKind.GIVE_UP, None), (
        "nothing is left for a job that ends"
    )


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind.is_handed_back])
def test_a_job_that_is_handed_back_is_recorded_as_what_ended_its_run(kind: OutcomeKind) -> None:
    assert decide(facts(kind)).requeued_as is kind


def test_a_job_without_storage_is_recorded_as_one_whose_nodes_were_lost() -> None:
    decision = decide(facts(OutcomeKind.STORAGE, storage_away_seconds=601.0, storage_wait=600.0))
    assert (decision.kind, decision.requeued_as) == (DecisionKind.REQUEUE, OutcomeKind.NODE_LOST)


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 1.0), (10.0, 5.0), (300.0, 20.0)])
def test_storage_is_asked_again_after_pauses_that_grow(seconds: float, pause: float) -> None:
    assert decide(facts(OutcomeKind.STORAGE, storage_away_seconds=seconds)).pause == pause


def test_an_unreadable_checkpoint_is_passed_over_only_when_waiting_has_not_helped() -> None:
    early = decide(facts(OutcomeKind.STORAGE, storage_away_seconds=599.0, unreadable=UNREADABLE))
    late = decide(facts(OutcomeKind.STORAGE, storage_away_seconds=600.0, unreadable=UNREADABLE))
    assert early.passes_over is None and late == RunDecision(DecisionKind.RETRY, passes_over=UNREADABLE)


POISON = PoisonCheckpoint("seq-000003", "rank 1 exited 9, twice after loading it")

STARTS: Tuple[Tuple[str, StartFacts, str], ...] = (
    ("nothing is spent", StartFacts(POLICY, SpentBudget(), "none"), ""),
    ("as many crashes as may be", StartFacts(POLICY, SpentBudget(crashes=3), "seq-000001"), ""),
    ("one crash too many", StartFacts(POLICY, SpentBudget(crashes=4), "seq-000001"), "--max-restarts 3"),
    (
        "handed back without progress",
        StartFacts(POLICY, SpentBudget(handed_back=2), "seq-000001"),
        "requested another run 2",
    ),
    ("quick failures in a row", StartFacts(POLICY, SpentBudget(quick=21), "seq-000001"), "21 failures in a row"),
    ("too many requeues", StartFacts(POLICY, SpentBudget(requeues=21), "seq-000001"), "requeued 21 times"),
    ("a step back from poison", StartFacts(POLICY, SpentBudget(), "seq-000002", POISON, True), ""),
    (
        "the one before it ends in the same way",
        StartFacts(POLICY, SpentBudget(), "seq-000002", POISON._replace(is_repeated=True), True),
        "seq-000002, the checkpoint before it, fails in the same way",
    ),
    (
        "there is none before it",
        StartFacts(POLICY, SpentBudget(), "seq-000003", POISON._replace(is_repeated=True), False),
        "",
    ),
)


@pytest.mark.parametrize(("what", "known", "words"), STARTS, ids=[row[0] for row in STARTS])
def test_whether_an_attempt_is_started(what: str, known: StartFacts, words: str) -> None:
    refusal = refuse_start(known)
    assert words in str(refusal) if words else refusal is None, what


@pytest.mark.parametrize(
    ("spent", "words"),
    [
        (SpentBudget(requeues=19), ""),
        (SpentBudget(requeues=20), "requeued 21 times"),
        (SpentBudget(requeues=1, crashes=99, handed_back=9), ""),
        (SpentBudget(quick=21), "21 failures in a row"),
    ],
)
def test_whether_the_job_is_requeued(spent: SpentBudget, words: str) -> None:
    refusal = refuse_requeue(POLICY, spent)
    assert words in str(refusal) if words else refusal is None
