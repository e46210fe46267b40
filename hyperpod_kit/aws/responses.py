"""The edge for AWS's answers: each is whole, bounded in size and time, and of the shape that the service model gives.

A proxy, a captive portal or a wrong AWS_ENDPOINT_URL answers too, with status 200. Without a look at the answer a list
that was cut off is an empty list, and "0 nodes" is believed. What does not pass raises UnreadableAnswer (exit 3).

botocore itself gives no bound: its read timeout is one of each read, so that a byte a second is read for ever, and a
body is read whole whatever its length.
"""

from __future__ import annotations

import json
import logging
import math
import time
from concurrent.futures import wait
from typing import Any, Callable, Iterable, Iterator, Mapping, TypeVar

from hyperpod_kit.aws.shapes import Constraint, Violation, violations
from hyperpod_kit.errors import UnreadableAnswer
from hyperpod_kit.system.bounded_thread import result_within, start_in_thread

SECONDS = 20.0
"""That one answer may take; botocore asks four times, so a silent service is given up within a minute and a half."""
SECONDS_AFTER_SILENCE = 4.0
"""The same, once a call has been given up for silence and until something is answered: a command that goes on without
what it asked for does not wait as long for each of the rest."""
QUIET = 10.0
"""Seconds after which it is said that an answer is waited for."""
UPLOAD = 64 * 1024
"""Bytes a second that a request's own body is given besides."""
LARGEST = 8 << 20
"""Bytes of an answer. FilterLogEvents gives 1 MiB at most, ListObjectsV2 a thousand keys of 1 KiB."""
PIECE = 1 << 20
"""Bytes of a streaming body that are taken at once."""
PAGES = 200
"""Pages of a list: of ListClusterNodes 20,000 nodes, several times what a HyperPod can have."""

NEEDED = frozenset(
    (
        *("ClusterArn", "ClusterStatus", "InstanceGroups", "ClusterNodeSummaries", "NodeDetails", "EventDetails"),
        *("InstanceGroupName", "InstanceId", "EventId", "EventTime", "ClusterSummaries", "ClusterName"),
    )
)
"""Members that the model requires and that we read. It also requires some that AWS leaves out, NextToken for one."""

HINT = "check that the response comes from AWS: AWS_ENDPOINT_URL, HTTPS_PROXY and the network's login page"

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class Silence:
    """Whether the last call of this process was given up because no answer came."""

    given_up = False


SILENCE = Silence()


def install_response_limits_and_checks(client: Any) -> Any:
    """Change a boto3 client so that every response is bounded in size and time and checked; return the client."""
    endpoint = client._endpoint
    endpoint.http_session = BoundedSession(endpoint.http_session, client.meta.service_model.service_name)
    client.meta.events.register("after-call", _raise_if_malformed_response)
    return client


class BoundedSession:
    """botocore's HTTP session for a `service`, whose answers end: in `seconds`, and within LARGEST bytes.

    Bodies that botocore hands on as streams (S3's objects) are bounded by who reads them: see `read_all`.
    """

    def __init__(self, session: Any, service: str, *, seconds: float = SECONDS, quiet: float = QUIET) -> None:
        self._session = session
        self._service = service
        self._seconds = seconds
        self._quiet = quiet

    def send(self, request: Any) -> Any:
        """Return the answer to a request, its body read within the limits.

        Raises UnreadableAnswer, botocore's exceptions; a timeout is one that botocore repeats.
        """
        from botocore.exceptions import ReadTimeoutError

        most = self._seconds
        if SILENCE.given_up:
            most = SECONDS_AFTER_SILENCE
        streams = request.stream_output
        request.stream_output = True  # else the session reads the body itself, whole

        def exchange() -> Any:
            response = self._session.send(request)
            if not streams:
                response._content = _read_bounded_body(response.raw, self._service)
            return response

        try:
            http_response = run_with_timeout(
                most + _content_length(request.headers) / UPLOAD, exchange, self._quiet, self._warn_still_waiting
            )
        except TimeoutError:
            logger.warning("%s: no complete response within %g s; retrying", self._service, most)
            raise ReadTimeoutError(endpoint_url=request.url, error="no complete response in time") from None
        SILENCE.given_up = False
        return http_response

    def close(self) -> None:
        self._session.close()

    def _warn_still_waiting(self) -> None:
        logger.warning("%s: no response for %g s; still waiting", self._service, self._quiet)


def run_with_timeout(
    seconds: float, work: Callable[[], Result], warn_after: float = math.inf, warn: Callable[[], None] = lambda: None
) -> Result:
    """Run `work` in a thread and return its result; call `warn` when it has taken `warn_after` seconds.

    Raises TimeoutError when it takes longer than `seconds`; its thread then goes on by itself.
    """
    call = start_in_thread(work, "aws")
    if warn_after < seconds and not wait([call], warn_after).done:
        warn()
        seconds -= warn_after
    return result_within(call, seconds)


def read_bounded_body(body: Any, what: str, *, largest: int, seconds: float) -> bytes:
    """Return all bytes of a streaming `body`. Raises UnreadableAnswer when it is larger or takes longer."""
    data = bytearray()
    stream_bounded_body(body, what, data.extend, largest=largest, seconds=seconds)
    return bytes(data)


def stream_bounded_body(
    body: Any, what: str, consume: Callable[[bytes], object], *, largest: int, seconds: float
) -> None:
    """Pass a streaming `body` to `consume` piece by piece, so that no more than a piece is in memory.

    Raises UnreadableAnswer when it is larger than `largest` or takes longer than `seconds`.
    """
    started_at = time.monotonic()

    def read() -> None:
        remaining = largest
        while time.monotonic() - started_at <= seconds:  # who has given it up reads no further
            piece = body.read(PIECE)
            if not piece:
                return
            remaining -= len(piece)
            if remaining < 0:
                raise UnreadableAnswer(f"{what}: it is larger than {largest >> 20} MiB", hint=HINT)
            consume(piece)
        raise TimeoutError

    try:
        run_with_timeout(seconds, read)
    except TimeoutError:
        taken = time.monotonic() - started_at
        raise UnreadableAnswer(f"{what}: its data did not arrive within {taken:.0f} s", hint=HINT) from None


def fetch_pages(
    what: str, fetch: Callable[[Mapping[str, str]], Mapping[str, Any]], token_name: str, *, most: int = PAGES
) -> Iterator[Mapping[str, Any]]:
    """Fetch and yield every page of a list; `fetch` gets the arguments that name the next one, `token` is their
    name.

    Raises UnreadableAnswer where a page is said to follow itself, or the list has no end.
    """

    def each() -> Iterator[Mapping[str, Any]]:
        arguments: dict[str, str] = {}
        tokens: set[str] = set()
        while True:
            page = fetch(arguments)
            yield page
            following = page.get(token_name)
            if not following:
                return
            if following in tokens:
                raise UnreadableAnswer(f"{what}: the response cannot be read: its pages form a cycle", hint=HINT)
            tokens.add(following)
            arguments = {token_name: following}

    return _limit_page_count(what, each(), most)


def paginate(client: Any, operation: str, **request: Any) -> Iterator[Mapping[str, Any]]:
    """Every page that botocore's paginator gives, which knows a page that follows itself, and no end.

    Raises UnreadableAnswer where the list has none, botocore's exceptions.
    """
    return _limit_page_count(operation, client.get_paginator(operation).paginate(**request), PAGES)


def _limit_page_count(what: str, source: Iterable[Mapping[str, Any]], max_pages: int) -> Iterator[Mapping[str, Any]]:
    for number, page in enumerate(source):
        if number == max_pages:
            raise UnreadableAnswer(f"{what}: the response cannot be read: more than {max_pages} pages", hint=HINT)
        yield page


def _content_length(headers: Mapping[str, Any]) -> int:
    length = headers.get("X-Amz-Decoded-Content-Length") or headers.get("Content-Length") or 0
    return int(length)


def _read_bounded_body(raw: Any, service: str) -> bytes:
    data = bytearray()
    for chunk in raw.stream(64 << 10):
        data += chunk
        if len(data) > LARGEST:
            raise UnreadableAnswer(
                f"{service}: the response cannot be read: it is larger than {LARGEST >> 20} MiB", hint=HINT
            )
    return bytes(data)


def _raise_if_malformed_response(http_response: Any, model: Any, **_: Any) -> None:
    """Raise UnreadableAnswer if the answer of a service that speaks JSON does not fit the model (hook after a
    call).

    XML has a parser that says so itself.
    """
    if http_response.status_code >= 300 or model.service_model.metadata.get("protocol") != "json":
        return
    shape = model.output_shape
    if shape is None or http_response.raw is None:  # botocore's Stubber answers without a wire
        return
    wrong = _describe_fault_or_empty(http_response.content, shape)
    if wrong:
        raise UnreadableAnswer(f"{model.name}: the response cannot be read: {wrong}", hint=HINT)


def _describe_fault_or_empty(content: bytes, shape: Any) -> str:
    """Say what is wrong with a response; "" for nothing."""
    try:
        response = json.loads(content)
    except (ValueError, RecursionError) as err:
        return f"{len(content)} bytes that are not JSON ({type(err).__name__})"
    if not isinstance(response, dict):
        return f"a JSON {type(response).__name__}, expected an object"
    if response and shape.members and not set(response) & set(shape.members):
        return "it has none of this response's members"
    for violation in violations(shape, response, null_is_absent=True):
        message = _describe_violation_if_relevant(violation)
        if message:
            return message
    return ""


def _describe_violation_if_relevant(violation: Violation) -> str:
    if violation.path:
        kind, name = violation.path[-1]
    else:
        kind, name = ("member", "")
    where = ".".join(str(part) for _, part in violation.path)
    if violation.constraint is Constraint.TYPE:
        return f"{where} is a {type(violation.value).__name__}, expected a {violation.shape.type_name}"
    if violation.constraint is Constraint.REQUIRED and kind == "member" and name in NEEDED:
        return f"{where} is missing"
    return ""
