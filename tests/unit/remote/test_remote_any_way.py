"""validate-mounts that is left to find its way: which one it takes, what it says of it, and whom it calls dead."""

from __future__ import annotations

from typing import Callable, Sequence

import pytest

from hyperpod_kit.errors import Unreachable, UsageError
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.auto_transport import AutoTransport, TransportOption
from hyperpod_kit.remote.transports.transport import NodeResponse, Progress, Transport

FLEET = [NodeTarget(f"i-{group}{number}", group, "", "10.0.0.1") for group in "abc" for number in range(3)]
DOWN = NodeResponse(error="it is silent", hint="--timeout", reached=False)


class Fake:
    """A transport that reaches the nodes of these ids."""

    description = "by heart"

    def __init__(self, *reached: str) -> None:
        self.reached = reached
        self.asked: list[str] = []

    def query_mount_reports(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        self.asked += [target.instance_id for target in targets]
        progress(len(targets))
        return [NodeResponse("yes", 0) if target.instance_id in self.reached else DOWN for target in targets]


def given(transport: Transport) -> Callable[[frozenset[str]], Transport]:
    return lambda answered: transport


def closed(answered: frozenset[str]) -> Transport:
    raise UsageError("the plugin is not on PATH")


def ask(*ways: TransportOption) -> tuple[dict[str, str], list[str], int]:
    """(instance id -> the way that it answered by, or its error; what was said; nodes counted as done)."""
    said: list[str] = []
    counted: list[int] = []
    responses = AutoTransport(ways, said.append).query_mount_reports(FLEET, counted.append)
    told = {target.instance_id: one.via or one.error for target, one in zip(FLEET, responses)}
    return told, said, sum(counted)


def test_a_silent_node_among_neighbours_that_answer_is_silent_and_asked_once() -> None:
    others = Fake(*(target.instance_id for target in FLEET))
    near = Fake(*(target.instance_id for target in FLEET if target.instance_id != "i-b1"))
    told, said, counted = ask(TransportOption("ssh", "ssh", given(near)), TransportOption("ssm", "SSM", given(others)))
    assert told["i-b1"] == "ssh" and others.asked == []
    assert said == ["asked: 9 nodes by ssh"] and counted == len(FLEET)


def test_groups_behind_a_closed_way_are_asked_by_the_next_one() -> None:
    near, sessions, sent = Fake("i-a0", "i-a2"), Fake("i-b1", "i-b2"), Fake("i-c0", "i-c1", "i-c2")
    told, said, counted = ask(
        TransportOption("ssh", "ssh", given(near)),
        TransportOption("controller", "the controller", closed),
        TransportOption("ssm", "SSM", given(sessions), sample=2),
        TransportOption("pull", "what they have sent", given(sent), late=True),
    )
    assert [told[f"i-a{n}"] for n in range(3)] == ["ssh"] * 3
    assert [told[f"i-b{n}"] for n in range(3)] == ["ssm"] * 3
    # Reports that may be minutes old are no answer where others answer now.
    assert all(told[f"i-c{n}"].startswith("no transport reached it: ssh: it is silent; SSM: ") for n in range(3))
    assert sent.asked == [] and sorted(sessions.asked) == ["i-b0", "i-b1", "i-b2", "i-c0", "i-c1"]
    assert said == [
        "asked: 3 nodes by ssh, 3 nodes by SSM; closed: ssh: it is silent; the controller: the plugin is not on PATH; "
        "SSM: it is silent"
    ]
    assert counted == len(FLEET)


def test_what_nodes_have_sent_counts_where_no_way_leads_to_any() -> None:
    sent = Fake(*(target.instance_id for target in FLEET if target.instance_id != "i-c1"))
    told, said, counted = ask(
        TransportOption("ssh", "ssh", closed),
        TransportOption("ssm", "SSM", given(Fake()), sample=1),
        TransportOption("pull", "what they have sent", given(sent), late=True),
    )
    assert told.pop("i-c1") == "pull" and set(told.values()) == {"pull"} and counted == len(FLEET)
    assert said == ["asked: 9 nodes by what they have sent; closed: ssh: the plugin is not on PATH; SSM: it is silent"]


def test_no_way_at_all_is_no_verdict_on_nodes() -> None:
    with pytest.raises(Unreachable, match="no transport reaches the nodes: ssh: the plugin is not on PATH; SSM"):
        ask(TransportOption("ssh", "ssh", closed), TransportOption("ssm", "SSM", closed))


def test_what_was_said_once_is_not_said_at_each_look() -> None:
    said: list[str] = []
    way = AutoTransport([TransportOption("ssh", "ssh", given(Fake("i-a0", "i-b0", "i-c0")))], said.append)
    for _ in range(3):
        way.query_mount_reports(FLEET, lambda count: None)
    assert len(said) == 1
