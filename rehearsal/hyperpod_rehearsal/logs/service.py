"""What HyperPod's agent ships of each node: provisioning.log, in the cluster's log group, a stream a node.

Nothing is copied: a stream is the node's own file, read when somebody asks. An event's time is the line's own `ts`, or
that of the line before it; CloudWatch's is when the agent took the line, which is seconds later.
"""

from __future__ import annotations

import calendar
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional, Tuple

from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster
from hyperpod_rehearsal.platform.node_files import PROVISION_LOG
from hyperpod_rehearsal.records.layout import Layout

PAGE = 1000
MAX_LOG_BYTES = 16 << 20
"""Bytes of a log that are looked at, from its end."""

PATTERN = re.compile(r'\{ *\$\.(\w+) *= *"([^"]*)" *\}')
"""The one kind of filter pattern that is known here: a field of a JSON line is a word."""


class LogsError(Exception):
    """An error answer. `code` as in the service model."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


@dataclass(frozen=True)
class LogEvent:
    """One line. `at`: milliseconds since 1970."""

    stream: str
    at: int
    message: str

    def to_api_output_event(self) -> dict[str, Any]:
        return {"timestamp": self.at, "ingestionTime": self.at, "message": self.message}


class LogsService:
    """`clusters`: by name, those that there are at each moment."""

    def __init__(self, layout: Layout, clusters: Mapping[str, RehearsedCluster]) -> None:
        self._layout, self._clusters = layout, clusters

    def filter_log_events(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the events of a log group that match the filter, as FilterLogEvents does. Raises LogsError."""
        cluster = self._cluster_of_log_group(request["logGroupName"])
        named, prefix = request.get("logStreamNames"), request.get("logStreamNamePrefix", "")
        if named and prefix:
            raise LogsError("InvalidParameterException", "Only one of logStreamNames and logStreamNamePrefix is taken.")
        matches = _compile_filter_pattern(request.get("filterPattern", ""))
        begin, end = request.get("startTime", 0), request.get("endTime", 1 << 62)
        events: list[LogEvent] = []
        for stream, path in self._node_log_streams(cluster):
            if stream.startswith(prefix) and (not named or stream in named):
                events += [
                    event
                    for event in _read_log_events(stream, path)
                    if begin <= event.at < end and matches(event.message)
                ]
        events.sort(key=lambda event: event.at)
        start = _parse_next_token(request.get("nextToken"))
        stop = start + request.get("limit", PAGE)
        page = [
            {"logStreamName": event.stream, "eventId": str(start + number), **event.to_api_output_event()}
            for number, event in enumerate(events[start:stop])
        ]
        return {"events": page, **({"nextToken": str(stop)} if stop < len(events) else {})}

    def get_log_events(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the last lines of a log stream, or its first with startFromHead. Raises LogsError."""
        cluster, stream = self._cluster_of_log_group(request["logGroupName"]), request["logStreamName"]
        path = dict(self._node_log_streams(cluster)).get(stream) or self._find_retained_log(stream)
        if path is None:
            raise LogsError("ResourceNotFoundException", "The specified log stream does not exist.")
        events = list(_read_log_events(stream, path))
        limit = request.get("limit", PAGE)
        if request.get("startFromHead"):
            page = events[:limit]
        else:
            page = events[-limit:]
        shown = [event.to_api_output_event() for event in page]
        return {"events": shown, "nextForwardToken": f"f/{len(events)}", "nextBackwardToken": "b/0"}

    def _cluster_of_log_group(self, group: str) -> RehearsedCluster:
        for cluster in list(self._clusters.values()):
            if group == f"/aws/sagemaker/Clusters/{cluster.name}/{cluster.id}":
                return cluster
        raise LogsError("ResourceNotFoundException", "The specified log group does not exist.")

    def _node_log_streams(self, cluster: RehearsedCluster) -> Iterator[Tuple[str, Path]]:
        for node in list(cluster.nodes.values()):
            path = self._layout.nodes / node.instance_id / "root" / PROVISION_LOG.lstrip("/")
            if path.is_file():
                yield f"LifecycleConfig/{node.group}/{node.instance_id}", path

    def _find_retained_log(self, stream: str) -> Optional[Path]:
        instance = stream.rpartition("/")[2]
        path = self._layout.retained_logs / instance / Path(PROVISION_LOG).name
        if re.fullmatch(r"i-[0-9a-f]+", instance) and path.is_file():
            return path
        return None


def _read_log_events(stream: str, path: Path) -> Iterator[LogEvent]:
    try:
        # A node may have put a link there; its target would be this machine's.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        file.seek(max(0, status.st_size - MAX_LOG_BYTES))
        lines = file.read(MAX_LOG_BYTES).decode(errors="replace").splitlines()
    at = int(status.st_mtime * 1000)
    for line in lines:
        at = _parse_line_timestamp_ms(line) or at
        if line:
            yield LogEvent(stream, at, line)


def _parse_line_timestamp_ms(line: str) -> int:
    """Return the `ts` of a JSON log line in milliseconds since 1970, 0 when the line has none."""
    try:
        return calendar.timegm(time.strptime(json.loads(line)["ts"], "%Y-%m-%dT%H:%M:%SZ")) * 1000
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0


def _compile_filter_pattern(pattern: str) -> Callable[[str], bool]:
    if not pattern:
        return lambda message: True
    match = PATTERN.fullmatch(pattern.strip())
    if match is None:
        raise LogsError("InvalidParameterException", f"the rehearsal knows no filter pattern such as {pattern}")
    key, value = match.groups()

    def holds(message: str) -> bool:
        try:
            return bool(json.loads(message)[key] == value)
        except (ValueError, TypeError, KeyError, RecursionError):
            return False

    return holds


def _parse_next_token(token: Any) -> int:
    if token is None:
        return 0
    if not str(token).isdigit():
        raise LogsError("InvalidParameterException", "The specified nextToken is invalid.")
    return int(token)
