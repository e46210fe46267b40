"""What a second of a job was spent on. Every second from its submission to its end has one of these names.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import enum
from typing import Dict


class TimeCause(enum.Enum):
    """In the order in which a job is shown: what lasted first, what nobody knows last."""

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
"""What a job may do without holding a node."""
