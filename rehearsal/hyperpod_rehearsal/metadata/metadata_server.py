"""The metadata services of all nodes: each listens in its node's network, where only that node can reach it.

The address 169.254.169.254 may be this machine's own cloud's, so that it must never be set on the bridge. The daemon
listens inside the node's network namespace instead: a socket stays in the namespace in which it was made.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any, Callable, Dict, Tuple

from hyperpod_rehearsal.endpoint.front_door import Listener
from hyperpod_rehearsal.metadata.instance_metadata import ADDRESS, InstanceIdentity, Metadata

PORT = 80
CLONE_NEWNET = 0x40000000
PATIENCE = 10.0
"""Seconds for which a client may keep a connection without a request."""
MAX_CONNECTIONS = 32
"""Connections of one node at a time; one more, and the oldest is closed: the daemon's descriptors are for all nodes."""
_libc = ctypes.CDLL(None, use_errno=True)


def listen_in_namespace(netns: str) -> socket.socket:
    """A listening socket on the metadata address of a named network namespace. Raises OSError."""

    def enter() -> socket.socket:
        with open(f"/run/netns/{netns}") as handle:
            if _libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), netns)
        return socket.create_server((ADDRESS, PORT), backlog=64)

    # Namespaces are a thread's: this one ends at once, and takes its view of the network with it.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(enter).result()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "EC2ws", ""
    timeout = PATIENCE
    metadata: Metadata

    def do_GET(self) -> None:
        status, headers, body = self.metadata.respond(
            self.command, self.path, {name.lower(): value for name, value in self.headers.items()}
        )
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing: the daemon's log is for what happens to machines."""


class _Listener(Listener):
    max_unauthenticated = MAX_CONNECTIONS

    def __init__(self, listening: socket.socket, metadata: Metadata) -> None:
        handler = type("Handler", (_Handler,), {"metadata": metadata})
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        threading.Thread(target=self._accept_connections, daemon=True, name="metadata").start()

    def _accept_connections(self) -> None:
        """Accept connections until the socket is closed.

        Unlike serve_forever this blocks in accept: there is one listener for every node.
        """
        while True:
            try:
                request, client = self.socket.accept()
            except OSError:  # closed
                return
            self.process_request(request, client)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class MetadataServers:
    """One service for each node that was started and not stopped. `listen`: of a network namespace's name."""

    def __init__(self, listen: Callable[[str], socket.socket] = listen_in_namespace) -> None:
        self._listen = listen
        self._running: Dict[str, Tuple[_Listener, Metadata]] = {}

    def start(self, netns: str, instance: InstanceIdentity) -> None:
        """Start the metadata service of an instance in its network namespace. Raises OSError."""
        metadata = Metadata(instance)
        self._running[instance.id] = _Listener(self._listen(netns), metadata), metadata

    def set_spot_end(self, instance_id: str, at: float) -> None:
        """Let the service of an instance say that EC2 takes it back at that time, Unix seconds."""
        if instance_id in self._running:
            self._running[instance_id][1].spot_end = at

    def stop(self, instance_id: str) -> None:
        """End an instance's service; repeatable. Its network namespace would live on with the socket."""
        running = self._running.pop(instance_id, None)
        if running is not None:
            running[0].close()
