"""Questions that may fail one by one: an answer, or a note of what could not be asked and why."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional, TypeVar

from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.aws.errors import DENIED
from hyperpod_kit.errors import AwsError, Unreachable
from hyperpod_kit.preflight.facts import NotQueried, Queried

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds in which a call that AWS turns away is repeated: there are many, and a person waits for all of them."""


class QueryClient:
    """Makes calls and keeps what failed. `make`: (service class, region) -> a client, made once each.

    Used by several threads; clients are made under a lock, because boto3's sessions are no thread's friends.
    """

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._clients: dict[tuple[Callable[..., Any], str], Any] = {}
        self._lock = threading.Lock()
        self.not_queried: list[NotQueried] = []

    def service_client(self, service: Callable[..., T], region: str) -> T:
        """Return the client of a service in a region, made once. Raises Unreachable."""
        with self._lock:
            key = (service, region)
            if key not in self._clients:
                self._clients[key] = service(region, connections=self._connections)
            made: T = self._clients[key]
            return made

    def query_or_record_failure(
        self, action: str, config_path: str, unchecked_text: str, call: Callable[[], T]
    ) -> Queried[T]:
        """Return what `call` returns; when it fails, record and return a NotQueried, which `action`, `path` and
        `what` explain.

        Throttled calls are repeated first.
        """
        try:
            return retry_while_throttled(call, patience=PATIENCE)
        except AwsError as err:
            failed = NotQueried(action, config_path, unchecked_text, _shorten_message(err.message), err.code in DENIED)
        except Unreachable as err:
            failed = NotQueried(action, config_path, unchecked_text, _shorten_message(err.message), False)
        with self._lock:
            self.not_queried.append(failed)
        return failed


def _shorten_message(message: str, longest: int = 200) -> str:
    """Return AWS's message without the tail that EC2 adds for its own decoding, cut to `longest` characters."""
    text = message.split(" Encoded authorization failure message")[0].rstrip(". ")
    if len(text) <= longest:
        return text
    return text[:longest] + "…"


def mount_or_cluster_region(mount_region: Optional[str], cluster_region: str) -> str:
    """Return the region of a mount's file system: the mount's own, else the cluster's."""
    return mount_region or cluster_region
