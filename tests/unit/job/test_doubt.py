"""Many nodes that fall silent at once are asked of slurmctld before anything is ended."""

from __future__ import annotations

from typing import List, Optional, Sequence, Set
from unittest import mock

import pytest

from hyperpod_kit.errors import RunError
from hyperpod_kit.job.step.step_supervision import FEW, PATIENCE, Doubt, make_query_of_down_nodes
from hyperpod_kit.run import Completed
from tests.support.clock import FakeClock

FLEET = [f"n{number:02d}" for number in range(40)]


class Asked(FakeClock):
    """A clock, and a slurmctld that says what it is told to."""

    def __init__(self, answer: Optional[Set[str]]) -> None:
        super().__init__()
        self.answer = answer
        self.asked = 0
        self.doubt = Doubt(len(FLEET), self._ask, clock=self)

    def _ask(self, names: Sequence[str]) -> Optional[Set[str]]:
        self.asked += 1
        return self.answer

    def lost_within(self, seconds: float, silent: Sequence[str]) -> List[str]:
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            found = self.doubt.lost(silent, silent)
            if found:
                return list(found)
        return []


@pytest.mark.parametrize("count", [1, FEW, 10])
def test_a_few_are_lost_without_a_question(count: int) -> None:
    asked = Asked(None)
    assert asked.lost_within(1, FLEET[:count]) == FLEET[:count] and asked.asked == 0


def test_many_are_lost_only_where_slurmctld_says_so() -> None:
    asked = Asked({"n03"})
    assert asked.lost_within(1, FLEET) == ["n03"] and asked.asked == 1


def test_nothing_is_ended_while_slurmctld_does_not_answer_either() -> None:
    asked = Asked(None)
    assert asked.lost_within(3600, FLEET) == [] and asked.asked <= 3600 / 5 + 1
    assert asked.doubt.doubted == set(FLEET)
    (said,) = asked.doubt.news()
    assert "40 nodes are silent at once, first n00" in said and "this node's network" in said
    asked.answer = set()  # it is back, and has heard all of them: from here on their time runs
    assert asked.lost_within(PATIENCE - 6, FLEET) == []
    assert asked.lost_within(12, FLEET) == FLEET


def test_a_network_that_is_back_is_trusted_again() -> None:
    asked = Asked(set())
    assert asked.lost_within(PATIENCE - 6, FLEET) == []
    assert list(asked.doubt.news()) and asked.lost_within(10, []) == [] and asked.doubt.doubted == set()
    assert asked.lost_within(PATIENCE - 6, FLEET) == [] and list(asked.doubt.news())
    assert asked.lost_within(1, FLEET[:2]) == FLEET[:2]


def test_a_few_of_many_that_are_silent_are_asked_about_too() -> None:
    """They were only the first whose time was over."""
    asked = Asked(set())
    assert asked.doubt.lost(FLEET[:2], FLEET) == () and asked.asked == 1


def test_what_slurmctld_says_of_them() -> None:
    lines = "NodeName={} NodeAddr=10.0.0.1 Port=6818 State={}\n"
    states = {"n00": "ALLOCATED", "n01": "ALLOCATED*", "n02": "DOWN+DRAIN", "n03": "MIXED"}
    runner = mock.Mock()
    runner.run.return_value = Completed((), 0, "".join(lines.format(*pair) for pair in states.items()), "")
    assert make_query_of_down_nodes(runner)([*states, "n04"]) == {"n01", "n02", "n04"}
    runner.run.side_effect = RunError(["scontrol"], 1, "", "Unable to contact slurm controller")
    assert make_query_of_down_nodes(runner)(["n00"]) is None
