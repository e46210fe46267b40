"""Ask many nodes the same thing at once; one that cannot be asked is an answer too."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import Callable, NamedTuple, Optional, Sequence, TypeVar

from hyperpod_kit.remote.target import NodeTarget

BUSY = 48
"""Nodes that are being talked to at once: a login costs milliseconds of processor time here."""

PATIENCE = 0.5
"""Seconds after which a node that is still being asked is thought to keep us waiting, and another one is begun."""

MOST = 1024
"""Nodes that are waited for at once. A thread that waits costs some tens of KiB."""

SPARE_DESCRIPTORS = 100
"""Of those that this process may open, kept for everything but connections."""

Response = TypeVar("Response")


class SkipReason(NamedTuple):
    """Why a node cannot be asked, and what to do about it."""

    error: str
    hint: str = ""


def reason_if_not_running(target: NodeTarget) -> Optional[SkipReason]:
    """Return why AWS says that a node need not be queried; None for one that runs."""
    if target.status == "Running":
        return None
    return SkipReason(f"the node is {target.status}", "hyperpod-kit wait")


def reason_to_skip(target: NodeTarget) -> Optional[SkipReason]:
    """Return why a node cannot be queried: it does not run, or has no address."""
    if target.address:
        missing = None
    else:
        missing = SkipReason("AWS reports no address for the node")
    return reason_if_not_running(target) or missing


def query_all(
    targets: Sequence[NodeTarget],
    query: Callable[[NodeTarget], Response],
    progress: Callable[[Response], None],
    *,
    descriptors: int = 1,
) -> list[Response]:
    """Query all targets at once and return the responses in their order; `progress` gets each in the caller's thread.

    Nodes that keep us waiting hold up no others: a thousand that hang take little longer than one. `descriptors`: how
    many files one question keeps open. An exception of `query` is raised here.
    """
    most = max(1, min(MOST, (_descriptor_limit() - SPARE_DESCRIPTORS) // descriptors))
    responses: dict[int, Response] = {}
    done: queue.SimpleQueue[tuple[int, Optional[Response], Optional[BaseException]]] = queue.SimpleQueue()
    started_at: dict[int, float] = {}
    waiting = deque(enumerate(targets))

    def work(number: int, target: NodeTarget) -> None:
        try:
            done.put((number, query(target), None))
        except BaseException as err:
            done.put((number, None, err))

    while waiting or started_at:
        now = time.monotonic()
        young = sorted(since for since in started_at.values() if now - since < PATIENCE)
        while waiting and len(young) < BUSY and len(started_at) < most:
            number, target = waiting[0]
            try:
                # A daemon: after Ctrl-C nobody waits for a node, not even the interpreter's end.
                threading.Thread(target=work, args=(number, target), daemon=True).start()
            except RuntimeError:  # this process may have no more threads
                if not started_at:
                    raise
                most = len(started_at)
                break
            waiting.popleft()
            started_at[number] = now
            young.append(now)
        more = waiting and len(started_at) < most
        try:
            wait_seconds = None
            if more:
                wait_seconds = max(0.01, young[0] + PATIENCE - now)
            number, response, err = done.get(timeout=wait_seconds)
        except queue.Empty:
            continue
        del started_at[number]
        if err is not None:
            raise err
        responses[number] = response  # type: ignore[assignment]
        progress(responses[number])
    return [responses[number] for number in range(len(targets))]


def _descriptor_limit() -> int:
    """Return how many files this process may have open."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST + SPARE_DESCRIPTORS
    return soft
