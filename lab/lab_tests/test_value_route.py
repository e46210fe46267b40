"""The route of a value: which functions are given it, and how often it comes back to a file."""

from __future__ import annotations

import sys

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_lab.value_route import Passage, RouteFigures, ValueRoute, count_returns


def test_a_value_is_followed_by_its_identity() -> None:
    followed, other = layout.CheckpointId(1, 2, 3, "a1b2c3d4"), layout.CheckpointId(1, 2, 3, "a1b2c3d4")
    with ValueRoute(followed) as route:
        str(other)
        text = str(followed)
    assert layout.parse_checkpoint_id(text) == followed
    [passage] = route.passages
    assert (passage.file, passage.parameters) == ("checkpoint/repository/format/layout.py", ("self",))
    assert passage.function.endswith("__str__")
    assert route.figures() == RouteFigures(functions=1, files=1, returns=0, names=0)
    assert sys.getprofile() is None


def test_what_a_function_makes_of_it_is_followed() -> None:
    text = str(layout.CheckpointId(1, 2, 3, "a1b2c3d4"))
    with ValueRoute(text) as route:
        parsed = layout.parse_checkpoint_id(text)
        str(parsed)
    assert route.passages[0].function == "parse_checkpoint_id"
    assert route.passages[-1].function.endswith("__str__") and route.passages[-1].parameters == ("self",)


def test_a_way_back_to_a_file_counts_once_however_often_a_loop_takes_it() -> None:
    route = [Passage(file, "run", ()) for file in ("a", "a", "b", "a", "c", "b", "b", "a", "b", "a")]
    assert count_returns(route) == 3, "b to a, c to b, a to b"
    assert count_returns([]) == 0
