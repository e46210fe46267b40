"""An AWS that lies: every answer of one mode. Modes are those of a review that called each command against each."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Mapping, Tuple

from tests.hostile.aws import objects

EVIL = "\x1b]0;pwned\x07\x1b[2J\x1b[31mEVIL\x1b[0m\u202e\x9b31m\r\nFAKE: all ok"
LONG = "A" * 10_000_000
ARN = "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcdefghij12"
Answer = Dict[str, Any]


def cluster(**more: Any) -> Answer:
    groups = [("controller-machine", 1), ("worker-group", 3)]
    return {
        "ClusterArn": ARN,
        "ClusterName": "demo",
        "ClusterStatus": "InService",
        "CreationTime": 1.7e9,
        "InstanceGroups": [
            {"InstanceGroupName": name, "InstanceType": "ml.c5.xlarge", "CurrentCount": count, "TargetCount": count}
            for name, count in groups
        ],
        **more,
    }


def node(number: int, **more: Any) -> Answer:
    return {
        "InstanceGroupName": "worker-group",
        "InstanceId": f"i-{number:017x}",
        "InstanceType": "ml.c5.4xlarge",
        "LaunchTime": 1.7e9,
        "InstanceStatus": {"Status": "Running", "Message": ""},
        "PrivatePrimaryIp": f"127.1.0.{number}",
        **more,
    }


def event(**more: Any) -> Answer:
    names = {"EventId": "e", "ClusterArn": ARN, "ClusterName": "demo", "ResourceType": "Cluster"}
    return {**names, "EventTime": 1.7e9, **more}


def good() -> Dict[str, Answer]:
    return {
        "DescribeCluster": cluster(),
        "ListClusterNodes": {
            "ClusterNodeSummaries": [node(1, InstanceGroupName="controller-machine"), node(2), node(3), node(4)]
        },
        "DescribeClusterNode": {"NodeDetails": node(2)},
        "ListClusterEvents": {"Events": []},
        "FilterLogEvents": {"events": []},
        "GetLogEvents": {"events": []},
    }


def evil() -> Dict[str, Answer]:
    group = {"InstanceGroupName": "g" + EVIL, "InstanceType": EVIL, "CurrentCount": 1, "TargetCount": 1, "Status": EVIL}
    status = {"Status": "Failure" + EVIL, "Message": EVIL}
    named = {"InstanceGroupName": "g" + EVIL, "InstanceType": EVIL, "InstanceId": "i-" + EVIL, "PrivatePrimaryIp": EVIL}
    return {
        **good(),
        "DescribeCluster": cluster(ClusterStatus="Failed" + EVIL, FailureMessage=EVIL, InstanceGroups=[group]),
        "ListClusterNodes": {"ClusterNodeSummaries": [node(1, InstanceStatus=status, **named)]},
        "DescribeClusterNode": {"NodeDetails": node(2, InstanceStatus=status)},
        "ListClusterEvents": {"Events": [event(EventId="e" + EVIL, InstanceId=EVIL, Description=EVIL)]},
    }


def big() -> Dict[str, Answer]:
    status = {"Status": "Failure", "Message": LONG}
    return {
        **good(),
        "DescribeCluster": cluster(ClusterStatus="Failed", FailureMessage=LONG),
        "ListClusterNodes": {"ClusterNodeSummaries": [node(number, InstanceStatus=status) for number in range(3)]},
        "ListClusterEvents": {"Events": [event(Description=LONG)]},
        "FilterLogEvents": {"events": [{"logStreamName": "s", "timestamp": 1, "message": LONG}]},
    }


def nobody() -> Dict[str, Answer]:
    """A whole answer of the right shape: no node is listed of a cluster that is to have four."""
    return {**good(), "ListClusterNodes": {"ClusterNodeSummaries": []}}


def lengthy() -> Dict[str, Answer]:
    """Within what an answer may have, and still nothing for a screen."""
    status = {"Status": "Failure", "Message": LONG[:1_000_000]}
    return {
        **good(),
        "DescribeCluster": cluster(ClusterStatus="Failed", FailureMessage=LONG[:1_000_000]),
        "ListClusterNodes": {"ClusterNodeSummaries": [node(number, InstanceStatus=status) for number in range(3)]},
        "ListClusterEvents": {"Events": [event(Description=LONG[:1_000_000])]},
    }


WRONG: Tuple[Any, ...] = (
    [],
    None,
    5,
    "x",
    {"ClusterStatus": 5, "ClusterName": None, "InstanceGroups": "x", "ClusterArn": 7},
    {"InstanceGroups": [None, 5, {}]},
    {"ClusterNodeSummaries": [{}]},
    {"ClusterNodeSummaries": "abc"},
    {"ClusterNodeSummaries": [{"InstanceStatus": "x", "InstanceId": 5, "InstanceGroupName": []}]},
    {"Events": [{}]},
    {"Events": [{"EventTime": "x"}]},
    {"events": [{}]},
    {"events": [5]},
)
"""Answers of another shape."""

RAW: Mapping[str, Tuple[int, bytes]] = {
    "garbage": (200, b"\x1b[31m<html>\xff\xfe not json \x00"),
    "empty": (200, b""),
    "500": (500, b'{"__type":"InternalFailure","message":"\\u001b[31mboom"}'),
    "503html": (503, b"<html>\x1b[31mSlow down</html>"),
    "403": (403, json.dumps({"__type": "AccessDeniedException", "Message": "no " + EVIL}).encode()),
    "403big": (403, json.dumps({"__type": "AccessDeniedException", "Message": LONG[:5_000_000]}).encode()),
    "400weird": (400, b'{"__type":5,"message":{"a":[1]}}'),
    "redir301": (301, b"<Error><Code>PermanentRedirect</Code><Message>x</Message></Error>"),
}
"""Mode -> status and body, whatever is asked."""

SHAPED: Mapping[str, Callable[[], Dict[str, Answer]]] = {
    **{"good": good, "evil": evil, "big": big, "lengthy": lengthy, "nobody": nobody},
}
AT_ONCE: List[str] = [
    *RAW,
    *("redir", "trunc", "close", "badhdr", "nothttp", "pages", "pages2", "evil", "big", "lengthy"),
    *(f"wrong{number}" for number in range(len(WRONG))),
]
"""Modes that answer at once."""
SLOW = ["silent", "drip"]
"""Modes that do not answer, or a byte a second."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Liar

    def log_message(self, *_: object) -> None:
        return

    def any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        self.server.asked.append(operation or self.path)
        with contextlib.suppress(OSError):
            self._answer(self.server.mode, operation, body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = any

    def _answer(self, mode: str, operation: str, body: bytes) -> None:
        if mode in RAW:
            self.send(*RAW[mode])
        elif mode == "redir":
            self.send(307, b"", Location=f"{self.server.url}{self.path}")
        elif mode == "trunc":
            self.send(200, b'{"ClusterName":"de', length=5000)
            self.close_connection = True
        elif mode == "close":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif mode == "badhdr":
            self._raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nxx")
        elif mode == "nothttp":
            self._raw(b"SSH-2.0-OpenSSH_9\r\n" * 100)
        elif mode == "silent":
            self.server.over.wait(300)
        elif mode == "drip":
            self._raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not self.server.over.wait(1.0):
                self._raw(b" ")
        elif mode in ("good", *objects.MODES) and "/s3/aws4_request" in self.headers.get("Authorization", ""):
            self.server.objects.answer(self, mode, body)
        else:
            self.send(200, json.dumps(self._shaped(mode, operation)).encode())

    def _shaped(self, mode: str, operation: str) -> Any:
        if mode.startswith("wrong"):
            return WRONG[int(mode[5:])]
        found = SHAPED.get(mode, good)().get(operation, {})
        if mode.startswith("pages"):
            token = "same" if mode == "pages" else str(time.monotonic_ns())
            found = {**found, "NextToken": token, "nextToken": token}
        return found

    def endless(self) -> None:
        """A body without an end, as fast as it is taken."""
        self._raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")
        while not self.server.over.is_set():
            self.wfile.write(bytes(1 << 20))

    def _raw(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()
        self.close_connection = True

    def send(self, status: int, body: bytes, length: int = -1, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/x-amz-json-1.1", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length < 0 else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Liar(ThreadingHTTPServer):
    """`mode`: may change between two requests. `asked`: the operations, or paths, that were."""

    daemon_threads = True

    def __init__(self, mode: str = "good") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode, self.over, self.objects = mode, threading.Event(), objects.Objects()
        self.asked: List[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def handle_error(self, *_: object) -> None:
        """Who has gone before the end of an answer is nobody's error."""

    def close(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
        self._thread.join(10)
