from __future__ import annotations

from typing import List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.checkpoint.repository.policy import (
    Best,
    CheckpointFacts,
    EverySeconds,
    EverySteps,
    Latest,
    Pinned,
    Policy,
)
from hyperpod_kit.errors import UsageError


def facts(
    *steps: int, times: Optional[List[float]] = None, losses: Optional[List[Optional[float]]] = None, pinned: int = -1
) -> List[CheckpointFacts]:
    """Oldest first, returned newest first; named by their place."""
    known = losses or [None] * len(steps)
    metrics = [{} if loss is None else {"loss": loss} for loss in known]
    made = [
        CheckpointFacts(f"a{n}", (1, n, ""), step, times[n] if times else None, metrics[n], n == pinned)
        for n, step in enumerate(steps)
    ]
    return made[::-1]


def kept(rule: Policy, found: List[CheckpointFacts]) -> List[int]:
    return sorted(int(name[1:]) for name in rule.keeps(found))


def test_latest_is_by_age_and_not_by_step() -> None:
    assert kept(Latest(2), facts(100, 200, 110)) == [1, 2]
    assert kept(Latest(9), facts(1, 2)) == [0, 1]


def test_every_steps_takes_the_first_at_or_after_each_multiple() -> None:
    found = facts(300, 600, 900, 1200, 1500, 1800, 2100, 2400)
    assert kept(EverySteps(1000), found) == [3, 6]
    # What it kept, it keeps when more has come: nothing that was kept is let go.
    assert kept(EverySteps(1000), facts(300, 600, 900, 1200, 1500)) == [3]


def test_a_branch_that_was_left_is_no_part_of_the_line() -> None:
    found = facts(100, 200, 300, 110, 210)
    assert [fact.step for fact in policy.checkpoints_leading_to_newest(found)] == [210, 110, 100]
    assert kept(EverySteps(100), found) == [0, 4]


def test_every_seconds() -> None:
    found = facts(1, 2, 3, 4, times=[10.0, 50.0, 61.0, 130.0])
    assert kept(EverySeconds(60), found) == [0, 2, 3]
    assert kept(EverySeconds(60), facts(1, 2)) == []


def test_best_of_those_that_have_the_metric() -> None:
    found = facts(1, 2, 3, 4, 5, losses=[3.0, 1.0, None, 1.0, 2.0])
    assert kept(Best("loss"), found) == [3]  # of equal ones the newer
    assert kept(Best("loss", 2), found) == [1, 3]
    assert kept(Best("loss", 1, mode="max"), found) == [0]
    assert kept(Best("accuracy"), found) == []


def test_pinned_and_combinations() -> None:
    found = facts(1, 2, 3, 4, losses=[1.0, 4.0, 3.0, 2.0], pinned=1)
    assert kept(Pinned(), found) == [1]
    assert kept(Latest(1) | Best("loss") | Pinned(), found) == [0, 1, 3]
    assert kept(Latest(2) & Best("loss", 2), found) == [3]
    assert kept(Latest(1) & (Pinned() | Best("loss")), found) == []


RULES = st.recursive(
    st.one_of(
        st.builds(Latest, st.integers(1, 9)),
        st.builds(EverySteps, st.integers(1, 9)),
        st.builds(EverySeconds, st.floats(0.1, 1e6)),
        st.just(Pinned()),
        st.builds(Best, st.text(), st.integers(1, 5), st.sampled_from(["min", "max"])),
    ),
    lambda inner: st.one_of(st.builds(lambda a, b: a | b, inner, inner), st.builds(lambda a, b: a & b, inner, inner)),
    max_leaves=5,
)


@given(RULES)
def test_policies_are_data(rule: Policy) -> None:
    assert policy.from_json(rule.to_json()) == rule


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"latest": {"n": 0}},
        {"latest": {"n": -1}},
        {"latest": 3},
        {"latest": {"n": True}},
        {"latest": {"m": 1}},
        {"never": {}},
        {"any": []},
        {"any": {}},
        {"latest": {"n": 1}, "pinned": {}},
        {"best": {"metric": "x", "mode": "median"}},
        {"every_seconds": {"s": float("nan")}},
        {"latest": {"n": "3"}},
    ],
)
def test_what_is_no_policy_is_refused(body: object) -> None:
    with pytest.raises(UsageError):
        policy.from_json(body)
