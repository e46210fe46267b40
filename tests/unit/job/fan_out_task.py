"""A task of a fan-out with which something is wrong: FAN_OUT_DOES says what.

die       SIGKILL when it is asked for its third chunk
flip      the second chunk that it sends has a changed byte
lie       every chunk that it sends has one
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from hyperpod_kit.checkpoint.agent.wire.wire import Wire
from hyperpod_kit.job.fan_out import task

does = os.environ["FAN_OUT_DOES"]
give, send = task.FanOutNode.chunk_for_peer_reading_if_absent, Wire.send_all
count = 0


def given(self: Any, number: int) -> Any:
    global count
    count += 1
    if does == "die" and count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return give(self, number)


def sent(self: Any, data: memoryview) -> None:
    if does == "lie" or (does == "flip" and count == 2):
        data = memoryview(bytearray(data))
        data[len(data) // 2] ^= 1
    send(self, data)


task.FanOutNode.chunk_for_peer_reading_if_absent = given  # type: ignore[assignment,method-assign]
Wire.send_all = sent  # type: ignore[method-assign]
sys.exit(task.main(sys.argv[1], sys.argv[2], os.environ))
