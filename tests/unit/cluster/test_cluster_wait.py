"""Waiting, against a scripted cluster and a clock that only sleeping moves."""

from __future__ import annotations

from typing import Any, Callable, Union

import pytest

from hyperpod_kit.cluster.state import ClusterState, GroupState
from hyperpod_kit.cluster.wait import FAILED_FOR, observe_cluster, wait_deleted, wait_ready
from hyperpod_kit.errors import AwsError, ClusterFailed, NoCredentials, Unreachable, WaitTimeout
from tests.support.clock import FakeClock

Step = Union[tuple[str, dict[str, int], str], Exception]
GONE = AwsError("DescribeCluster demo", "ResourceNotFound", "no such cluster")


class Scripted(FakeClock):
    """Answers one step a poll; the last step stays."""

    region = "us-east-1"

    def __init__(self, *steps: Step, target: int = 2, continuous: bool = False) -> None:
        super().__init__()
        self.steps = list(steps)
        self.target = target
        self.continuous = continuous
        self.events: list[dict[str, Any]] = []
        self.polls = 0
        self._current: Step = steps[0]

    def describe_cluster(self, name: str) -> dict[str, Any]:
        self.polls += 1
        self._current = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(self._current, Exception):
            raise self._current
        status, counts, failure = self._current
        groups = [{"InstanceGroupName": "w", "CurrentCount": sum(counts.values()), "TargetCount": self.target}]
        mode = {"NodeProvisioningMode": "Continuous"} if self.continuous else {}
        return {"ClusterStatus": status, "InstanceGroups": groups, "FailureMessage": failure, **mode}

    def list_events(self, name: str, **filters: Any) -> list[dict[str, Any]]:
        assert self.continuous, "AWS refuses that question about other clusters"
        return self.events[::-1]

    def describe_event(self, name: str, event_id: str) -> dict[str, Any]:
        return {"EventDetails": {"EventMetadata": {"Instance": {"FailureMessage": f"reason of {event_id}"}}}}

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


def go(function: Callable[..., Any], cloud: Scripted, **options: Any) -> Any:
    return function(
        cloud, "demo", **{"timeout": 100.0, "interval": 10.0, "clock": cloud, "sleep": cloud.sleep, **options}
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


def test_a_node_that_has_failed_for_good_ends_the_wait() -> None:
    cloud = Scripted(("InService", {"Running": 1, "Failure": 1}, ""))
    with pytest.raises(ClusterFailed, match=r"1 node of cluster demo failed.*i-Failure: disk broke") as caught:
        go(wait_ready, cloud, timeout=3600.0)
    assert cloud.monotonic() <= FAILED_FOR + 20 and "replace-node i-Failure" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "cloud",
    [
        Scripted(*[("InService", {"Running": 1, "Failure": 1}, "")] * 4, ("InService", {"Running": 2}, "")),
        Scripted(*[("Updating", {"Running": 1, "Failure": 1}, "")] * 40, ("InService", {"Running": 2}, "")),
        Scripted(
            *[("InService", {"Running": 1, "Failure": 1}, ""), ("InService", {"Running": 1, "Pending": 1}, "")] * 20,
            ("InService", {"Running": 2}, ""),
        ),
        Scripted(
            *[("InService", {"Running": 1, "Failure": 1}, "")] * 40, ("InService", {"Running": 2}, ""), continuous=True
        ),
    ],
    ids=["replaced soon", "AWS is at it", "one after the other", "nodes come continuously"],
)
def test_a_node_that_may_come_back_is_waited_for(cloud: Scripted) -> None:
    assert go(wait_ready, cloud, timeout=3600.0).ready


def test_time_is_up() -> None:
    cloud = Scripted(("Creating", {"Running": 1}, ""))
    with pytest.raises(WaitTimeout, match=r"not ready after 100 s: status Creating, w 1 of 2 running") as caught:
        go(wait_ready, cloud)
    assert caught.value.exit_code == 3 and cloud.now == 100


def test_a_few_unanswered_polls_do_not_end_it() -> None:
    down = Unreachable("down", hint="look at the cable")
    noted: list[str] = []
    cloud = Scripted(down, down, down, down, ("InService", {"Running": 2}, ""))
    assert go(wait_ready, cloud, note=noted.append).ready
    assert noted[0] == "down; retrying (1 of 4)" and len(noted) == 4
    cloud = Scripted(down)
    with pytest.raises(Unreachable, match=r"^down$") as caught:
        go(wait_ready, cloud)
    assert cloud.polls == 5
    assert (
        caught.value.hint
        == "look at the cable; `hyperpod-kit wait --cluster demo --region us-east-1` continues from this point"
    )


@pytest.mark.parametrize("function", [wait_ready, wait_deleted])
def test_without_credentials_there_is_no_sense_in_asking_again(function: Callable[..., Any]) -> None:
    cloud = Scripted(("Creating", {}, ""), NoCredentials("expired", hint="log in"), ("Creating", {}, ""))
    with pytest.raises(NoCredentials, match="expired") as caught:
        go(function, cloud)
    assert cloud.polls == 2 and "continues from this point" in (caught.value.hint or "")


def test_a_change_is_not_done_before_aws_aims_at_it() -> None:
    """UpdateCluster has returned, and DescribeCluster still tells the old counts."""
    cloud = Scripted(("InService", {"Running": 2}, ""), ("InService", {"Running": 2}, ""))
    with pytest.raises(
        WaitTimeout,
        match=r"w 2 of 2 running, w: the configuration has 3, AWS's target is 2, "
        r"v: the configuration has 1, AWS's target is 0",
    ):
        go(wait_ready, cloud, desired={"w": 3, "v": 1})
    cloud.target = 3
    assert go(wait_ready, Scripted(("InService", {"Running": 3}, ""), target=3), desired={"w": 3}).ready


def test_a_change_that_aws_takes_back_is_a_failure() -> None:
    rolled_back = ("InService", {"Running": 2}, "no capacity")
    cloud = Scripted(("Updating", {"Running": 2}, ""), ("RollingBack", {"Running": 2}, ""), rolled_back)
    with pytest.raises(
        ClusterFailed,
        match="the change of cluster demo failed: no capacity; w: the configuration has 3, AWS's target is 2",
    ):
        go(wait_ready, cloud, desired={"w": 3})
    assert cloud.polls == 3
    # Without a wish AWS's own counts are believed, and its message is the caller's to tell.
    assert go(wait_ready, Scripted(rolled_back)).failure == "no capacity"


def test_a_message_of_an_earlier_change_fails_no_later_one() -> None:
    cloud = Scripted(
        ("InService", {"Running": 2}, "old"),
        ("Updating", {"Running": 2}, ""),
        ("InService", {"Running": 3}, ""),
        target=3,
    )
    assert go(wait_ready, cloud, desired={"w": 3}, stale_failure="old").ready and cloud.polls == 3
    with pytest.raises(ClusterFailed, match="new"):
        go(wait_ready, Scripted(("InService", {"Running": 2}, "new"), target=3), desired={"w": 3}, stale_failure="old")


def event(number: int, description: str = "Instance creation failed", level: str = "Error") -> dict[str, Any]:
    return {
        "EventId": f"e{number}",
        "EventTime": float(number),
        "EventLevel": level,
        "ResourceType": "Instance",
        "InstanceGroupName": "w",
        "InstanceId": f"i-{number}",
        "Description": description,
    }


def test_where_nodes_come_continuously_failures_are_told_once_and_waiting_goes_on() -> None:
    cloud = Scripted(
        ("InService", {"Running": 1, "Failure": 1}, "old words"),
        ("InService", {"Running": 1}, ""),
        ("InService", {"Running": 2}, ""),
        continuous=True,
    )
    cloud.events = [event(1), event(2, "lost orchestration-ready", "Warn"), event(3, "all is well", "Info")]
    noted: list[str] = []
    assert go(wait_ready, cloud, desired={"w": 2}, note=noted.append).ready and cloud.polls == 3
    assert noted == ["w i-1: Instance creation failed: reason of e1"]
    late = Scripted(("InService", {"Running": 1}, ""), continuous=True)
    late.events = [event(1)]
    with pytest.raises(WaitTimeout, match="last error: w i-1: Instance creation failed: reason of e1"):
        go(wait_ready, late)


def test_events_that_may_not_be_read_keep_nobody_from_waiting() -> None:
    class Deaf(Scripted):
        def list_events(self, name: str, **filters: Any) -> list[dict[str, Any]]:
            raise AwsError("ListClusterEvents", "AccessDeniedException", "no")

    assert go(wait_ready, Deaf(("InService", {"Running": 2}, ""), continuous=True)).ready


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
    with pytest.raises(WaitTimeout, match="still exists after 100 s"):
        go(wait_deleted, Scripted(("Deleting", {}, "")))


def test_a_reason_that_is_a_log_stays_one_line_while_waiting_and_is_whole_at_the_end() -> None:
    log = "Lifecycle scripts did not run\n" + "a line of its log\n" * 100
    seen: list[str] = []
    with pytest.raises(ClusterFailed, match="a line of its log") as caught:
        go(wait_ready, Scripted(("Failed", {"Failure": 1}, log)), progress=lambda state: seen.append(state.line()))
    assert "\n" not in seen[0] and len(seen[0]) < 500 and caught.value.message.count("a line of its log") == 100


def test_one_look() -> None:
    state = observe_cluster(Scripted(("Updating", {"Running": 1, "Failure": 1}, "")), "demo")
    assert state == ClusterState(
        "demo",
        "Updating",
        "",
        (GroupState("w", 2, 2, {"Running": 1, "Failure": 1}),),
        (("i-Failure", "disk broke"),),
        failed=("i-Failure",),
    )
    assert state.line() == "Updating · w 2/2 (1 Failure, 1 Running) · i-Failure: disk broke"
    assert state.to_dict()["ready"] is False


def test_a_group_whose_nodes_are_not_listed_says_so() -> None:
    state = ClusterState("demo", "InService", "", (GroupState("w", 3, 3, {}), GroupState("spare", 0, 0, {})))
    assert not state.ready and state.line() == "InService · w 3/3 (none is listed) · spare 0/0"
