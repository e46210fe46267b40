"""Slurm's accounting: which job of which user ran on which node when.

`sacct -a -n -P -X -o JobID,UID,User,NodeList,Start,End` with SLURM_TIME_FORMAT=%s. A record without a job gets the one
job that its user had on that node then; with several it gets none, and says how many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Iterator

from hyperpod_kit.slurm.hostlist import expand

COMMAND = ("sacct", "-a", "-n", "-P", "-X", "-o", "JobID,UID,User,NodeList,Start,End")
_NUMBER = re.compile("[0-9]{1,18}")
FOREVER = 4e9
"""End of a job that still runs."""


@dataclass(frozen=True)
class SlurmJob:
    """One job on one node."""

    job: str
    uid: int
    user: str
    host: str
    start: float
    end: float


def parse_sacct_jobs_per_node(lines: Iterable[str]) -> Iterator[SlurmJob]:
    """Parse one job for each node of each line; lines of what never ran are passed over."""
    for line in lines:
        fields = line.rstrip("\n").split("|")
        if len(fields) != 6 or not _NUMBER.fullmatch(fields[1]) or not _NUMBER.fullmatch(fields[4]):
            continue
        end = FOREVER
        if _NUMBER.fullmatch(fields[5]):
            end = float(fields[5])
        try:
            hosts = expand(fields[3])
        except ValueError:
            continue
        for host in hosts:
            yield SlurmJob(fields[0], int(fields[1]), fields[2], host, float(fields[4]), end)
