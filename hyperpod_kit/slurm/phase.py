"""What a rank is doing, as it reports it itself.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What a rank is doing. START: it has reported nothing; FIRST_STEPS is not told, it follows from the steps."""

    START = "start"
    RESTORE = "restore"
    FIRST_STEPS = "first-steps"
    STEP = "step"
    SAVE = "save"
    EVALUATION = "evaluation"
    CLOSE = "close"
    OVER = "over"
