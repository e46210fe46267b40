"""The route of a value: which functions are given it, and how often it comes back to a file."""

from __future__ import annotations

import sys
from dataclasses import replace

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.states import REPAIRS, RepairAction
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


def test_what_holds_it_is_on_the_route_and_what_is_made_of_that_is_not() -> None:
    mount = LustreMount("fsx", "/fsx", "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com", "abcdefgh")
    roles = {"g": "compute"}
    config = NodeConfig("demo", "on_create", roles, (mount,))
    with ValueRoute(roles) as route:
        [carried] = config.mounts_for("compute", "g")
        carried.expected_protective_flags()
    assert [passage.function.rpartition(".")[2] for passage in route.passages] == ["mounts_for"]
    with ValueRoute(mount) as route:
        replace(mount, path="/data").probe_may_write()
    [passage] = route.passages
    assert passage.function.endswith("probe_may_write"), "a copy of it"


def test_what_is_the_same_object_everywhere_is_not_followed() -> None:
    route = ValueRoute()
    route._follow_result(RepairAction.KILL)
    route._follow_result(())
    assert not route._is_followed_or_holder(REPAIRS) and not route._is_followed_or_holder(())


def test_a_way_back_to_a_file_counts_once_however_often_a_loop_takes_it() -> None:
    route = [Passage(file, "run", ()) for file in ("a", "a", "b", "a", "c", "b", "b", "a", "b", "a")]
    assert count_returns(route) == 3, "b to a, c to b, a to b"
    assert count_returns([]) == 0
