"""Budgets, from rows of the ledger alone."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.job.decide.budget import (
    SpentBudget,
    apply_restore_reports,
    count_spent_budget,
    exhausted,
    find_poison_checkpoint,
    retry_delay,
)
from hyperpod_kit.job.decide.retry_policy import RetryPolicy

A, B = (1, 1), (2, 2)


def rows(*words: Any) -> list[dict[str, Any]]:
    """A tuple starts an attempt from that checkpoint, a word ends it."""
    made: list[dict[str, Any]] = []
    for word in words:
        if isinstance(word, str):
            made.append({"event": "gave_up", "restart": 4} if word == "gave_up" else {"event": "ended", "class": word})
        else:
            made.append({"event": "attempt", "order": list(word) if word else None})
    return made


@pytest.mark.parametrize(
    ("history", "chosen", "crashes"),
    [
        ([], None, 0),
        ([None, "crash", None, "crash"], None, 2),
        ([None, "crash", None, "crash"], A, 0),
        ([A, "crash", A, "stall"], A, 2),
        ([A, "crash", A, "crash"], B, 0),
        ([B, "crash", A, "crash"], A, 2),  # the newest was found corrupt: an older choice is no progress
        ([B, "crash", A, "crash"], B, 2),
        ([A, "crash", "gave_up"], A, 0),
        ([A, "node_lost", A, "cancelled"], A, 0),
        ([A, "cancelled_in_hang", A, "stall"], A, 2),
    ],
)
def test_crashes_count_per_checkpoint(history: list[Any], chosen: Any, crashes: int) -> None:
    assert count_spent_budget(rows(*history), chosen, 0).crashes == crashes


def test_handing_back_counts_only_without_progress() -> None:
    assert count_spent_budget(rows(A, "preempted", A, "again"), A, 2).handed_back == 2
    assert count_spent_budget(rows(A, "preempted", A, "again"), B, 2).handed_back == 0


def test_requeues_count_from_the_last_release() -> None:
    assert count_spent_budget([], None, 3).requeues == 3
    assert count_spent_budget(rows(A, "crash", "gave_up"), A, 7).requeues == 2


@pytest.mark.parametrize(
    ("used", "word"),
    [
        (SpentBudget(crashes=3), None),
        (SpentBudget(crashes=4), "4 failures"),
        (SpentBudget(handed_back=1), None),
        (SpentBudget(handed_back=2), "requested another run"),
        (SpentBudget(requeues=20), None),
        (SpentBudget(requeues=21), "requeued 21"),
    ],
)
def test_what_is_exhausted(used: SpentBudget, word: Any) -> None:
    why = exhausted(RetryPolicy(), used)
    assert why is None if word is None else word in str(why)


@given(st.integers(2, 10_000), st.floats(0, 1))
def test_the_delay_grows_and_stays_below_its_cap(crashes: int, draw: float) -> None:
    policy = RetryPolicy()
    seconds = retry_delay(policy, crashes, lambda: draw)
    assert 0 < seconds <= policy.backoff_cap
    assert seconds <= retry_delay(policy, crashes + 1, lambda: 1.0)
    assert retry_delay(policy, 0) == retry_delay(policy, 1) == 0


@given(st.lists(st.sampled_from([None, A, B, "crash", "stall", "node_lost", "preempted"]), max_size=40))
def test_a_loop_that_never_saves_always_ends(history: list[Any]) -> None:
    """Whatever came before: enough crashes from the same checkpoint exhaust the budget."""
    again = rows(*history, *[B, "crash"] * 4)
    assert exhausted(RetryPolicy(), count_spent_budget(again, B, 0))


@given(st.data())
def test_a_failed_launch_changes_nothing_of_what_is_blamed_or_counted(data: st.DataObject) -> None:
    """Wherever it lies among the attempts of a job, and whatever checkpoint it was told of."""
    ends = st.sampled_from(["crash", "stall", "node_lost", "preempted", "again", "launch_failed"])
    attempts = data.draw(st.lists(st.tuples(st.sampled_from([None, A, B]), ends), max_size=20))
    made: list[dict[str, Any]] = []
    for number, (order, end) in enumerate(attempts):
        named = {"attempt": f"7.0.{number}"}
        made += [
            {**named, "event": "attempt", "from": f"at{order}", "order": list(order) if order else None},
            {**named, "event": "ended", "class": end, "first": {"rank": 1, "code": 127}, "seconds": 1.0},
        ]
    failed = {row["attempt"] for row in made if row.get("class") == "launch_failed"}
    without = [row for row in made if row["attempt"] not in failed]
    assert find_poison_checkpoint(made) == find_poison_checkpoint(without)
    for chosen in (None, A, B):
        used, rest = count_spent_budget(made, chosen, 0), count_spent_budget(without, chosen, 0)
        assert used._replace(launches=0) == rest
        last = [end for _, end in attempts]
        in_a_row = next((at for at, end in enumerate(reversed(last)) if end != "launch_failed"), len(last))
        assert used.launches == in_a_row
        policy = RetryPolicy(max_restarts=100, max_quick=100)
        assert bool(exhausted(policy, used._replace(handed_back=0))) == (in_a_row > policy.max_launches)


def test_launches_have_a_budget_of_their_own_and_a_release_renews_it() -> None:
    made = rows(*[A, "launch_failed"] * 3)
    assert count_spent_budget(made, A, 0).launches == 3
    assert exhausted(RetryPolicy(), count_spent_budget(made, A, 0)) == "3 launches in a row failed before a rank began"
    assert exhausted(RetryPolicy(max_restarts=0), SpentBudget(launches=1)), "no retry is no retry"
    assert count_spent_budget([*made, {"event": "gave_up", "restart": 0}], A, 0).launches == 0


def history(*ends: Any) -> list[dict[str, Any]]:
    """Each end is (order it started from, rank, code) of a crash, or a class without a rank; or `gave_up`."""
    made: list[dict[str, Any]] = []
    for end in ends:
        if end == "gave_up":
            made.append({"event": "gave_up", "restart": 0})
            continue
        order, *how = end
        first = {"rank": how[0], "code": how[1], "signal": None} if len(how) == 2 else None
        made += [
            {"event": "attempt", "from": f"at{order}", "order": list(order) if order else None},
            {"event": "ended", "class": "crash" if first else how[0], "first": first},
        ]
    return made


@pytest.mark.parametrize(
    ("ends", "name", "again"),
    [
        ([], None, False),
        ([(A, 1, 9)], None, False),
        ([(A, 1, 9), (A, 1, 9)], A, False),
        ([(A, 1, 9), (A, 2, 9)], None, False),  # another rank: may be chance
        ([(A, 1, 9), (A, 2, 9), (A, 1, 9)], A, False),
        ([(A, "stall"), (A, "stall")], A, False),
        ([(A, "node_lost"), (A, "node_lost"), (A, "node_lost")], None, False),
        ([(A, 1, 9), (B, 1, 9)], None, False),  # it moved on
        ([(None, 1, 9), (None, 1, 9)], None, False),  # there is nothing before step 0
        ([(B, 1, 9), (B, 1, 9), (A, 1, 9)], B, False),
        ([(B, 1, 9), (B, 1, 9), (A, 1, 9), (A, 1, 9)], B, True),
        ([(A, 1, 9), (A, 1, 9), (B, 1, 9)], None, False),  # stepping back has helped
        ([(A, 1, 9), (A, 1, 9), "gave_up"], None, False),
    ],
)
def test_what_is_held_against_a_checkpoint(ends: list[Any], name: Any, again: bool) -> None:
    found = find_poison_checkpoint(history(*ends))
    assert (found.name if found else None) == (f"at{name}" if name else None)
    assert (found.is_repeated if found else False) is again


def test_a_job_that_saves_and_fails_at_once_is_given_up() -> None:
    """Each attempt brings a newer checkpoint, so that no budget of a checkpoint is ever used up."""
    made: List[Dict[str, Any]] = []
    for number in range(1, 30):
        made += [
            {"event": "attempt", "from": f"at{number}", "order": [number, number]},
            {"event": "ended", "class": "crash", "seconds": 30.0},
        ]
    why = exhausted(RetryPolicy(), count_spent_budget(made, (99, 99), 0))
    assert why is not None and why.startswith("29 failures in a row, each within 10 minutes")
    made[-11]["seconds"] = 700.0
    assert exhausted(RetryPolicy(), count_spent_budget(made, (99, 99), 0)) is None


def restored(name: str, order: Any, attempt: str = "7.0.0") -> dict[str, Any]:
    return {"event": "restored", "attempt": attempt, "from": name, "order": list(order) if order else None, "step": 1}


def began(name: str, order: Any, attempt: str = "7.0.0") -> dict[str, Any]:
    return {"event": "attempt", "attempt": attempt, "from": name, "order": list(order)}


CRASH = {"event": "ended", "class": "crash", "first": {"rank": 1, "code": 3}}


def test_what_was_restored_counts_and_not_what_was_chosen() -> None:
    """Every attempt commits a newer one that is damaged, and goes back to A: that is no progress."""
    history = []
    for number in range(3):
        history += [began(f"new{number}", (2 + number, 1), f"7.0.{number}"), restored("a", A, f"7.0.{number}"), CRASH]
    assert count_spent_budget(history, None, 0).crashes == 3
    blamed = find_poison_checkpoint(history)
    assert blamed is not None and blamed.name == "a"


def test_a_launch_that_hyperpod_made_anew_is_a_start_of_its_own() -> None:
    history = [began("a", A), restored("a", A), restored("b", B), CRASH]
    assert [row["from"] for row in apply_restore_reports(history) if row["event"] == "attempt"] == ["a", "b"]
    assert (
        count_spent_budget(history, None, 0).crashes == 1
        and count_spent_budget([*history[:2], CRASH, *history[2:]], None, 0).crashes == 1
    )


def test_a_restore_that_failed_changes_nothing_of_the_choice() -> None:
    failed = {**restored("a", A), "from": None, "error": "StorageUnreadable"}
    assert [
        row["from"] for row in apply_restore_reports([began("a", A), failed, CRASH]) if row["event"] == "attempt"
    ] == ["a"]
