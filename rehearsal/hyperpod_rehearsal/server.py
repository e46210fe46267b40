"""The one endpoint of a rehearsal: S3 (path style), SageMaker, EFS and CloudWatch Logs on the same port."""

from __future__ import annotations

import threading
import uuid
from typing import Mapping, Sequence

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.efs import protocol as efs_protocol
from hyperpod_rehearsal.efs.service import EfsService
from hyperpod_rehearsal.endpoint import unsupported_services
from hyperpod_rehearsal.endpoint.front_door import Listener
from hyperpod_rehearsal.endpoint.s3_handler import S3Handler
from hyperpod_rehearsal.logs import protocol as logs_protocol
from hyperpod_rehearsal.logs.service import LogsService
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.sagemaker.api import ControlPlane
from hyperpod_rehearsal.sagemaker.protocol import TARGET_PREFIX, handle_call


class EndpointHandler(S3Handler):
    """One connection of any AWS client."""

    control: ControlPlane | None = None
    efs: EfsService | None = None
    logs: LogsService | None = None

    def do_GET(self) -> None:
        """Route a request by its X-Amz-Target and the service in its signature's scope."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        body, target = self.read_body or b"", headers.get("x-amz-target", "")
        service = ""
        if self.claim is not None:
            service = self.claim.service
        if service == "s3" and not target:
            self.serve_s3()
        elif service == "sagemaker" and target.startswith(TARGET_PREFIX):
            if self.is_admin_or_send_refusal(f"sagemaker:{target[len(TARGET_PREFIX) :]}"):
                self._serve_sagemaker(target, body)
        elif service == "elasticfilesystem" and self.efs is not None and self.path.startswith(efs_protocol.PREFIX):
            if self.is_admin_or_send_refusal("elasticfilesystem:*"):
                self._serve_efs(self.efs, body)
        elif service == "logs" and self.logs is not None and target.startswith(logs_protocol.TARGET_PREFIX):
            if self.is_admin_or_send_refusal(f"logs:{target[len(logs_protocol.TARGET_PREFIX) :]}"):
                self._send_response_with_request_id(
                    *_json_1_1_response(logs_protocol.handle_call(self.logs, target, body))
                )
        else:
            self._send_response_with_request_id(*unsupported_services.unsupported_service_response(headers, body))

    def read_only_prefixes(self, bucket: str) -> Sequence[str]:
        """Return, for a node's request, the prefixes of lifecycle scripts.

        Whoever may write those is root on the next node.
        """
        if self.control is None or self.claim is None or not self.claim.key.node:
            return ()
        return [prefix for name, prefix in self.control.lifecycle_script_buckets_and_prefixes() if name == bucket]

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _serve_sagemaker(self, target: str, body: bytes) -> None:
        if self.control is None:
            response = 400, b'{"__type": "UnknownOperationException", "message": "no control plane here"}'
        else:
            response = handle_call(self.control, target, body)
        self._send_response_with_request_id(*_json_1_1_response(response))

    def _serve_efs(self, service: EfsService, body: bytes) -> None:
        status, more, data = efs_protocol.handle_call(service, self.command, self.path, body)
        self._send_response_with_request_id(status, {"Content-Type": "application/json", **more}, data)

    def _send_response_with_request_id(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.send_response(status)
        self.send_header("x-amzn-RequestId", str(uuid.uuid4()))
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _json_1_1_response(response: tuple[int, bytes]) -> unsupported_services.HttpResponse:
    return response[0], {"Content-Type": "application/x-amz-json-1.1"}, response[1]


class Server:
    """Listeners that share a store and a control plane. `port`: of the first one."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self.port: int = listeners[0].server_address[1]
        self._threads = [
            threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            for listener in listeners
        ]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        """Endpoint URL of the first listener."""
        host = self._listeners[0].server_address[0]
        return f"http://{host if isinstance(host, str) else host.decode()}:{self.port}"

    def close(self) -> None:
        """Stop listening; connections that are open end with their clients."""
        for listener in self._listeners:
            listener.shutdown()
            listener.server_close()
        for thread in self._threads:
            thread.join(timeout=5)


def serve(
    addresses: Sequence[tuple[str, int]],
    store: StoredBuckets,
    control: ControlPlane | None = None,
    efs: EfsService | None = None,
    logs: LogsService | None = None,
    *,
    keys: Mapping[str, Key],
) -> Server:
    """Start serving on every (host, port); port 0 takes a free one, and later zeros take the same.

    `keys`: by access key id, those that may sign. Raises OSError when an address cannot be bound. Without
    `control`, `efs` and `logs` only S3 is served.
    """
    services = {"store": store, "control": control, "efs": efs, "logs": logs}
    handler = type("Handler", (EndpointHandler,), {**services, "keys": keys})
    listeners: list[Listener] = []
    try:
        for host, port in addresses:
            if port == 0 and listeners:
                port = listeners[0].server_address[1]
            listeners.append(Listener((host, port), handler))
    except OSError:
        for listener in listeners:
            listener.server_close()
        raise
    return Server(listeners)
