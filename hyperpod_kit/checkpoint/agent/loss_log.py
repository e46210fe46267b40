"""What a flush gives up is in the journal before it goes: a flush that is killed in the middle has said what is lost.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os

from hyperpod_kit import audit


def record_loss_in_audit_log(run: str, lost: str) -> None:
    """Record that these captures of a run are given up. To be called before the first of them is removed."""
    audit.record_root_action_in_journal(
        "gave up", f"captures of run {run}", f"LOST: {lost}", asked_by="checkpoint flush", owner=f"uid {os.getuid()}"
    )
