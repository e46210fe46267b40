"""HTTP in front of the store: parse, break on demand, route, send, log."""

from __future__ import annotations

import time
import uuid
from typing import Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from hyperpod_rehearsal.endpoint.front_door import FrontDoor
from hyperpod_rehearsal.s3.body import RequestBody
from hyperpod_rehearsal.s3.bucket_requests import handle_bucket_request, list_buckets
from hyperpod_rehearsal.s3.control_requests import CONTROL_PREFIX, handle_fault_or_request_log_call
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.faults import Effect, LoggedRequest, Throttle
from hyperpod_rehearsal.s3.messages import Response, S3Request, xml_response
from hyperpod_rehearsal.s3.object_requests import handle_object_request
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.s3.xml import error_document


def route_request(store: StoredBuckets, request: S3Request) -> Response:
    """The answer to a request. Raises S3Error."""
    if not request.bucket:
        if request.method != "GET":
            raise S3Error(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
        return list_buckets(store)
    if not request.key:
        return handle_bucket_request(store, request)
    if request.method not in ("GET", "HEAD") and not request.may_write(request.key):
        raise S3Error(403, "AccessDenied", "An explicit deny: nodes may only read what nodes are made from")
    return handle_object_request(store, request)


class S3Handler(FrontDoor):
    """One connection of an S3 client, path style. Set `store` in a subclass."""

    store: StoredBuckets
    server_version = "AmazonS3"
    sys_version = ""
    disable_nagle_algorithm = True
    rbufsize = 1 << 18

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr: the store keeps the log."""

    def do_GET(self) -> None:
        """Every method goes the same way."""
        self.serve_s3()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def serve_s3(self) -> None:
        """Execute one S3 request with the faults that hit it, send the response and log the request."""
        started = time.monotonic()
        url = urlsplit(self.path)
        path = unquote(url.path, errors="surrogateescape").lstrip("/")
        bucket, _, key = path.partition("/")
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = S3Request(
            self.command,
            bucket,
            key,
            dict(parse_qsl(url.query, keep_blank_values=True)),
            headers,
            RequestBody(self.rfile, headers, self.body_signature),
            self.read_only_prefixes(bucket),
        )
        if bucket == CONTROL_PREFIX:
            if not self.is_admin_or_send_refusal("rehearsal:Control"):
                self.close_connection = True
                return
            self.send_s3_response(handle_fault_or_request_log_call(self.store, request), Effect())
            return
        effect = self.store.faults.consume_matching(self.command, path)
        request.body.throttle = Throttle(effect.bandwidth)
        status = 0
        sent = 0
        try:
            time.sleep(effect.delay)
            response = self.execute_and_build_response(request, effect)
            status = response.status
            if not request.body.drain_for_connection_reuse():
                self.close_connection = True
            sent = self.send_s3_response(response, effect)
        except OSError:
            self.close_connection = True  # the client went away
        finally:
            if self.command in ("PUT", "POST"):
                moved = request.body.read_bytes
            else:
                moved = sent
            self.store.requests.add(
                LoggedRequest(
                    time.time() - (time.monotonic() - started),
                    self.command,
                    path,
                    url.query,
                    status,
                    moved,
                    time.monotonic() - started,
                )
            )

    def read_only_prefixes(self, bucket: str) -> Sequence[str]:
        """Return the key prefixes of a bucket that the requester may only read."""
        return ()

    def execute_and_build_response(self, request: S3Request, effect: Effect) -> Response:
        """Execute the request and return its response, an error document when it fails."""
        try:
            if effect.status:
                raise S3Error(effect.status, effect.code, "a fault of the rehearsal")
            return route_request(self.store, request)
        except (ConnectionError, TimeoutError):
            raise  # the client's side broke, not ours
        except Exception as err:  # a full disk, say: the client must get an answer
            if isinstance(err, S3Error):
                failure = err
            else:
                failure = S3Error(500, "InternalError", f"{type(err).__name__}: {err}")
            return xml_response(error_document(failure, urlsplit(self.path).path, uuid.uuid4().hex), failure.status)

    def send_s3_response(self, response: Response, effect: Effect) -> int:
        """Send an answer; returns the bytes of the body that were sent. Raises OSError when the connection ends."""
        if effect.cut and not response.ranges:
            raise ConnectionAbortedError("a fault of the rehearsal")
        self.send_response(response.status)
        self.send_header("x-amz-request-id", uuid.uuid4().hex[:16].upper())
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.status not in (204, 304) and "Content-Length" not in response.headers:
            self.send_header("Content-Length", str(response.length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return 0
        self.wfile.write(response.body)
        self.wfile.flush()
        sent, throttle = len(response.body), Throttle(effect.bandwidth)
        try:
            for item in response.ranges:
                offset, end = item.offset, item.offset + item.length
                while offset < end:
                    count = min(end - offset, throttle.chunk_size)
                    if effect.cut:
                        self.connection.sendfile(item.file, offset, count // 2)
                        raise ConnectionAbortedError("a fault of the rehearsal")
                    throttle.count_and_wait(count)  # before it is sent: the client must not be done too early
                    sent_now = self.connection.sendfile(item.file, offset, count)
                    if sent_now == 0:
                        raise OSError("a blob is shorter than its document says")
                    offset += sent_now
                    sent += sent_now
        finally:
            for item in response.ranges:
                item.file.close()
        return sent
