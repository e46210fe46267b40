"""Calls that AWS turns away are repeated, later and later: such a call has done nothing.

botocore repeats one three times within some seconds. A hundred lookups side by side, or a whole team at work on one
account, need more patience than that.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Callable, TypeVar

from hyperpod_kit.errors import Throttled
from hyperpod_kit.system.wait import BackOff

PATIENCE = 60.0
PAUSES = BackOff(1.0, 8.0, by_chance=0.5)
Response = TypeVar("Response")

logger = logging.getLogger(__name__)


def retry_while_throttled(
    call: Callable[[], Response],
    *,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> Response:
    """Return what `call` returns; while AWS throttles it (Throttled), call it again after a pause that grows.

    Raises Throttled when it is still throttled after `patience` seconds, and whatever else `call` raises.
    """
    deadline = clock() + patience
    failures = 0
    while True:
        try:
            return call()
        except Throttled as err:
            failures += 1
            if clock() + PAUSES.seconds_without_jitter(failures) > deadline:
                raise
            if failures == 1:
                logger.warning("%s; retrying for up to %g s", err.message, patience)
        sleep(PAUSES.pause_seconds(failures, chance))
