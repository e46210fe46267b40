"""What HyperPod noted down about a cluster whose nodes are provisioned continuously: who came, who failed, and why.

On such a cluster DescribeCluster goes on to say InService while nodes fail and are tried again, so the events are where
a reason is to be found. AWS keeps none for other clusters.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Protocol

from hyperpod_kit.errors import AwsError, UsageError

CONTINUOUS = "Continuous"
INFO, WARN, ERROR = "Info", "Warn", "Error"
LEVELS = (INFO, WARN, ERROR)

_ONLY_CONTINUOUS = "NodeProvisioningMode set to Continuous"
"""Part of AWS's answer about a cluster of the other kind (a ValidationException)."""

_PASSING = "lost orchestration-ready"
"""A warning about every node that is on its way; nothing is wrong then."""


class Event(NamedTuple):
    """One event. `level`: Info, Warn, Error; `resource`: Cluster, InstanceGroup or Instance.

    failure: AWS's FailureMessage, "" for none; lifecycle: how far the lifecycle script is, "" when it is not about one.
    """

    id: str
    at: datetime
    level: str
    resource: str
    group: str
    instance_id: str
    description: str
    operation_id: str = ""
    failure: str = ""
    lifecycle: str = ""

    @property
    def is_startup_warning(self) -> bool:
        """Whether it is a warning that every node gives while it comes up."""
        return _PASSING in self.description.lower()

    def line(self) -> str:
        """Describe the event for a person: where, what, why."""
        where = " ".join(filter(None, (self.group, self.instance_id))) or self.resource.lower()
        failure = ""
        if self.failure:
            failure = f": {self.failure}"
        return f"{where}: {self.description}" + failure

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**self._asdict(), "at": self.at.isoformat()}


class EventSource(Protocol):
    """The two questions; aws.sagemaker.SageMaker answers them."""

    def list_events(
        self,
        name: str,
        *,
        after: Optional[datetime] = None,
        group: Optional[str] = None,
        node: Optional[str] = None,
        newest: Optional[int] = None,
    ) -> list[dict[str, Any]]: ...

    def describe_event(self, name: str, event_id: str) -> dict[str, Any]: ...


def list_events(
    source: EventSource,
    cluster: str,
    *,
    after: Optional[datetime] = None,
    group: Optional[str] = None,
    node: Optional[str] = None,
    level: str = INFO,
    newest: Optional[int] = None,
) -> list[Event]:
    """Events of at least `level`, oldest first; each that tells of trouble with its reason.

    Raises UsageError for a cluster that has no events, AwsError, Unreachable.
    """
    # With a level, the newest so many of that level are meant, so all must be seen.
    limit = None
    if level == INFO:
        limit = newest
    try:
        summaries = source.list_events(cluster, after=after, group=group, node=node, newest=limit)
    except AwsError as err:
        if err.code == "ValidationException" and _ONLY_CONTINUOUS in err.message:
            raise UsageError(
                f"cluster {cluster} has no events: AWS keeps them only with continuous provisioning",
                hint=f"hyperpod-kit describe-cluster --cluster {cluster}, or hyperpod-kit diagnose",
            ) from err
        raise
    chosen = [summary for summary in summaries if LEVELS.index(_event_level(summary)) >= LEVELS.index(level)][:newest]
    return [_event_with_details_if_relevant(source, cluster, summary) for summary in reversed(chosen)]


class Troubles:
    """What has gone wrong on a cluster since `begin`, each event told once."""

    def __init__(self, source: EventSource, cluster: str, begin: datetime) -> None:
        self._source = source
        self._cluster = cluster
        self._begin = begin
        self._reported: set[str] = set()
        self.last: Optional[Event] = None

    def pop_unreported_trouble_events(self) -> list[Event]:
        """Return the events of trouble that no earlier call has returned. Raises as `list_events`."""
        events = [
            event
            for event in list_events(self._source, self._cluster, after=self._begin, level=WARN)
            if event.id not in self._reported and not event.is_startup_warning
        ]
        self._reported |= {event.id for event in events}
        if events:
            self.last = events[-1]
        return events


def _event_level(summary: Mapping[str, Any]) -> str:
    """AWS's level. Older answers have none: then the description decides."""
    given = summary.get("EventLevel")
    if given in LEVELS:
        return str(given)
    if "fail" in summary.get("Description", "").lower():
        return ERROR
    return INFO


def _event_with_details_if_relevant(source: EventSource, cluster: str, summary: Mapping[str, Any]) -> Event:
    event = Event(
        summary["EventId"],
        _to_datetime(summary["EventTime"]),
        _event_level(summary),
        summary["ResourceType"],
        summary.get("InstanceGroupName", ""),
        summary.get("InstanceId", ""),
        summary.get("Description", ""),
        summary.get("OperationId", ""),
    )
    if event.level == INFO and "lifecycle" not in event.description.lower():
        return event
    details = dict(_named_texts(source.describe_event(cluster, event.id).get("EventDetails", {})))
    return event._replace(failure=details.get("FailureMessage", ""), lifecycle=details.get("LcsExecutionState", ""))


def _named_texts(tree: Any) -> Iterator[tuple[str, str]]:
    """Every text in the metadata by its name, whatever kind of resource it lies under."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if isinstance(value, str) and value.strip():
                yield name, " ".join(value.split())
            else:
                yield from _named_texts(value)


def _to_datetime(value: Any) -> datetime:
    """boto3 gives a moment with its zone; anything else is seconds."""
    if isinstance(value, datetime):
        return value
    return datetime.fromtimestamp(float(value), timezone.utc)
