"""Waiting, against a scripted cluster and a clock that only sleeping moves."""

from __future__ import annotations

from typing import Any, Callable, Union

import pytest

from hyperpod_kit.cluster.state import ClusterState, GroupState
from hyperpod_kit.cluster.wait import observe, wait_deleted, wait_ready
from hyperpod_kit.errors import AwsError, ClusterFailed, Unreachable, WaitTimeout

Step = Union[tuple[str, dict[str, int], str], Exception]
GONE = AwsError("DescribeCluster demo", "ResourceNotFound", "no such cluster")


class Scripted:
    """Answers one step a poll; the last step stays."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.polls = 0
        self.now = 0.0
        self._current: Step = steps[0]

    def describe_cluster(self, name: str) -> dict[str, Any]:
        self.polls += 1
        self._current = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(self._current, Exception):
            raise self._current
        status, counts, failure = self._current
        groups = [{"InstanceGroupName": "w", "CurrentCount": sum(counts.values()), "TargetCount": 2}]
        return {"ClusterStatus": status, "InstanceGroups": groups, "FailureMessage": failure}

    def list_nodes(self, name: str) -> list[dict[str, Any]]:
        assert not isinstance(self._current, Exception)
        return [
            {
                "InstanceGroupName": "w",
                "InstanceId": f"i-{state}",
                "InstanceStatus": {"Status": state, "Message": "disk broke" if state == "Failure" else ""},
            }
            for state, count in self._current[1].items()
            for _ in range(count)
        ]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def go(function: Callable[..., Any], cloud: Scripted, **options: Any) -> Any:
    return function(
        cloud, "demo", **{"timeout": 100.0, "interval": 10.0, "clock": cloud.clock, "sleep": cloud.sleep, **options}
    )


def test_ready_means_every_node_runs() -> None:
    cloud = Scripted(
        ("Creating", {}, ""),
        ("InService", {}, ""),
        ("InService", {"Pending": 2}, ""),
        ("InService", {"Running": 1, "Pending": 1}, ""),
        ("InService", {"Running": 2}, ""),
    )
    seen: list[str] = []
    state = go(wait_ready, cloud, progress=lambda state: seen.append(state.line()))
    assert state.ready and cloud.polls == 5 and cloud.now == 40
    assert seen == [
        "Creating · w 0/2",
        "InService · w 0/2",
        "InService · w 2/2 (2 Pending)",
        "InService · w 2/2 (1 Pending, 1 Running)",
        "InService · w 2/2",
    ]


def test_a_failure_says_what_aws_says() -> None:
    cloud = Scripted(("Creating", {"Running": 1}, ""), ("Failed", {"Failure": 1}, "Lifecycle scripts failed"))
    with pytest.raises(ClusterFailed, match="demo failed: Lifecycle scripts failed; i-Failure: disk broke") as caught:
        go(wait_ready, cloud)
    assert caught.value.exit_code == 1 and "CloudWatch" in (caught.value.hint or "")


def test_a_cluster_that_is_deleted_meanwhile() -> None:
    with pytest.raises(ClusterFailed, match="is being deleted"):
        go(wait_ready, Scripted(("Deleting", {}, "")))


def test_time_is_up() -> None:
    cloud = Scripted(("Creating", {"Running": 1}, ""))
    with pytest.raises(WaitTimeout, match=r"not ready after 100 s: status Creating, w 1 of 2 running") as caught:
        go(wait_ready, cloud)
    assert caught.value.exit_code == 3 and cloud.now == 100


def test_a_few_unanswered_polls_do_not_end_it() -> None:
    down = Unreachable("down")
    assert go(wait_ready, Scripted(down, down, down, down, ("InService", {"Running": 2}, ""))).ready
    cloud = Scripted(down)
    with pytest.raises(Unreachable):
        go(wait_ready, cloud)
    assert cloud.polls == 5


def test_a_refused_poll_ends_it_at_once() -> None:
    cloud = Scripted(AwsError("DescribeCluster", "AccessDeniedException", "no"))
    with pytest.raises(AwsError):
        go(wait_ready, cloud)
    assert cloud.polls == 1


def test_deleted_means_that_aws_does_not_know_it() -> None:
    cloud = Scripted(("Deleting", {"ShuttingDown": 2}, ""), ("Deleting", {}, ""), GONE)
    go(wait_deleted, cloud)
    assert cloud.polls == 3


def test_a_deletion_can_fail_and_take_too_long() -> None:
    with pytest.raises(ClusterFailed, match="could not be deleted: an ENI is in use"):
        go(wait_deleted, Scripted(("Failed", {}, "an ENI is in use")))
    with pytest.raises(WaitTimeout, match="still there after 100 s"):
        go(wait_deleted, Scripted(("Deleting", {}, "")))


def test_one_look() -> None:
    state = observe(Scripted(("Updating", {"Running": 1, "Failure": 1}, "")), "demo")
    assert state == ClusterState(
        "demo", "Updating", "", (GroupState("w", 2, 2, {"Running": 1, "Failure": 1}),), (("i-Failure", "disk broke"),)
    )
    assert state.line() == "Updating · w 2/2 (1 Failure, 1 Running) · i-Failure: disk broke"
    assert state.to_dict()["ready"] is False
