"""The causes of a job's time: every second from its submission to its end belongs to exactly one of them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import enum
from typing import Dict


class TimeCause(enum.Enum):
    """A cause of time, in the order of reports: steps that lasted first, time without a known cause last."""

    LASTED = "lasted"
    TWICE = "twice"
    START_UP = "start-up"
    RESTORE = "restore"
    SAVES = "saves"
    DATA = "data"
    HANG = "hang"
    BACK_OFF = "back-off"
    NODES = "nodes"
    QUEUE = "queue"
    CLOSE = "close"
    UNATTRIBUTED = "unknown"


LABELS: Dict[TimeCause, str] = {
    TimeCause.LASTED: "steps that lasted",
    TimeCause.TWICE: "steps done twice",
    TimeCause.START_UP: "start-up",
    TimeCause.RESTORE: "restore",
    TimeCause.SAVES: "stall of saves",
    TimeCause.DATA: "waiting for data",
    TimeCause.HANG: "hang, detection",
    TimeCause.BACK_OFF: "back-off",
    TimeCause.NODES: "waiting for nodes",
    TimeCause.QUEUE: "in the queue",
    TimeCause.CLOSE: "close",
    TimeCause.UNATTRIBUTED: "unknown",
}

WAITING = (TimeCause.QUEUE, TimeCause.NODES)
"""Causes of time in which a job need not hold a node."""
