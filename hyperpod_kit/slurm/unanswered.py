"""Why Slurm could not be asked: what stands between this node and slurmctld, told from what its commands have printed.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from hyperpod_kit.errors import RunError, Unreachable


class Barrier(Enum):
    """What keeps the answer away. NO_MUNGED: this node's munged; CREDENTIAL: slurmctld was reached and does not take
    this node's credentials; CONTROLLER: slurmctld, or the way there; NO_PROGRAM: there is no Slurm here."""

    NO_PROGRAM = "no-program"
    NO_MUNGED = "munge-down"
    CREDENTIAL = "credential-refused"
    CONTROLLER = "controller-silent"


@dataclass(frozen=True)
class Unanswered:
    """The barrier, what was seen of it, and the next command to type."""

    barrier: Barrier
    detail: str
    remedy: str

    def to_unreachable_error(self) -> Unreachable:
        return Unreachable(self.detail, hint=self.remedy)


COMPARE = "compare on this node and on the controller: sha256sum /etc/munge/munge.key; date; systemctl status munge"

_LOCAL = re.compile(r"Munge encode failed: Failed to (?:access|connect to) \"?([^\":]+)\"?: ([^(\n]+)")
_FOREIGN = re.compile(r"Munge (?:en|de)code failed: ([^(\n]+)|Protocol authentication error")
_CLOSED = re.compile(r"Zero Bytes were transmitted or received")
"""What a client prints whose credential slurmctld could not decode: it hangs up without a word."""


def diagnose_slurm_command_failure(err: RunError) -> Unanswered:
    """Return what a failed Slurm command's output says of the way to slurmctld, and what to do. Pure."""
    output = err.stderr + err.stdout
    if err.returncode == 127:
        return Unanswered(
            Barrier.NO_PROGRAM, f"cannot query Slurm: {err.message}", "run it where scontrol works: a login node"
        )
    local = _LOCAL.search(output)
    if local:
        return Unanswered(
            Barrier.NO_MUNGED,
            f"munged does not run on this node ({local.group(1)}: {local.group(2).strip()}), so no Slurm command works",
            "sudo systemctl start munge",
        )
    foreign = _FOREIGN.search(output)
    if foreign:
        return Unanswered(
            Barrier.CREDENTIAL,
            f"cannot query Slurm: {(foreign.group(1) or foreign.group(0)).strip()}: munge of this node and of the "
            "controller do not agree",
            COMPARE,
        )
    if _CLOSED.search(output):
        return Unanswered(
            Barrier.CREDENTIAL,
            "cannot query Slurm: slurmctld takes the connection and hangs up, as it does when this node's munge.key or "
            "clock is not its own",
            COMPARE,
        )
    return Unanswered(
        Barrier.CONTROLLER, f"cannot query Slurm: {err.message}", "on the controller: systemctl status slurmctld"
    )
