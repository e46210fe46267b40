"""Which of several Slurm controllers does what must be done once: timers run on each of them.

The first that answers is as good as the one in control, since slurmctld's commands go to that one from everywhere.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Sequence, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner

PING_WITHIN = 30.0
"""Seconds; slurmctld's own MessageTimeout counts for each controller that does not answer."""
_LINE = re.compile(r"^Slurmctld\(\w+\) at (\S+) is (UP|DOWN)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class SlurmHead:
    """A controller as `scontrol ping` lists it, in the order of slurm.conf. `host`: its short name."""

    host: str
    up: bool


def parse_ping(output: str) -> Tuple[SlurmHead, ...]:
    """Parse the output of `scontrol ping`; lines of another form are skipped."""
    return tuple(SlurmHead(host.split(".")[0], word == "UP") for host, word in _LINE.findall(output))


def other_acting_controller(heads: Sequence[SlurmHead], local: str) -> str:
    """Return the name of the controller that acts in place of `local`, the first that is up; "" where `local`
    acts itself, or nothing says who else would."""
    if len(heads) < 2 or local not in [head.host for head in heads]:
        return ""
    first = next((head.host for head in heads if head.up), local)
    if first == local:
        return ""
    return first


def query_other_acting_controller(runner: Runner, scontrol: str = "scontrol") -> str:
    """Run `scontrol ping` and return the controller that acts in place of this machine; "" where this one
    acts, or scontrol cannot be run."""
    try:
        output = runner.run([scontrol, "ping"], timeout=PING_WITHIN, check=False).stdout
    except RunError:
        return ""
    return other_acting_controller(parse_ping(output), socket.gethostname().split(".")[0])
