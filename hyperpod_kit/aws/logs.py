"""What HyperPod ships to CloudWatch of every node: the log of its creation, also when the node itself is silent."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, NamedTuple, Optional

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.aws.errors import NOT_FOUND, translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError

PAGES = 2000
"""Pages of a search: many are empty where a filter matches little."""


def log_group(cluster_name: str, cluster_arn: str) -> str:
    """Return the name of the log group of a cluster."""
    return f"/aws/sagemaker/Clusters/{cluster_name}/{cluster_arn.rsplit('/', 1)[-1]}"


def creation_log_stream(group: str, instance_id: str) -> str:
    """Return the name of the stream that holds a node's /var/log/provision/provisioning.log."""
    return f"LifecycleConfig/{group}/{instance_id}"


class LogLine(NamedTuple):
    """One line of a stream. `at`: when CloudWatch took it in, Unix seconds."""

    stream: str
    at: float
    message: str


class Logs:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("logs", region, connections=connections)

    def tail(self, group: str, stream: str, lines: int) -> list[str]:
        """Return the last lines of a stream, oldest first; none when there is no such stream."""

        def once() -> Any:
            with translate_aws_errors("GetLogEvents", f"{group}:{stream}"):
                return self._client.get_log_events(
                    logGroupName=group, logStreamName=stream, limit=lines, startFromHead=False
                )

        try:
            return [str(event["message"]).rstrip("\n") for event in retry_while_throttled(once)["events"]]
        except AwsError as err:
            if err.code in NOT_FOUND:
                return []
            raise

    def search(self, group: str, *, prefix: str = "", pattern: str = "", after: float = 0.0) -> Iterator[LogLine]:
        """Yield every line of the streams whose names begin with `prefix`, over all pages; none without a log group.

        pattern: CloudWatch's filter pattern; after: Unix seconds.
        """
        request: dict[str, Any] = {"logGroupName": group, "startTime": int(after * 1000)}
        optional = {"logStreamNamePrefix": prefix, "filterPattern": pattern}
        request.update({key: text for key, text in optional.items() if text})

        def fetch(page: Mapping[str, str]) -> Any:
            def once() -> Any:
                with translate_aws_errors("FilterLogEvents", group):
                    return self._client.filter_log_events(**request, **page)

            return retry_while_throttled(once)

        try:
            for page in responses.fetch_pages(f"FilterLogEvents {group}", fetch, "nextToken", most=PAGES):
                with translate_aws_errors("FilterLogEvents", group):
                    lines = [_log_line_from_event(event) for event in page["events"]]
                yield from lines
        except AwsError as err:
            if err.code not in NOT_FOUND:
                raise


def _log_line_from_event(event: Mapping[str, Any]) -> LogLine:
    at = event.get("ingestionTime", event["timestamp"]) / 1000
    return LogLine(event["logStreamName"], at, str(event["message"]).rstrip("\n"))
