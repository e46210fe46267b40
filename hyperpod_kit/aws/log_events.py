"""Lines that a whole fleet has logged lately, from CloudWatch Logs."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, NamedTuple, Optional

from hyperpod_kit.aws.back_off import patiently
from hyperpod_kit.aws.errors import translated
from hyperpod_kit.aws.session import client


class LogLine(NamedTuple):
    """`received_at`: when CloudWatch had it, by its own clock, in Unix seconds."""

    stream: str
    received_at: float
    message: str


class LogEvents:
    """`region`: None for boto3's default. Raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None) -> None:
        self._client = client("logs", region)

    def since(self, group: str, prefix: str, pattern: str, began: float) -> Iterator[LogLine]:
        """Every line of the group's streams whose name starts with `prefix`, from `began` (Unix seconds) on.

        The pattern only saves traffic: what it is matched by is AWS's affair, so look at the lines. Pages may be empty
        and yet be followed by others.
        """
        token: dict[str, str] = {}
        while True:
            page = patiently(lambda: self._page(group, prefix, pattern, began, token))
            for event in page.get("events", []):
                yield LogLine(event["logStreamName"], event["ingestionTime"] / 1000, event["message"])
            if not page.get("nextToken"):
                return
            token["nextToken"] = page["nextToken"]

    def _page(self, group: str, prefix: str, pattern: str, began: float, token: Mapping[str, str]) -> Any:
        with translated("FilterLogEvents", group):
            return self._client.filter_log_events(
                logGroupName=group,
                logStreamNamePrefix=prefix,
                filterPattern=pattern,
                startTime=max(0, int(began * 1000)),
                **token,
            )
