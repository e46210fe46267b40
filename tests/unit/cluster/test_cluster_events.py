"""Events as AWS gives them -> what a person reads: levels, reasons out of the depths of the metadata, order."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from hyperpod_kit.cluster.events import list_events
from hyperpod_kit.errors import AwsError, UsageError

REFUSAL = AwsError(
    "ListClusterEvents demo",
    "ValidationException",
    "ListClusterEvents is only supported for cluster with NodeProvisioningMode set to Continuous",
)


def summary(number: int, description: str, **more: Any) -> dict[str, Any]:
    return {
        "EventId": f"e{number}",
        "EventTime": datetime(2026, 6, 1, 12, number, tzinfo=timezone.utc),
        "ResourceType": "Instance",
        "Description": description,
        **more,
    }


class Book:
    """Events, newest first, and what is written behind each."""

    def __init__(self, *events: dict[str, Any], metadata: Any = None) -> None:
        self.events = list(events)[::-1]
        self.metadata = metadata or {}
        self.opened: list[str] = []
        self.asked: dict[str, Any] = {}

    def list_events(self, name: str, **filters: Any) -> list[dict[str, Any]]:
        self.asked = filters
        return self.events[: filters.get("newest")]

    def describe_event(self, name: str, event_id: str) -> dict[str, Any]:
        self.opened.append(event_id)
        return {"EventDetails": {"EventMetadata": self.metadata}}


@pytest.mark.parametrize("kind", ["Cluster", "InstanceGroup", "InstanceGroupScaling", "Instance", "SomethingNew"])
def test_the_reason_is_found_under_whatever_resource_it_lies(kind: str) -> None:
    book = Book(
        summary(1, "it failed", EventLevel="Error", InstanceGroupName="w", InstanceId="i-1"),
        metadata={kind: {"FailureMessage": " no\n capacity ", "LcsExecutionState": "Failed", "Efa": ["y"]}},
    )
    [event] = list_events(book, "demo")
    assert (event.failure, event.lifecycle) == ("no capacity", "Failed")
    assert event.line() == "w i-1: it failed: no capacity"
    assert event.to_dict()["at"] == "2026-06-01T12:01:00+00:00"


def test_only_what_may_hold_more_is_opened() -> None:
    book = Book(
        summary(1, "Scaling up"),
        summary(2, "Instance lifecycle script execution for i-1 has Started"),
        summary(3, "odd", EventLevel="Warn"),
    )
    found = list_events(book, "demo")
    assert [event.id for event in found] == ["e1", "e2", "e3"] and book.opened == ["e2", "e3"]


def test_levels_also_where_aws_says_none() -> None:
    """Answers of older regions carry no EventLevel."""
    book = Book(
        summary(1, "fine"),
        summary(2, "creation failed"),
        summary(3, "hm", EventLevel="Warn"),
        summary(4, "creation failed again"),
    )
    assert [event.id for event in list_events(book, "demo", level="Warn")] == ["e2", "e3", "e4"]
    assert [event.id for event in list_events(book, "demo", level="Error")] == ["e2", "e4"]
    # The newest two errors, not the errors among the newest two.
    assert [event.id for event in list_events(book, "demo", level="Error", newest=2)] == ["e2", "e4"]
    assert [event.id for event in list_events(book, "demo", newest=2)] == ["e3", "e4"]


def test_what_every_node_says_on_its_way_is_no_trouble() -> None:
    [event] = list_events(Book(summary(1, "Instance lost Orchestration-Ready state", EventLevel="Warn")), "demo")
    assert event.is_startup_warning


def test_a_cluster_without_events_is_said_so() -> None:
    class Silent(Book):
        def list_events(self, name: str, **filters: Any) -> list[dict[str, Any]]:
            raise REFUSAL

    with pytest.raises(UsageError, match="cluster demo has no events") as caught:
        list_events(Silent(), "demo")
    assert "hyperpod-kit diagnose" in (caught.value.hint or "")


def test_another_refusal_stays_what_it_is() -> None:
    class Denied(Book):
        def list_events(self, name: str, **filters: Any) -> list[dict[str, Any]]:
            raise AwsError("ListClusterEvents demo", "ValidationException", "NodeId is wrong")

    with pytest.raises(AwsError, match="NodeId is wrong"):
        list_events(Denied(), "demo")
