"""The choice, as a pure function."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.errors import UsageError
from hyperpod_kit.storage.tier.rules import DAY, Pool, TierItem, TierRule, choose_checkpoints_to_remove

NOW = 1_800_000_000.0


def items(*ages: float, size: int = 10) -> list[TierItem]:
    return [TierItem("/r", f"a{number}", NOW - age * DAY, size, "p") for number, age in enumerate(ages)]


def names(rule: TierRule, found: list[TierItem], used: int = 0, total: int = 100) -> list[str]:
    return [one.attempt for one in choose_checkpoints_to_remove(found, [Pool("p", used, total)], rule, NOW).go]


def test_the_oldest_go_first_and_it_stops_at_until() -> None:
    rule = TierRule(above=0.8, until=0.7)
    assert names(rule, items(1, 5, 3, 4), used=85) == ["a1", "a3"]
    assert names(rule, items(1, 5, 3, 4), used=81) == ["a1", "a3"]
    assert names(rule, items(1, 5, 3, 4), used=80) == []
    assert TierRule(above=0.8).target_share == pytest.approx(0.7)


def test_three_days_are_three_days() -> None:
    rule = TierRule(older_than=3 * DAY)
    assert names(rule, items(2.99, 3.01, 3.0)) == ["a1"]
    unknown = [TierItem("/r", "x", None, 1, "p")]
    assert names(rule, unknown) == [] and names(TierRule(above=0.0, until=0.0), unknown, used=1) == ["x"]


def test_what_cannot_be_reached_is_said() -> None:
    found = choose_checkpoints_to_remove(items(1, 2), [Pool("p", 99, 100)], TierRule(above=0.8, until=0.7), NOW)
    assert len(found.go) == 2 and found.short == {"p": 9}


@given(
    st.lists(st.tuples(st.floats(0, 90), st.integers(0, 50)), max_size=12),
    st.integers(0, 100),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_no_more_goes_than_the_rule_needs(found: list[tuple[float, int]], used: int, one: float, two: float) -> None:
    above = max(one, two)
    rule = TierRule(above=above, until=min(one, two))
    every = [TierItem("/r", str(number), NOW - age * DAY, size, "p") for number, (age, size) in enumerate(found)]
    made = choose_checkpoints_to_remove(every, [Pool("p", used, 100)], rule, NOW)
    freed = [item.size for item in made.go]
    if used <= above * 100:
        assert not made.go
    if made.go:
        assert used - sum(freed[:-1]) > rule.target_share * 100
    if used - sum(freed) > rule.target_share * 100 and used > above * 100:
        assert len(made.go) == len(every)


@pytest.mark.parametrize("how", [{}, {"above": 0.5, "until": 0.6}, {"above": 1.2, "until": 0.1}, {"above": -0.1}])
def test_rules_that_mean_nothing(how: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        TierRule(**how)  # type: ignore[arg-type]
