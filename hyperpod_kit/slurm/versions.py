"""What differs between the Slurms that are known here: 20.11 to 26.05, a constant for each difference.

Seen with 22.05.8, 24.11.5 and 26.05.5 (Debian 12, 13 and testing); the versions between from SchedMD's CHANGELOG and
the sources of each. What is the same in all of them is written nowhere else than where it is used: the fields of
squeue, hetjob, `scontrol requeue`, exit codes, words for unknown jobs.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from typing import Tuple

Version = Tuple[int, int]

NEWEST: Version = (26, 5)
"""The newest of which anything is known: what a later one does not print may have another form there."""

LISTED_HOOKS: Version = (24, 11)
"""From here `scontrol show config` prints `Prolog[0] =`, a line a program, and no line for a hook that is not set; a
hook that slurm.conf names twice runs twice, where before the last one counted."""

MAX_BATCH_REQUEUE: Version = (23, 2)
"""From here MaxBatchRequeue is a setting; before, slurmctld does not start with it (5, compiled in)."""

APART_TIMEOUTS: Version = (25, 5)
"""From here a Prolog and an Epilog may have a bound each; before, slurmctld does not start with PrologTimeout.
PrologEpilogTimeout, which is what our slurm.conf has, counts in all of them."""

REQUEUE_DELAY: Version = (25, 11)
"""From here SchedulerParameters has `requeue_delay=`; without it, as before, a requeued job waits for cred_expire.
Earlier ones start with it, and pay no heed."""

EXPEDITED_REQUEUE: Version = (25, 11)
"""From here `sbatch --requeue=expedite`; the job is held when it ends with another code than 0 and no Epilog has
failed (seen in the sources of 26.05)."""

HOLDS_BY_REASON = re.compile(r"drain|down|fail|not_resp|maint|reboot|\*", re.IGNORECASE)
"""States of a node in which its reason counts. In all others it says nothing: 24.11 leaves the reason standing when the
node is resumed or undrained (and prints it for an idle node), where 22.05 and 26.05 take it away."""

ONE_HOOK_TIMEOUT = "prologepilogtimeout"
HOOK_TIMEOUTS = ("prologtimeout", "epilogtimeout")
"""Settings as `job doctor` has them, in lower case. From APART_TIMEOUTS on the pair is printed where the two differ,
and the one setting where they do not."""

CRED_EXPIRE = 120
"""Seconds, where AuthInfo has none."""

_STEP = re.compile(r"[0-9]{1,9}")


def parse_major_minor_or_zero(text: str) -> Version:
    """(22, 5) of `22.05.8`, (0, 0) of what is no version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match:
        return (int(match.group(1)), int(match.group(2)))
    return (0, 0)


def format_version(version: Version) -> str:
    """`22.05` of (22, 5)."""
    return f"{version[0]}.{version[1]:02}"


def srun_step_number_or_empty(text: str) -> str:
    """Return the number of one of srun's steps, "" for none: 26.05 gives the batch script the step id -5 in
    its own environment, where all before it have no SLURM_STEP_ID there."""
    if _STEP.fullmatch(text):
        return text
    return ""
