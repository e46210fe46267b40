"""Captures of dead runs that nobody came for within a day, flushed where no timer of the node's does it.

An agent looks for them once at its start, and has a process of its own flush them: the storage of another run may hang.
What cannot be saved is given up then, so that shared memory does not fill up; the trainer that starts here is told, and
the system's log.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import sys
from typing import List, Sequence

from hyperpod_kit.checkpoint.agent.partner import partner_memory
from hyperpod_kit.checkpoint.agent.persist.priority import lower_cpu_and_io_priority
from hyperpod_kit.checkpoint.agent.shm import capture_age, node_tiers, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.capture_age import MAX_AGE, Clock
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES
from hyperpod_kit.system import process

LIMIT = 3600.0
"""Seconds that the flush may take, as the Epilog's unit."""

_NO_JOB = "none"
"""A job's number that no job has: only what is older than MAX_AGE is flushed."""


def has_expired_or_undated_snapshots(
    folders: Sequence[str], *, excluded_run: str, clock: Clock = capture_age.now
) -> bool:
    """Whether captures of dead runs other than `excluded_run` lie there that are older than MAX_AGE, or of unknown age,
    and then dated by a flush. Raises OSError."""
    for folder in folders:
        for tier in node_tiers.tiers_in_shared_memory():
            directory = tier.slots_directory(folder)
            for slot in shm_slots.attach_each_mappable(
                directory, [name for name in partner_memory.copy_slot_names(directory) if name.run != excluded_run]
            ):
                page = slot.page
                slot.close()
                if page is None or page.state not in COMPLETE_STATES:
                    continue
                age = capture_age.seconds_since_sealing(page, clock())
                lives = tier.is_captured_here and process.is_alive(page.origin.trainer)
                if not lives and (age is None or age > MAX_AGE):
                    return True
    return False


def flush_expired_in_child_returning_losses() -> List[str]:
    """Flush the expired snapshots of dead runs in a child process; return a line for each run that lost
    something.

    A child that takes longer than LIMIT is killed, and not waited for. Raises OSError.
    """
    import subprocess  # seldom needed, as above

    child = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        lines, _ = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired as expired:
        child.kill()  # not waited for: it may be in the kernel, on a dead mount
        lines = expired.output or b""
    return lines.decode("utf-8", "replace").splitlines()


def main() -> int:
    """The process: one line for each run of which something was given up."""
    import syslog  # seldom needed, as is what flushes: not each agent is to load it

    from hyperpod_kit.checkpoint.agent.flush import flush

    lower_cpu_and_io_priority()
    outcomes = flush.flush(folder=shm_paths.shared_memory_root(), job=_NO_JOB, max_age=MAX_AGE)
    for outcome in outcomes:
        if outcome.lost:
            line = f"run {outcome.run}: {outcome.note}"
            syslog.syslog(syslog.LOG_WARNING, f"hyperpod-kit: {line}")
            print(line, flush=True)
    return flush.exit_code(outcomes)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # no thread is waited for: it may be in the kernel, on a dead mount
